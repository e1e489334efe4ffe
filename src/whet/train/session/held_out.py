"""Evaluation of the policy on held-out examples during training, and what the best model is chosen by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from whet.config import OfflineConfig, OnlineConfig
from whet.distributed.world import World
from whet.evaluate.evaluation import evaluate
from whet.evaluate.statistics import mean_interval
from whet.records import Example
from whet.runs.directory import Run
from whet.train.session.trained import Trained

PROMPTS_ONLY = "data"  # the task that knows no right answers
Judge = Callable[[Sequence[Example], Sequence[str]], Sequence[float]]


def held_out_metrics(
    config: OnlineConfig | OfflineConfig, run: Run, world: World, parts: Trained, judge: Judge | None, *, step: int
) -> dict[str, float]:
    """Accuracy of greedy answers, pass@k, and the mean reward by a reward model where training has one.

    A reward model itself says nothing, so there is nothing to sample.
    """
    if parts.engine is None:
        return {}
    parts.sync(step)
    settings = config.eval
    evaluation = evaluate(
        parts.engine,
        parts.tokenizer,
        parts.task,
        examples=settings.examples,
        sampling=config.eval_sampling,
        samples=settings.samples,
        ks=settings.ks,
        seed=config.seed,
        world=world,
    )
    run.record_answers(step, [asdict(answer) for answer in evaluation.answers])
    metrics = evaluation.metrics()
    if judge is not None:
        texts = [answer.text for answer in evaluation.answers if answer.sample == 0]
        found = mean_interval(judge(parts.task.held_out(settings.examples), texts))
        metrics |= {"eval/reward": found.mean, "eval/reward_low": found.low, "eval/reward_high": found.high}
    return metrics


def best_by(measured: Mapping[str, float], task: str) -> str:
    """What the best model is chosen by: accuracy, or the mean reward where the task has prompts alone."""
    return "reward" if task == PROMPTS_ONLY and "eval/reward" in measured else "accuracy"
