"""What a run measures besides accuracy: the rewards of an online run, and the held-out rows of an offline one."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whet.api.local_engine import LocalEngine
from whet.api.model_limits import Note, fitted
from whet.config import EngineConfig, OfflineConfig, OnlineConfig, OptimizerConfig, TaskConfig
from whet.config.loops import Training
from whet.distributed.world import World
from whet.engines.engine_protocol import Engine
from whet.errors import UserError
from whet.evaluate.evaluation import Evaluation, HeldOutScorer, Ranker, evaluate
from whet.evaluate.measures import measure_of
from whet.imports import has_objects, is_object
from whet.models.protocol import Tokenizer
from whet.models.reward.scoring import load_scorer
from whet.runs.directory import RunDirectory
from whet.tasks.grading.failures import Tolerance
from whet.tasks.grading.graders import DirectGrader
from whet.tasks.grading.turn_grader import graded_in_turns
from whet.tasks.protocol import Task
from whet.train.conversations import conversing_of
from whet.train.rows.loop import build_trainer
from whet.train.setup.corpora import text_measure
from whet.train.setup.reward_grader import build_grader, score_completions

FoundTask = tuple[Task, str, Mapping[str, Any]]  # a task with its name and options
Rows = tuple[dict[str, float], int | None]  # metrics of held-out rows, and the step at which they were recorded, if so


def measured_as_trained(  # noqa: PLR0913
    config: Training | None,
    best: Path,
    found: FoundTask,
    tokenizer: Tokenizer,
    engine: Engine,
    settings: Mapping[str, Any],
    *,
    limit: int,
    world: World,
    note: Note,
) -> Evaluation:
    """The evaluation of a model and, with the config of the run that trained it, what that run measures of its own.

    `best` is the directory of the model, and `limit` the `chosen_limit`.
    """
    given, name, options = found
    task = fitted(given, tokenizer, engine, limit, note)
    named = TaskConfig(name=name, **options)
    talks = conversing_of(config, tokenizer, context=engine.policy.context if isinstance(engine, LocalEngine) else None)
    with closing(talks), _own_rewards(config, best, task, named, tokenizer, world.device, note) as scorer:
        result = evaluate(engine, tokenizer, task, **settings, scorer=scorer, conversing=talks, world=world)
    if isinstance(config, OnlineConfig) and isinstance(engine, LocalEngine):
        return replace(result, rows=text_measure(config, given, tokenizer, engine.policy, world)(engine.policy))
    if not isinstance(config, OfflineConfig):
        return result
    rows, step = _own_rows(config, best, engine, settings["examples"], world, note)
    return replace(result, rows=rows, rows_step=step)


def ranking_by(reward_model: str, settings: Mapping[str, Any], device: torch.device) -> Ranker:
    """Scores of samples by the reward model in this directory, for best-of-k; refuses settings that leave no choice."""
    if max(settings["ks"], default=0) < 2:
        raise UserError("a reward model chooses among several samples: draw at least two, e.g. --samples 8 (samples=8)")
    scorer = load_scorer(Path(reward_model), device)
    return lambda examples, texts: scorer.score([example.prompt for example in examples], texts)


def device_of(engine: Engine) -> torch.device:
    """Where the weights are; the CPU for those of a server."""
    if not isinstance(engine, LocalEngine) or not isinstance(engine.policy, torch.nn.Module):
        return torch.device("cpu")
    return next(engine.policy.parameters()).device


@contextmanager
def _own_rewards(
    config: Training | None,
    best: Path,
    task: Task,
    named: TaskConfig,
    tokenizer: Tokenizer,
    device: torch.device,
    note: Note,
) -> Iterator[HeldOutScorer | None]:
    """The rewards of an online run, or of the task without a run; None if there are none that can be loaded here."""
    if not isinstance(config, OnlineConfig):
        yield _of_task(task) if config is None and named.is_graded else None
        return
    objects = [function.use for function in config.reward.functions if is_object(function.use)]
    if objects and not has_objects():
        note(
            f"note: the reward {objects[0]} is a Python object that was passed to whet.train, so rewards are not "
            "measured here: call run.evaluate() where the object is"
        )
        yield None
        return
    tolerance = Tolerance(config.reward.allowed_failures)
    on_task = config.model_copy(update={"task": named})
    with closing(build_grader(on_task, device, task, tokenizer, tolerance)) as grader:
        yield partial(score_completions, grader, step=_best_step(best), steps=config.steps)


def _of_task(task: Task) -> HeldOutScorer:
    """The task's own scores, of a model that no run trained on it."""
    grader = graded_in_turns(DirectGrader(task), task)
    return partial(score_completions, grader, step=0, steps=0)


def _own_rows(config: OfflineConfig, best: Path, engine: Engine, examples: int, world: World, note: Note) -> Rows:
    """The held-out rows of a run, measured by its trainer with the best weights.

    Recorded metrics of the best step take their place where the loss depends on the course of training, or where the
    run's data or start model are gone.
    """
    assert isinstance(engine, LocalEngine)
    unused: dict[str, Any] = {"steps": 0, "engine": EngineConfig(), "optimizer": OptimizerConfig()}
    fewer = config.model_copy(update={**unused, "eval": config.eval.model_copy(update={"examples": examples})})
    try:
        trainer = build_trainer(fewer, world, lambda _: None)
    except UserError as error:
        note(f"note: the held-out rows cannot be measured anew: {error}")
        return _recorded(best)
    if trainer.kept:
        return _recorded(best)
    trainer.parts = replace(trainer.parts, policy=engine.policy)
    return trainer.measure() | trainer.parts.measure(engine.policy), None


def _best_step(best: Path) -> int:
    """The step of the best model of a run, for reward functions that depend on it; 0 if it is not recorded."""
    run = RunDirectory.open(best.parent, is_writer=False)
    return int((run.best_info() or {}).get("step") or 0)


def _recorded(best: Path) -> Rows:
    """The metrics of held-out rows in metrics.jsonl, of the step of the best model."""
    run = RunDirectory.open(best.parent, is_writer=False)
    step = (run.best_info() or {}).get("step")
    row = next((row for row in run.metrics() if row["step"] == step), {})
    of_rows = [one for one in map(measure_of, row) if one.metric.startswith("eval/") and "rows" in one.counted_by]
    names = [name for one in of_rows for name in (one.metric, *one.interval, *one.counts)]
    return {name: row[name] for name in names if row.get(name) is not None}, step
