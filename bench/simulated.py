"""Measured rollouts and whole steps of one GPU beside what the simulator says of them (docs/scaling.md).

The rollouts of `bench.gpu` (all alike, and of mixed lengths) with the very lengths that were sampled; the whole GRPO
and PPO steps of `bench.plan` and `bench.gpu` as their recipes have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
from typing import Any

from bench.job import Workload
from bench.plan_cases import ONLINE
from whet.config import OnlineConfig
from whet.models.decoder.known_shapes import require_shape
from whet.recipe import read_recipe
from whet.train.plan.gpus import GPUS
from whet.train.plan.recipe_plan import plan_config
from whet.train.plan.run_shapes import run_shapes
from whet.train.plan.token_lengths import token_lengths
from whet.train.plan.workload import Models
from whet.train.simulation.cluster import cluster_of
from whet.train.simulation.completion_lengths import fixed
from whet.train.simulation.deployment import Deployment, Split
from whet.train.simulation.engine_rollout import Speed, sample_share
from whet.train.simulation.outcome import Schedule, outcome, preparing

KNOWN = {"smollm2": "smollm2-135m", "qwen3": "qwen3-0.6b"}  # names of `bench.shapes` that `known_shapes` has by another
ROLLOUTS = ("group-smollm2", "group-qwen3", "mixed-smollm2", "mixed-qwen3")
STEPS = 2

Results = Mapping[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One measurement and its prediction, in seconds."""

    name: str
    predicted: float
    measured: float
    fitted: bool  # the shares of `plan/durations` were fitted to it

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def compared(results: Results) -> list[Compared]:
    """Every measurement that there is."""
    return [*_rollouts(results), *_steps(results)]


def _rollouts(results: Results) -> Iterator[Compared]:
    for name in ROLLOUTS:
        if name in results:
            result = results[name]
            measured = median(run["seconds"] for run in result["sides"]["whet"]["runs"][1:])
            shape = name.partition("-")[2]
            kind = "one length" if name.startswith("group") else "mixed lengths"
            predicted = rollout_seconds(shape, result["workload"])
            yield Compared(
                name=f"{result['title']}, rollout, {kind}", predicted=predicted, measured=measured, fitted=True
            )


def rollout_seconds(shape: str, written: Mapping[str, Any]) -> float:
    """A rollout of this workload on one H200: its lengths are those of the requests."""
    pairs = {key: tuple(written[key]) for key in ("prompt_tokens", "new_tokens")}
    workload = Workload(**{**written, **pairs})
    requests = workload.requests()
    speed = Speed(
        models=Models(policy=require_shape(KNOWN[shape])[1]),
        cluster=cluster_of(GPUS["h200"]),
        prompt=ceil(fmean(len(prompt) for prompt, _ in requests)),
        shared=workload.group,
    )
    lengths = [length for _, length in requests for _ in range(workload.group)]
    return sample_share(speed, lengths, len(lengths)).seconds


def _steps(results: Results) -> Iterator[Compared]:
    plan = results.get("plan")
    cases = {} if plan is None else plan["workload"]
    for name, case in cases.items():
        side = plan["sides"].get(name, {}) if plan else {}
        if case["loss"] == ONLINE and "measured" in side:
            overrides = [f"rollout.prompts={case['prompts']}", f"rollout.group={case['group']}", *case["overrides"]]
            predicted = step_seconds(case["shape"], case["prompt"], case["new"], overrides)
            measured = side["measured"]["step_seconds"]
            yield Compared(name=f"{name}, step", predicted=predicted, measured=measured, fitted=not case["checks"])
    if "step-smollm2" in results:
        result = results["step-smollm2"]
        work = result["workload"]
        overrides = [f"rollout.prompts={work['prompts']}", f"rollout.group={work['group']}"]
        predicted = step_seconds("smollm2", work["prompt_tokens"][1], work["new_tokens"][1], overrides)
        measured = result["sides"]["whet"]["figure"]["seconds"]
        yield Compared(name=f"{result['title']}, step", predicted=predicted, measured=measured, fitted=False)


def step_seconds(shape: str, prompt: int, new: int, overrides: Sequence[str]) -> float:
    """A step of a recipe on one H200, all completions as long as allowed."""
    name = KNOWN.get(shape, shape)
    words = [f"model.path={name}", "task=arithmetic", "eval.every_steps=0", f"rollout.max_tokens={new}"]
    words += [f"eval.max_tokens={new}", *overrides]
    config = read_recipe("grpo", words).config
    assert isinstance(config, OnlineConfig)
    shapes = run_shapes(config, None)
    plan = plan_config(config, shapes, token_lengths(config, shapes, (), prompt=prompt), GPUS["h200"])
    deployment = Deployment(
        models=plan.models, work=plan.work, prompt=prompt, lengths=fixed(new), cluster=cluster_of(GPUS["h200"])
    )
    alone = preparing(deployment)(Split(trainer=1, rollout=1, colocated=True))
    return outcome(alone, Schedule(colocated=True), steps=STEPS).seconds
