"""Evaluation of a run on held-out prompts: completions by the engine, graded by the task and by the run's rewards."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from whet.config.loops import Acting, Trained
from whet.distributed.world import World
from whet.evaluate.evaluation import evaluate
from whet.evaluate.measures import of_set
from whet.runs.directory import RunDirectory
from whet.tasks.protocol import Task
from whet.train.session.checkpointed import SessionParts
from whet.train.setup.reward_grader import StepScorer


def evaluate_held_out(
    config: Trained,
    parts: SessionParts,
    world: World,
    run: RunDirectory,
    scorers: Mapping[str, StepScorer],
    abandoning: Callable[[], AbstractContextManager[None]],
    *,
    step: int,
) -> dict[str, float]:
    """Of every evaluation set: greedy accuracy, pass@k, and the mean reward by the grader of training.

    {} if nothing generates. A signal ends what is done within `abandoning()` at once.
    """
    if parts.engine is None or isinstance(config, Acting):
        return {}
    settings = config.eval
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
                scorer=partial(scorers[name], step=step) if name in scorers else None,
                conversing=parts.conversing,
                world=world,
            )
        answers += [answer.row() | ({"set": name} if name else {}) for answer in evaluation.answers]
        metrics |= of_set(name, evaluation.metrics())
    run.record_answers(step, answers)
    return metrics


def what_is_evaluated(config: Trained, tasks: Mapping[str, Task]) -> str:
    """How many prompts an evaluation answers, and with how many tokens, in words."""
    assert not isinstance(config, Acting)
    settings = config.eval
    prompts = sum(len(task.held_out(settings.examples)) for task in tasks.values())
    of = f" of {len(tasks)} evaluation sets" if len(tasks) > 1 else ""
    more = f", {settings.samples} samples of each besides (eval.samples)" if settings.samples else ""
    return (
        f"evaluating on {prompts:,} held-out prompts{of}, up to {settings.max_tokens:,} tokens each "
        f"(eval.examples, eval.max_tokens){more}"
    )
