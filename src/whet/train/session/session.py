"""The session around every loop: resuming, timing, evaluation, checkpoints, early stopping. Knows no algorithm."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import transformers

import whet
from whet.config.loops import Trained
from whet.distributed.world import RankLost, World
from whet.errors import RunFailed, UserError
from whet.evaluate.measures import Measure, headline, measure_of
from whet.models.memory_errors import NoRoomToSample, is_out_of_memory
from whet.rollout import spelled
from whet.runs.checkpoints import Checkpoint
from whet.runs.directory import RunDirectory
from whet.runs.interrupt import Interrupt, Stopped
from whet.runs.logs import plain_numbers
from whet.runs.recorded_inputs import Inputs
from whet.tasks.grading.failures import GradingFailed
from whet.train.optimizers.optimizer import learning_rate, set_learning_rate
from whet.train.optimizers.weight_change import WeightChange
from whet.train.session import resume
from whet.train.session.alarms import AlarmWatch
from whet.train.session.callbacks import Progress
from whet.train.session.checkpoint_files import read_checkpoint, write_checkpoint
from whet.train.session.checkpointed import Checkpointed, SessionParts
from whet.train.session.disk_space import measured_sizes, require_space
from whet.train.session.early_stopping import (
    is_new_best,
    over_budget,
    require_measured,
    watched,
    watched_measure,
    without_improvement,
)
from whet.train.session.gpu_forecast import gpu_changes, gpu_forecast
from whet.train.session.held_out import evaluate_held_out, what_is_evaluated
from whet.train.session.out_of_memory import out_of_memory
from whet.train.session.provenance import machine, processes_line
from whet.train.session.tolerated import keep_failure
from whet.train.setup.reward_grader import StepScorer

STATE = ("best", "ended", "kept", "lost", "measured", "processes", "tokens", "watched")  # of a checkpoint
ABANDONED = ("rollout", "score")  # phases of a step that a signal ends at once: they change no weight


class Session:
    """One run of a loop: `steps()` yields the remaining steps, `end_step` logs, evaluates and saves as due."""

    def __init__(
        self,
        config: Trained,
        run: RunDirectory,
        world: World,
        parts: SessionParts,
        progress: Progress,
        *,
        measure: Callable[[], dict[str, float]] = dict,
        scorers: Mapping[str, StepScorer] | None = None,
        kept: Mapping[str, Checkpointed | None] | None = None,
    ) -> None:
        self.config, self.run, self.world, self.parts, self.progress = config, run, world, parts, progress
        self.measure = measure  # further metrics of every evaluation
        self.scorers = scorers or {}  # evaluation set → grader of training, for its completions
        self._alarms = AlarmWatch(config, run, world, progress)
        self.kept = {name: one for name, one in {**(kept or {}), **self._alarms.kept}.items() if one is not None}
        self.last = self._saved = 0  # last completed step, and that of the newest checkpoint
        self.tokens = 0  # trained tokens so far
        self.best: dict[str, Any] = {}  # step, metric and value
        self._best_metrics: Mapping[str, Any] = {}  # of its evaluation
        self.measured: resume.Measured = {}  # first and newest evaluation
        self.watched: list[float] = []  # early_stopping.metric of every evaluation
        self.lost: list[str] = []  # files of the run that were lost, in sentences
        self.interrupt = Interrupt()
        self._began = False
        self._evaluating: int | None = None  # the step whose evaluation is under way; 0: before training
        self._has_evaluated = False  # in this process
        self._stopping = False  # decided once a step, on all ranks alike
        self._ended = ""  # reason of early stopping
        self._pending: dict[str, Any] = {}  # metrics and timings of a step that is trained and not yet evaluated
        self._begun_with: dict[str, Any] = {}  # numbers of `kept` when the step began
        self._timings: dict[str, float] = {}
        self._weights = WeightChange(parts.optimizer)
        self._started = time.perf_counter()

    def __enter__(self) -> Session:
        self.interrupt.__enter__()
        gc.freeze()  # models stay loaded: scanning them for garbage takes longer than a small step
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _begin(self) -> None:
        """Restores the newest checkpoint; evaluates a new run before training."""
        checkpoint = self.run.latest()
        resume.refuse_false_start(self.run, checkpoint, self.parts.origin, self.config)
        if checkpoint is not None:
            self._restore(checkpoint)
        sizes = measured_sizes(self.config, self.parts, [one.saved_sizes() for one in self.kept.values()])
        disk = require_space(self.run, self.config, sizes, done=self.last)  # before the run's own files change
        seen = {"weights to begin with": self.parts.origin, "newest checkpoint": self.last if checkpoint else None}
        self.world.require_same(seen, "every rank must read the same files")  # also a barrier: rewinding deletes files
        resume.keep_origin(self.run, self.parts.origin)
        restarted = ""
        if checkpoint is None:
            restarted = self.run.start_over()
        else:
            self.run.rewind(self.last, logged=self.last - 1 if self._pending else None)
        self.run.track(
            self.config.track, self.config.model_dump(mode="json"), self.last + 1 if checkpoint is not None else 0
        )
        self._alarms.begin(sum(weights.numel() for weights in self.parts.policy.parameters()))
        planned = [*processes_line(self.config, self.world), *gpu_forecast(self.config, self.parts, self.world)]
        for note in (f"run: {self.run.path}", *disk, *self.parts.notes, *planned):
            self.progress.note(note)
        self._began = True
        if restarted:
            self.progress.note(restarted)
        if checkpoint is None and self.config.eval.every_steps:
            before = self._evaluate(0)
            self._log(0, before)
            first = self._best_measure(before)
            size = first.sample_size(before)
            self.progress.note(f"before training: {first.label} {first.with_interval(before)}{size and f' {size}'}")
        elif checkpoint is not None:
            self.progress.note(f"resumed after step {self.last}")
            if self._pending:
                self._timings = dict(self._pending["timings"])
                self._conclude_step(self.last, self._pending["metrics"])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.interrupt.__exit__(kind, error, trace)
        gc.unfreeze()
        for part in filter(None, (self.parts.engine, self.parts.conversing)):
            part.close()
        if isinstance(error, Stopped):
            self._save_abandoned()
            return True
        error, where = self.world.explained(error), f"{self._where()}: " if self._began else ""
        seen = keep_failure(error, self.run, self.world, step=self._step, where=self._where(), began=self._began)
        if is_out_of_memory(error):
            advice = out_of_memory(self.config, self.world.device, is_sampling=isinstance(error, NoRoomToSample))
            if changes := gpu_changes(self.config, self.parts, self.world):
                advice += f"; by the plan, {changes}"
            raise RunFailed(f"{where}{advice}{self._way_back(RunFailed(advice))}") from error
        if isinstance(error, RankLost):
            raise RankLost(f"{where}{error}") from error
        if isinstance(error, RunFailed):
            raise RunFailed(f"{where}{error}{seen}{self._way_back(error)}") from error
        return False

    @property
    def _step(self) -> int:
        return self.last + 1 if self._evaluating is None else self._evaluating

    def _where(self) -> str:
        """The part of the run that is under way."""
        if self._evaluating is None:
            return f"step {self._step}"
        return f"evaluation after step {self._evaluating}" if self._evaluating else "evaluation before training"

    def _save_abandoned(self) -> None:
        """Saves the run as it was before an abandoned rollout or evaluation."""
        if self._pending:
            self._save(self._pending["step"])
        elif self.last > self._saved:
            self._save(self.last, numbers=self._begun_with)

    def steps(self, conclude: Callable[[], None] = lambda: None) -> Iterator[int]:
        """The remaining steps; ends early on an interrupt.

        `conclude` is called after the last one, before the run is marked finished: if interrupted, it can be resumed.
        """
        for step in range(self.last + 1, self.config.steps + 1):
            if self._ended:
                break
            self._timings = {}
            self._started = time.perf_counter()
            self._begun_with = {name: one.numbers() for name, one in self.kept.items()}
            set_learning_rate(self.parts.optimizer, learning_rate(step, self.config.steps, self.config.optimizer))
            self._weights.remember()
            yield step
            if self._stopping and step < self.config.steps and not self._ended:
                conclude()
                return
        if self._ended:
            self.progress.note(f"early stopping after step {self.last}: {self._ended}")
        if not self.best:  # without evaluations the last model is the best
            self._keep_best({"step": self.last})
        conclude()
        self._finish()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Times one phase of the step."""
        started = time.perf_counter()
        with self._abandoning() if name in ABANDONED else nullcontext():
            yield
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
        key = f"seconds/{name}"
        self._timings[key] = self._timings.get(key, 0.0) + time.perf_counter() - started

    def end_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        *,
        tokens: int,
        groups: Sequence[Sequence[Mapping[str, Any]]] = (),
        written: Callable[[Iterable[Mapping[str, Any]]], Iterator[Mapping[str, Any]]] = iter,
    ) -> None:
        """Logs the step; records rollouts as `written`, evaluates and saves a checkpoint if due."""
        self.tokens += tokens
        rate = self.parts.optimizer.param_groups[0]["lr"]
        logged = {**metrics, **self._weights.metrics(), "lr": rate, "tokens": float(self.tokens)}
        if groups and self.config.save.keeps_rollouts(step, self.config.steps):
            self.run.record(step, written(spelled(groups, self.parts.tokenizer)))
        self._alarms.keep(step, groups)
        seconds = time.perf_counter() - self._started
        self._timings |= {"seconds/step": seconds, "tokens_per_second": tokens / seconds}
        if self.config.early_stopping.kl is not None:
            self._ended = over_budget(metrics, self.config.early_stopping)
        if _due(self.config.eval.every_steps, step, self.config.steps):
            self.run.show(step, "samples/rollouts", [group[0] for group in groups if group])
        self._pending = {"step": step, "metrics": logged, "timings": self._timings}
        self._conclude_step(step, logged)

    def _conclude_step(self, step: int, logged: dict[str, float]) -> None:
        """Evaluates, logs and saves a step that is trained."""
        self._ended = self._ended or self._alarms.look(step, logged)
        if self._is_evaluated(step) or (self.config.eval.every_steps and self._ended):
            logged = {**logged, **self._evaluate(step)}
            watch = watched_measure(self.config.early_stopping, self._best_measure(logged))
            self._ended = self._ended or without_improvement(self.watched, self.config.early_stopping, watch)
        self._pending = {}
        self._log(step, logged)
        self.run.log_times(step, self._timings)
        if logged.get("updates") == 0:
            self.progress.note(f"step {step}: nothing to learn from, so no update was made")
        if self.progress.step(step, logged, self._timings) is False:
            self.interrupt.requested = True
        self._stopping = self.world.max(float(self.interrupt.requested)) > 0
        if _due(self.config.save.every_steps, step, self.config.steps) or self._stopping or self._ended:
            self._save(step)
        self.last = step

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(step, metrics)
        self._alarms.log(step, metrics)

    def _abandoning(self) -> AbstractContextManager[None]:
        return abandoning(self.interrupt, self.world)

    def _evaluate(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        self._evaluating = step
        if self.parts.evaluation and self.parts.engine is not None and not self._has_evaluated:
            self.progress.note(what_is_evaluated(self.config, self.parts.evaluation))
        self._has_evaluated = True
        with self.progress.evaluating():
            metrics = evaluate_held_out(
                self.config, self.parts, self.world, self.run, self.scorers, self._abandoning, step=step
            )
            with self._abandoning():
                metrics |= self.measure() | self.parts.measure(self.parts.policy)
        self._evaluating = None
        require_measured(self.config, metrics)
        resume.remember(self.measured, step, plain_numbers(metrics))
        measure = self._best_measure(metrics)
        stopping = self.config.early_stopping
        self.watched += watched([metrics], stopping, watched_measure(stopping, measure))
        value = metrics[measure.metric]
        if is_new_best(self.best, self._best_metrics, metrics, measure):
            self._keep_best({"step": step, "metric": measure.metric, "value": value})
            self._best_metrics = metrics
        self._timings["seconds/eval"] = time.perf_counter() - started
        return metrics

    def _is_evaluated(self, step: int) -> bool:
        return _due(self.config.eval.every_steps, step, self.config.steps)

    def _keep_best(self, best: dict[str, Any]) -> None:
        self.best = best
        self.run.save_best(self.parts.export_model, best)
        self._take_part(self.parts.export_model)

    def _best_measure(self, metrics: Mapping[str, float]) -> Measure:
        """The measure that selects the best model."""
        found = measure_of(self.config.best.metric) if self.config.best.metric else headline(metrics)
        assert found is not None, "an evaluation measures something"
        return found

    def _save(self, step: int, *, numbers: Mapping[str, Any] | None = None) -> None:
        def fill(directory: Path | None) -> None:
            write_checkpoint(directory, self.parts, self.kept, how, self.world)

        how = self.config.save.optimizer
        if numbers is None:
            numbers = {name: one.numbers() for name, one in self.kept.items()}
        state = {"origin": self.parts.origin, "tokens": self.tokens, "best": self.best, "ended": self._ended}
        state |= {"processes": self.world.size}
        state |= {"kept": numbers, "measured": self.measured, "watched": self.watched, "lost": self.lost}
        state |= {"pending": self._pending} if self._pending else {}
        state |= {"optimizer": how} if how != "exact" else {}
        state |= {"sharding": self.world.sharding.name} if self.world.sharding.is_sharded else {}
        delete_first = self.config.save.delete_old == "before"
        self.run.save(step, fill, state, keep=self.config.save.keep, delete_first=delete_first)
        self._take_part(fill)
        self._saved = step
        self.world.barrier()

    def _take_part(self, fill: Callable[[Path | None], None]) -> None:
        """Gathers with the rank that writes what it writes, if no rank has it whole."""
        if self.world.sharding.is_sharded and not self.run.is_writer:
            fill(None)

    def _restore(self, checkpoint: Checkpoint) -> None:
        absent = set(STATE) - checkpoint.state.keys()
        if absent:
            raise UserError(
                f"{checkpoint.path} has no {min(absent)!r} in its state.json, so an earlier version of whet wrote it: "
                f"resume with that version, or start a new run from model.path={checkpoint.path / 'model'}"
            )
        rounded = read_checkpoint(checkpoint, self.parts, self.kept)
        self.last = self._saved = checkpoint.step
        self.tokens, self._pending = checkpoint.state["tokens"], checkpoint.state.get("pending", {})
        self._ended, self.measured, self.watched = (checkpoint.state[name] for name in ("ended", "measured", "watched"))
        self.best, self.lost = resume.intact_best(
            *(self.run, checkpoint, self.progress.note),
            processes=self.world.size,
            sharding=self.world.sharding.name,
            is_evaluated=self._is_evaluated,
            moments=resume.lost_moments(checkpoint, is_rounded=rounded),
        )
        self._best_metrics = resume.logged_metrics(self.run, self.best)
        metric = self.config.early_stopping.metric or self.config.best.metric or self.best.get("metric", "eval/reward")
        if resume.changed_measures(self.run, self.last, [metric]):
            self.watched = []  # values that the next ones cannot be compared with

    def _finish(self) -> None:
        facts = {"lost": self.lost, "accepted_changes": (self.run.inputs() or Inputs()).accepted_sentences}
        results = {
            "recipe": self.run.recipe,
            "loop": self.config.loop,
            "steps": self.last,
            **({"ended": self._ended} if self._ended else {}),
            "seed": self.config.seed,
            **{name: self.measured.get(name, {}) for name in (resume.BEFORE, resume.AFTER)},
            "best": self.best,
            "tokens": self.tokens,
            "seconds": sum(t.get("seconds/step") or 0.0 for t in self.run.timings()),
            "machine": machine(self.world),
            "versions": {module.__name__: module.__version__ for module in (whet, torch, transformers)},
            **{name: sentences for name, sentences in facts.items() if sentences},
        }
        self.run.finish(results)

    def _way_back(self, error: RunFailed) -> str:
        checkpoint = self.run.latest()
        is_named = checkpoint is None or str(checkpoint.path) in str(error)
        good = "" if is_named or checkpoint is None else f"; the last good checkpoint is {checkpoint.path}"
        again = resume.how_to_resume(self.run.path, accept_changes=True)
        return good + (f"; after a repair: {again}" if isinstance(error, GradingFailed) else "")


@contextmanager
def abandoning(interrupt: Interrupt, world: World) -> Iterator[None]:
    """A block without lasting effects that a signal ends at once; several ranks must leave it together and go on."""
    if interrupt.requested and world.size == 1:
        raise Stopped
    interrupt.abandons = world.size == 1
    try:
        yield
    finally:
        interrupt.abandons = False


def _due(every: int, step: int, steps: int) -> bool:
    """Every so many steps and at the end; 0: never."""
    return every > 0 and (step % every == 0 or step == steps)
