"""The session around every loop: resuming, timing, evaluation, checkpoints, stopping. Knows no algorithm."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, compress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file

from whet.config import EarlyStoppingConfig, OfflineConfig, OnlineConfig
from whet.distributed.world import RankLost, World
from whet.errors import RunFailed, UserError
from whet.models.protocol import Tokenizer
from whet.runs.checkpoints import Checkpoint
from whet.runs.directory import Run
from whet.runs.interrupt import Interrupt
from whet.runs.logs import plain_numbers
from whet.runs.recorded_inputs import Inputs
from whet.tasks.grading.graders import GradingFailed
from whet.train.session import resume
from whet.train.session.held_out import Judge, best_by, held_out_metrics
from whet.train.session.trained import Kept, Trained
from whet.train.setup.machine import machine, versions
from whet.train.setup.optimizer import NotFinite, learning_rate, optimizer_tensors, restore_optimizer, set_learning_rate


class Progress(Protocol):
    """Progress callbacks: called after every step, and with notes for the user."""

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> bool | None:
        """Whether to go on: False stops the run after this step, as Ctrl-C does."""
        ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Session:
    """One run of a loop: `steps()` yields the steps that are left, `end_step` does what is due after each."""

    def __init__(
        self,
        config: OnlineConfig | OfflineConfig,
        run: Run,
        world: World,
        parts: Trained,
        progress: Progress,
        *,
        measure: Callable[[], dict[str, float]] = dict,
        judge: Judge | None = None,
        kept: Mapping[str, Kept | None] | None = None,
    ) -> None:
        self.config, self.run, self.world, self.parts, self.progress = config, run, world, parts, progress
        self.measure = measure  # more to measure at every evaluation
        self.judge = judge  # what else rewards the held-out answers
        self.kept = {name: one for name, one in (kept or {}).items() if one is not None}
        self.last = 0  # the last step that was completed
        self.tokens = 0  # trained tokens so far
        self.best: dict[str, float] = {}
        self.measured: resume.Measured = {}  # the evaluation before training, and the newest one
        self.watched: list[float] = []  # early_stopping.metric of every evaluation
        self.lost: list[str] = []  # of what was on the disk
        self.interrupt = Interrupt()
        self._began = False
        self._stopping = False  # asked once a step, so that what is saved and what is done cannot differ
        self._ended = ""  # why the run needs no more steps
        self._timings: dict[str, float] = {}
        self._started = time.perf_counter()

    def __enter__(self) -> Session:
        self.interrupt.__enter__()
        gc.freeze()  # what is loaded stays: looking through it for garbage takes longer than a small step
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _begin(self) -> None:
        """Goes back to the newest checkpoint; a new run is evaluated before it trains."""
        checkpoint = self.run.latest()
        resume.refuse_false_start(self.run, checkpoint, self.parts.origin, self.config)
        if checkpoint is not None:
            self._restore(checkpoint)
        seen = {"weights to begin with": self.parts.origin, "newest checkpoint": self.last if checkpoint else None}
        self.world.require_same(seen, "every rank must read the same files")  # and have read them, before rewinding
        resume.keep_origin(self.run, self.parts.origin)
        self.run.rewind(self.last if checkpoint is not None else -1)
        self.run.track(
            self.config.track, self.config.model_dump(mode="json"), self.last + 1 if checkpoint is not None else 0
        )
        self.progress.note(f"run: {self.run.path}")
        self._began = True
        if checkpoint is None:
            before = self._evaluate(0)
            require_measured(self.config.early_stopping, before)
            self.run.log(0, before)
            name = best_by(before, self.config.task.name)
            shown = f"{before['eval/accuracy']:.1%}" if name == "accuracy" else f"{before[f'eval/{name}']:.3f}"
            self.progress.note(f"before training: held-out {name} {shown}")
        else:
            self.progress.note(f"resumed after step {self.last}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupt.__exit__(kind, error, trace)
        gc.unfreeze()
        if self.parts.engine is not None:
            self.parts.engine.close()
        step = f"step {self.last + 1}: " if self._began else ""
        if isinstance(error, RankLost):
            raise RankLost(f"{step}{error}") from error
        if isinstance(error, RunFailed):
            raise RunFailed(f"{step}{error}{self._evidence(error)}{self._way_back(error)}") from error

    def _evidence(self, error: RunFailed) -> str:
        """Puts what the run failed on onto the disk, and says where."""
        if isinstance(error, GradingFailed):
            kind, culprit = "reward", {"example": error.example and asdict(error.example), "text": error.text}
        elif isinstance(error, NotFinite):
            kind, culprit = "loss", error.culprit
        else:
            return ""
        kind = kind if self.world.size == 1 else f"{kind}-rank{self.world.rank}"
        return f"; see {self.run.fail(kind, {'step': self.last + 1, 'error': str(error), **culprit})}"

    def steps(self, conclude: Callable[[], None] = lambda: None) -> Iterator[int]:
        """The steps that are left; ends early after an interrupt.

        `conclude` is called after the last of them, before the run counts as finished: whoever interrupts it, too,
        leaves a run to go on with.
        """
        for step in range(self.last + 1, self.config.steps + 1):
            if self._ended:
                break
            self._timings = {}
            self._started = time.perf_counter()
            set_learning_rate(self.parts.optimizer, learning_rate(step, self.config.steps, self.config.optimizer))
            yield step
            if self._stopping and step < self.config.steps and not self._ended:
                conclude()
                return
        if self._ended:
            self.progress.note(f"step {self.last}: {self._ended}, so the run ends here")
        conclude()
        self._finish()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measures one stage of the step."""
        started = time.perf_counter()
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
    ) -> None:
        """Logs the step and does what is due: rollouts on disk, evaluation, checkpoint."""
        self.tokens += tokens
        logged = {**metrics, "lr": self.parts.optimizer.param_groups[0]["lr"], "tokens": float(self.tokens)}
        if groups and _due(self.config.save.rollouts_every_steps, step, self.config.steps):
            self.run.record(step, spelled(groups, self.parts.tokenizer))
        seconds = time.perf_counter() - self._started
        self._timings |= {"seconds/step": seconds, "tokens_per_second": tokens / seconds}
        self._ended = over_budget(metrics, self.config.early_stopping)
        if _due(self.config.eval.every_steps, step, self.config.steps) or self._ended:
            logged |= self._evaluate(step)
            self._ended = self._ended or past_best(self.watched, self.config.early_stopping)
        self.run.log(step, logged)
        self.run.log_times(step, self._timings)
        if metrics.get("updates") == 0:
            self.progress.note(f"step {step}: nothing to learn from, so no update was made")
        if self.progress.step(step, logged, self._timings) is False:
            self.interrupt.requested = True
        self._stopping = self.world.max(float(self.interrupt.requested)) > 0
        if _due(self.config.save.every_steps, step, self.config.steps) or self._stopping or self._ended:
            self._save(step)
        self.last = step

    def _evaluate(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        metrics = {
            **held_out_metrics(self.config, self.run, self.world, self.parts, self.judge, step=step),
            **self.measure(),
        }
        resume.remember(self.measured, step, plain_numbers(metrics))
        self.watched += resume.watched([metrics], self.config.early_stopping)
        # Of equally good models the later one: it has learned for longer, which a loss would show.
        name = best_by(metrics, self.config.task.name)
        if not self.best or metrics[f"eval/{name}"] >= self.best[name]:
            self.best = {"step": step, "accuracy": metrics["eval/accuracy"], name: metrics[f"eval/{name}"]}
            self.run.save_best(self.parts.save_model, self.best)
        self._timings["seconds/eval"] = time.perf_counter() - started
        return metrics

    def _save(self, step: int) -> None:
        def fill(directory: Path) -> None:
            (directory / "model").mkdir()
            self.parts.save_model(directory / "model")
            save_file(optimizer_tensors(self.parts.optimizer, self.parts.policy), directory / "optimizer.safetensors")
            for name, one in self.kept.items():
                tensors = {key: tensor.cpu().contiguous() for key, tensor in one.tensors().items()}
                if tensors:
                    save_file(tensors, directory / f"{name}.safetensors")

        numbers = {name: one.numbers() for name, one in self.kept.items()}
        state = {"origin": self.parts.origin, "tokens": self.tokens, "best": self.best, "ended": self._ended}
        state |= {"processes": self.world.size}
        state |= {"kept": numbers, "measured": self.measured, "watched": self.watched, "lost": self.lost}
        self.run.save(step, fill, state, keep=self.config.save.keep)
        self.world.barrier()

    def _restore(self, checkpoint: Checkpoint) -> None:
        saved = self.parts.saved_weights(checkpoint.path / "model")
        mine = self.parts.policy.state_dict()
        if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in mine.items()}:
            raise UserError(f"{checkpoint.path}: the checkpoint is of another model than the run's config describes")
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(saved[name])
        restore_optimizer(self.parts.optimizer, self.parts.policy, load_file(checkpoint.path / "optimizer.safetensors"))
        for name, one in self.kept.items():
            path = checkpoint.path / f"{name}.safetensors"
            one.restore(checkpoint.state["kept"][name], load_file(path) if path.exists() else {})
        self.last, self.tokens = checkpoint.step, checkpoint.state["tokens"]
        self._ended = checkpoint.state.get("ended", "")
        self.measured = resume.measured_so_far(self.run, checkpoint)
        self.watched = resume.watched_so_far(self.run, checkpoint, self.config.early_stopping)
        self.best, self.lost = resume.what_stands(
            self.run, checkpoint, self.measured, self.progress.note, processes=self.world.size
        )

    def _finish(self) -> None:
        told = {"lost": self.lost, "accepted_changes": (self.run.inputs() or Inputs()).accepted_sentences}
        results = {
            "recipe": self.run.recipe,
            "loop": self.config.loop,
            "steps": self.last,
            **({"ended": self._ended} if self._ended else {}),
            "seed": self.config.seed,
            **resume.ends_of(self.measured, self.run),
            "best": self.best,
            "tokens": self.tokens,
            "seconds": sum(t.get("seconds/step") or 0.0 for t in self.run.timings()),
            "machine": machine(self.world),
            "versions": versions(),
            **{name: sentences for name, sentences in told.items() if sentences},
        }
        self.run.finish(results)

    def _way_back(self, error: RunFailed) -> str:
        checkpoint = self.run.latest()
        if checkpoint is None or str(checkpoint.path) in str(error):  # a failed write has named it
            return ""
        return f"; the last good checkpoint is {checkpoint.path}"


def _due(every: int, step: int, steps: int) -> bool:
    return step % every == 0 or step == steps


def over_budget(metrics: Mapping[str, float], settings: EarlyStoppingConfig) -> str:
    """Why a run has spent its KL, or nothing."""
    if settings.kl is None or metrics.get("kl_rollout", 0.0) <= settings.kl:
        return ""
    return f"rollouts are {metrics['kl_rollout']:.3g} nats from the reference, above early_stopping.kl {settings.kl:g}"


def past_best(values: Sequence[float], settings: EarlyStoppingConfig) -> str:
    """Early stopping: why a run is past its best (over-optimised, if its training reward still rises), or nothing."""
    if not settings.patience or not values:
        return ""
    since = len(values) - 1 - max(range(len(values)), key=lambda place: (values[place], place))
    if since < settings.patience:
        return ""
    return f"{settings.metric} has been below its best, {max(values):.4g}, for {since} evaluations"


def require_measured(settings: EarlyStoppingConfig, measured: Mapping[str, float]) -> None:
    """Refuses to wait for the fall of a number that no evaluation gives."""
    if settings.patience and settings.metric not in measured:
        known = ", ".join(measured)
        raise UserError(f"early_stopping.metric is {settings.metric!r}, which is not measured here; use one of {known}")


def spelled(groups: Sequence[Sequence[Mapping[str, Any]]], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The rows of all groups, each with the text of its sampled tokens one by one."""
    rows = list(chain.from_iterable(groups))
    chosen = list(set(chain.from_iterable(compress(row["tokens"], row["mask"]) for row in rows)))
    texts = dict(zip(chosen, tokenizer.decode_many([[token] for token in chosen]), strict=True))
    for row in rows:
        yield {**row, "pieces": [texts[token] for token in compress(row["tokens"], row["mask"])]}
