"""Held-out evaluation during training, and the metric that selects the best model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from whet.config.loops import Training
from whet.distributed.world import World
from whet.evaluate.evaluation import evaluate
from whet.evaluate.statistics import mean_interval
from whet.records import Example
from whet.runs.directory import Run
from whet.train.session.trained import Trained

PROMPTS_ONLY = "data"  # the task without reference answers
HeldOutScorer = Callable[[Sequence[Example], Sequence[str]], Sequence[float]]


def held_out_metrics(
    config: Training, run: Run, world: World, parts: Trained, scorer: HeldOutScorer | None, *, step: int
) -> dict[str, float]:
    """Greedy accuracy, pass@k, and the mean reward by the reward model of training; {} if nothing generates."""
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
    if scorer is not None:
        texts = [answer.text for answer in evaluation.answers if answer.sample == 0]
        found = mean_interval(scorer(parts.task.held_out(settings.examples), texts))
        metrics |= {"eval/reward": found.mean, "eval/reward_low": found.low, "eval/reward_high": found.high}
    return metrics


def best_by(measured: Mapping[str, float], task: str) -> str:
    """The metric that selects the best model: accuracy, or the mean reward if the task has no reference answers."""
    return "reward" if task == PROMPTS_ONLY and "eval/reward" in measured else "accuracy"
