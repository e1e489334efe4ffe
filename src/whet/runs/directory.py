"""The directory of one run.

After a kill, `latest` finds the newest intact checkpoint and `rewind` truncates everything else to it. The resumed run
is byte-identical to an uninterrupted one: metrics and rollouts contain no clock times (timings.jsonl does).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from whet.errors import RunFailed, UserError, escaped
from whet.runs import checkpoints, layout, logs, rollout_index
from whet.runs.checkpoints import Checkpoint, Fill
from whet.runs.lock import WriterLock
from whet.runs.recorded_inputs import Inputs, read_inputs, write_inputs
from whet.runs.rollout_files import RolloutFiles
from whet.runs.trackers import Tracker, start_trackers

SHOWN = 4  # completions of a step in a tracker
WRITE_ERRORS = (OSError, SafetensorError)  # safetensors has its own error for a full disk


class RunDirectory:
    """Made by `create` or `open`. Only the writer process (rank 0) writes."""

    def __init__(self, path: Path, *, is_writer: bool, lock: WriterLock | None) -> None:
        self.path = path
        self.is_writer = is_writer
        self.accepted_inputs: Inputs | None = None  # to be recorded when the run continues with them
        self.warnings: list[str] = []  # skipped corrupt checkpoints
        self._lock = lock
        self._appenders: dict[str, logs.Appender] = {}
        self._trackers: list[Tracker] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="whet-rows")  # starts with its first task
        self._pending: tuple[int, Future[None]] | None = None  # rollouts that are being written, and their step

    @classmethod
    def create(cls, root: Path, recipe: str, config_yaml: str, *, path: Path | None = None) -> RunDirectory:
        """A new run in `root`, or at `path`, which must be empty or absent."""
        try:
            made = layout.fresh_directory(root, recipe) if path is None else layout.empty_directory(path)
            try:
                lock = layout.begin(made, config_yaml)
            except OSError:
                if path is None:
                    shutil.rmtree(made, ignore_errors=True)
                raise
        except OSError as error:
            why = logs.reason(error)
            raise UserError(f"cannot create a run in {path or root}: {why}; choose another place") from error
        return cls(made, is_writer=True, lock=lock)

    @classmethod
    def open(cls, path: Path, *, is_writer: bool = True) -> RunDirectory:
        """An existing run; the writer removes unfinished files of a killed process."""
        if not (path / layout.CONFIG).is_file():
            raise UserError(f"{path} is not a run directory (no {layout.CONFIG}); name one that whet train made")
        if (path / layout.STAGES).is_dir():
            raise UserError(f"{path} is a pipeline of several runs; name one of them, e.g. {path / layout.STAGES}/NAME")
        if not is_writer:
            return cls(path, is_writer=False, lock=None)
        try:
            run = cls(path, is_writer=True, lock=WriterLock(path / layout.LOCK))
            run._clear()
        except OSError as error:
            raise UserError(f"cannot write to run {path}: {logs.reason(error)}; copy it to another place") from error
        return run

    @classmethod
    def find(cls, path: Path) -> RunDirectory | None:
        """The run at `path`, read-only; None if there is none."""
        return cls.open(path, is_writer=False) if (path / layout.CONFIG).is_file() else None

    @property
    def curves_path(self) -> Path:
        return self.path / layout.CURVES

    @property
    def report_path(self) -> Path:
        return self.path / layout.REPORT

    @property
    def rows_path(self) -> Path:
        return layout.rows_path(self.path)

    def output_path(self, rank: int = 0) -> Path:
        """The log of what reward functions and tasks print in this process."""
        name = Path(layout.OUTPUT)
        return self.path / (name if rank == 0 else f"{name.stem}-rank{rank}{name.suffix}")

    @property
    def recipe(self) -> str:
        return layout.recipe_of(self.path)

    def config_yaml(self) -> str:
        return layout.read_config(self.path)

    def write_config(self, config_yaml: str) -> None:
        if self.is_writer:
            with self._writing(layout.CONFIG):
                logs.write_atomic(self.path / layout.CONFIG, config_yaml.encode())

    def inputs(self) -> Inputs | None:
        """Checksums of the input files; None for a run of an older version."""
        return read_inputs(self.path / layout.INPUTS)

    def write_inputs(self, inputs: Inputs) -> None:
        if self.is_writer:
            with self._writing(layout.INPUTS):
                write_inputs(self.path / layout.INPUTS, inputs)

    def track(self, names: Sequence[str], config: Mapping[str, Any], first_step: int) -> None:
        """Starts these trackers; `first_step` is the first step that will be logged."""
        if self.is_writer:
            with self._writing("tracker files"):
                self._trackers += start_trackers(names, self.path, config, first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds a line to the metrics, which must be reproducible: no clock times."""
        if self.is_writer:
            row = logs.plain_numbers(metrics)
            with self._writing(layout.METRICS):
                self._appender(layout.METRICS).append({"step": step, **row})
                for tracker in self._trackers:
                    tracker.log(step, {name: value for name, value in row.items() if value is not None})

    def log_times(self, step: int, timings: Mapping[str, float]) -> None:
        if self.is_writer:
            with self._writing(layout.TIMINGS):
                self._appender(layout.TIMINGS).append({"step": step, **logs.plain_numbers(timings)})

    def record(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rollouts of a step in the background; `save`, `finish` and `close` wait for it."""
        if self.is_writer:
            self._settle()
            with self._writing(f"{layout.ROLLOUTS} of step {step}"):
                file = self._file(layout.ROLLOUTS, step)
            self._pending = step, self._thread.submit(rollout_index.write_rollouts, file, step, rows)

    def record_answers(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        if self.is_writer:
            kept = list(rows)
            with self._writing(f"{layout.EVALS} of step {step}"):
                logs.write_rows(self._file(layout.EVALS, step), kept)
            self.show(step, "samples/held_out", kept)

    def show(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Shows the first completions of these in the trackers."""
        if not self._trackers or not rows:
            return
        with self._writing("tracker files"):
            for tracker in self._trackers:
                tracker.show(step, name, rows[:SHOWN])

    def write_rows(self, rows: Iterable[Mapping[str, Any]], key: str = "rows") -> None:
        """Writes training rows that this run made, or was given from Python."""
        if self.is_writer:
            with self._writing(f"the rows of {key}"):
                logs.write_rows(layout.rows_path(self.path, key), rows)

    def write_analysis(self, analysis: Mapping[str, Any], picture: bytes) -> Path:
        """Writes the analysis of a reward model as numbers and a picture; returns the picture's path."""
        target = self.path / layout.ANALYSIS_PICTURE
        if self.is_writer:
            with self._writing(layout.ANALYSIS):
                logs.write_atomic(self.path / layout.ANALYSIS, logs.json_bytes(analysis, indent=2) + b"\n")
                logs.write_atomic(target, picture)
        return target

    def metrics(self) -> list[dict[str, Any]]:
        return logs.read_log(self.path / layout.METRICS)

    def timings(self) -> list[dict[str, Any]]:
        return logs.read_log(self.path / layout.TIMINGS)

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        """All rows of a step; `rollout_files` reads those of damaged files, and single ones."""
        files = self.rollout_files()
        rows = list(files.rows(step))
        if files.problems():
            raise RunFailed(files.problems()[0])
        return rows

    def rollout_steps(self) -> list[int]:
        return self.rollout_files().steps()

    def rollout_files(self) -> RolloutFiles:
        self._settle()
        return RolloutFiles(self.path)

    def answers(self, step: int) -> list[dict[str, Any]]:
        files = layout.by_step(self.path / layout.EVALS, layout.ENDINGS[layout.EVALS])
        return logs.read_rows(layout.of_step(step, files, self.path, layout.EVALS))

    def answer_steps(self) -> list[int]:
        return list(layout.by_step(self.path / layout.EVALS, layout.ENDINGS[layout.EVALS]))

    def save(self, step: int, fill: Fill, state: Mapping[str, Any], *, keep: int, delete_first: bool = False) -> Path:
        """Saves a checkpoint with the files that `fill` writes; the newest `keep` stay, others go then or before."""
        target = self.path / layout.CHECKPOINTS / logs.step_name(step)
        if not self.is_writer:
            return target
        self._settle()
        with self._writing(f"checkpoint {target.name}"):
            # First, so that no checkpoint is newer than the logs and rollouts on disk.
            for appender in self._appenders.values():
                appender.sync()
            logs.sync_directory(self.path)
            for tracker in self._trackers:
                tracker.flush()
            logs.made_directory(target.parent)
            if delete_first:
                checkpoints.keep_newest(target.parent, keep - 1)
            checkpoints.write_directory(target, fill, layout.STATE, state)
            checkpoints.mark(target.parent, self.path / layout.SAVED)
            checkpoints.keep_newest(target.parent, keep)
        return target

    @property
    def has_saved(self) -> bool:
        """Whether a checkpoint was ever saved; if none is left, they were lost."""
        return (self.path / layout.SAVED).is_file()

    def latest(self) -> Checkpoint | None:
        """The newest intact checkpoint, None if none was ever saved; corrupt ones are named in `warnings`."""
        directory = self.path / layout.CHECKPOINTS
        checkpoint = checkpoints.newest_intact(directory, self._warn)
        if checkpoint is None and layout.by_step(directory):
            instead = f" with model={self.path}, whose best model is intact" if self.best_defect() is None else ""
            raise RunFailed(
                f"no checkpoint in {directory} is intact, so the run cannot be resumed: start a new one{instead}"
            )
        return checkpoint

    def rewind(self, step: int, *, logged: int | None = None) -> None:
        """Removes everything later than `step` (-1: everything); of the logs, what is later than `logged`, if given."""
        if not self.is_writer:
            return
        self._settle()
        with self._writing(f"rewind to step {step}"):
            self._close_appenders()
            self._clear()
            # Checkpoints first: if killed half-way, the run resumes at or before `step` and rewinds again.
            for path in layout.after(step, layout.by_step(self.path / layout.CHECKPOINTS)):
                checkpoints.discard(path)
            for path in layout.rows_after(step, self.path):
                path.unlink()
            for name in (layout.METRICS, layout.TIMINGS):
                logs.cut_log(self.path / name, step if logged is None else logged)
            checkpoints.mark(self.path / layout.CHECKPOINTS, self.path / layout.SAVED)
            for name in (layout.RESULTS, layout.ANALYSIS, layout.ANALYSIS_PICTURE, layout.RED_TEAM):
                (self.path / name).unlink(missing_ok=True)

    def start_over(self) -> str:
        """Removes everything but the metrics of steps without a checkpoint, which move aside; says so, if any."""
        steps = max((row["step"] for row in self.metrics()), default=0) if self.is_writer else 0
        aside = self.path / layout.ABANDONED
        if steps > max((row["step"] for row in logs.read_log(aside)), default=0):
            with self._writing(layout.ABANDONED):
                self._close_appenders()
                (self.path / layout.METRICS).replace(aside)
        self.rewind(-1)
        if not steps:
            return ""
        return f"no checkpoint was saved in the {steps} steps so far: starting again; their metrics are kept in {aside}"

    def save_best(self, fill: Fill, info: Mapping[str, Any]) -> None:
        """Replaces the best model. Call it before `save`, whose state records it as the best."""
        if self.is_writer:
            with self._writing(layout.BEST):
                checkpoints.write_directory(self.path / layout.BEST, fill, layout.BEST_INFO, info)

    def best_model(self) -> Path | None:
        return checkpoints.current(self.path / layout.BEST)

    def best_defect(self) -> str | None:
        best = self.best_model()
        return "it is missing" if best is None else checkpoints.defect(best)

    def best_info(self) -> dict[str, Any] | None:
        """The `info` that the best model was saved with."""
        best = self.best_model()
        return None if best is None else logs.read_json(best / layout.BEST_INFO)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the final results, which marks the run as finished."""
        if self.is_writer:
            self._settle()
            with self._writing(layout.RESULTS):
                logs.write_sealed(self.path / layout.RESULTS, results)

    @property
    def finished(self) -> bool:
        try:
            return self.results() is not None
        except RunFailed:
            return False  # damaged: resuming writes them again

    @property
    def has_report(self) -> bool:
        return self.report_path.is_file() and self.curves_path.is_file()

    def results(self) -> dict[str, Any] | None:
        """The final results, None before the end."""
        file = self.path / layout.RESULTS
        try:
            return logs.read_sealed(file) if file.is_file() else None
        except RunFailed as error:
            raise RunFailed(f"{error}; whet train {self.path} --resume writes it again") from error

    def fail(self, name: str, payload: Mapping[str, Any]) -> Path:
        """Saves the evidence of a failure; returns the file, for the error.

        Any rank may call it: the one that failed has the example. Name it by rank.
        """
        target = layout.numbered(self.path / layout.FAILURES, name)
        try:
            logs.made_directory(self.path / layout.FAILURES)
            # NaN is the evidence here, so it is written as text.
            logs.write_atomic(target, logs.json_bytes(payload, not_finite=str, indent=2, other=repr) + b"\n")
        except OSError as error:
            raise RunFailed(f"cannot write {target}: {logs.reason(error)}") from error
        return target

    def remove_if_unused(self) -> None:
        """Removes a run without metrics, so that invalid input leaves nothing behind."""
        if self.is_writer and not self.metrics():
            shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Flushes everything and releases the lock."""
        if self._lock is None:
            return
        try:
            self._settle()
            with self._writing("the last lines"):
                self._close_appenders()
                for tracker in self._trackers:
                    tracker.close()
        finally:
            self._thread.shutdown()
            self._trackers = []
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        if self._lock is None:
            raise ValueError(f"run {self.path} is closed")
        try:
            yield
        except WRITE_ERRORS as error:
            good = checkpoints.last_good(self.path / layout.CHECKPOINTS)
            raise RunFailed(f"cannot write {what} in {self.path}: {logs.reason(error)}; {good}") from error

    def _settle(self) -> None:
        """Waits until the last rollouts are on disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._writing(f"{layout.ROLLOUTS} of step {pending[0]}"):
                pending[1].result()

    def _appender(self, name: str) -> logs.Appender:
        if name not in self._appenders:
            self._appenders[name] = logs.Appender(self.path / name)
        return self._appenders[name]

    def _close_appenders(self) -> None:
        while self._appenders:
            self._appenders.popitem()[1].close()

    def _clear(self) -> None:
        for folder in ("", layout.ROLLOUTS, layout.EVALS, layout.CHECKPOINTS, layout.FAILURES):
            checkpoints.recover(self.path / folder)
            logs.remove_leftovers(self.path / folder)

    def _file(self, folder: str, step: int) -> Path:
        return logs.made_directory(self.path / folder) / f"{logs.step_name(step)}{layout.ENDINGS[folder]}"

    def _warn(self, message: str) -> None:
        if self.is_writer and message not in self.warnings:
            sys.stderr.write(f"whet: {escaped(message)}; trying the one before it\n")
        self.warnings += [message] if message not in self.warnings else []
