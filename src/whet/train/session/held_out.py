"""Evaluation of a run on held-out prompts: completions by the engine, graded by the task and by the run's rewards."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from whet.config.loops import Training
from whet.distributed.world import World
from whet.evaluate.evaluation import evaluate
from whet.evaluate.measures import of_set
from whet.evaluate.statistics import flat_metrics, mean_interval
from whet.records import Example
from whet.runs.directory import RunDirectory
from whet.tasks.protocol import Task
from whet.train.setup.build import Parts
from whet.train.setup.reward_grader import HeldOutScorer


def evaluate_held_out(
    config: Training,
    parts: Parts[Any],
    world: World,
    run: RunDirectory,
    scorers: Mapping[str, HeldOutScorer],
    abandoning: Callable[[], AbstractContextManager[None]],
    *,
    step: int,
) -> dict[str, float]:
    """Of every evaluation set: greedy accuracy, pass@k, and the mean reward by the grader of training.

    {} if nothing generates. A signal ends what is done within `abandoning()` at once.
    """
    settings = config.eval
    if parts.engine is None:
        return {}
    parts.engine.sync(parts.policy, version=step)
    metrics: dict[str, float] = {}
    answers: list[dict[str, Any]] = []
    for name, task in parts.evaluation.items():
        with abandoning():
            evaluation = evaluate(
                parts.engine,
                parts.tokenizer,
                task,
                examples=settings.examples,
                sampling=config.eval_sampling,
                samples=settings.samples,
                ks=settings.ks,
                seed=config.seed,
                world=world,
            )
        found = evaluation.metrics()
        answers += [asdict(answer) | ({"set": name} if name else {}) for answer in evaluation.answers]
        if name in scorers:
            texts = [answer.text for answer in evaluation.answers if answer.sample == 0]
            with abandoning():
                found |= reward_metrics(scorers[name], task.held_out(settings.examples), texts, world)
        metrics |= of_set(name, found)
    run.record_answers(step, answers)
    return metrics


def what_is_evaluated(config: Training, tasks: Mapping[str, Task]) -> str:
    """How many prompts an evaluation answers, and with how many tokens, in words."""
    settings = config.eval
    prompts = sum(len(task.held_out(settings.examples)) for task in tasks.values())
    of = f" of {len(tasks)} evaluation sets" if len(tasks) > 1 else ""
    more = f", {settings.samples} samples of each besides (eval.samples)" if settings.samples else ""
    return (
        f"evaluating on {prompts:,} held-out prompts{of}, up to {settings.max_tokens:,} tokens each "
        f"(eval.examples, eval.max_tokens){more}"
    )


def reward_metrics(
    scorer: HeldOutScorer, examples: Sequence[Example], texts: Sequence[str], world: World
) -> dict[str, float]:
    """The mean reward of these completions and of each of its parts; every rank scores its share."""
    mine = scorer(world.shard(examples), world.shard(texts))
    rows: list[Mapping[str, float]] = world.interleave(
        [{"reward": score.reward} | {f"parts/{name}": value for name, value in score.parts.items()} for score in mine]
    )
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            found[name].append(value)
    return flat_metrics({name: mean_interval(values) for name, values in sorted(found.items())})
