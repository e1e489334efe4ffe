"""The directory of one run. Only this package knows what its files are called.

Whatever a kill leaves, `latest` finds the newest intact checkpoint and `rewind` cuts all else back to it. What follows
is then, byte for byte, what it would have been: metrics and rollouts hold no clocks (timings.jsonl does).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from whet.errors import RunFailed, UserError, escaped
from whet.runs import checkpoints, layout, logs
from whet.runs.checkpoints import Checkpoint, Fill
from whet.runs.lock import WriterLock
from whet.runs.recorded_inputs import Inputs, read_inputs, write_inputs
from whet.runs.trackers import Tracker, start_trackers

WRITE_ERRORS = (OSError, SafetensorError)  # safetensors hides a full disk in an error of its own


class Run:
    """A run directory, made by `create` or `open`; a process that is not the writer writes nothing through it."""

    def __init__(self, path: Path, *, is_writer: bool, lock: WriterLock | None) -> None:
        self.path = path
        self.is_writer = is_writer
        self.accepted_inputs: Inputs | None = None  # to be recorded once the run goes on with them
        self.warnings: list[str] = []  # corrupt checkpoints that were passed over
        self._lock = lock
        self._appenders: dict[str, logs.Appender] = {}
        self._trackers: list[Tracker] = []
        self._rollouts = logs.RowsWriter()
        self._recorded = 0  # the step whose rollouts it was last given

    @classmethod
    def create(
        cls, root: Path, recipe: str, config_yaml: str, *, is_writer: bool = True, path: Path | None = None
    ) -> Run:
        """A new run in `root`, or exactly at `path`, which must be empty or absent."""
        if not is_writer:
            if path is None:
                raise ValueError("a process that does not write must be given the path of the run")
            return cls(path, is_writer=False, lock=None)
        try:
            made = layout.fresh_directory(root, recipe) if path is None else layout.empty_directory(path)
            lock = WriterLock(made / layout.LOCK, made)
            try:
                logs.remove_leftovers(made)
                logs.write_atomic(made / layout.CONFIG, config_yaml.encode())  # last: it makes the directory a run
            except OSError:
                lock.release()
                if path is None:
                    shutil.rmtree(made, ignore_errors=True)
                raise
        except OSError as error:
            why = logs.reason(error)
            raise UserError(f"cannot create a run in {path or root}: {why}; choose another place") from error
        return cls(made, is_writer=True, lock=lock)

    @classmethod
    def open(cls, path: Path, *, is_writer: bool = True) -> Run:
        """An existing run; the writer clears away what a killed process had not finished."""
        if not (path / layout.CONFIG).is_file():
            raise UserError(f"{path} is not a run directory (no {layout.CONFIG}); name one that whet train made")
        if (path / layout.STAGES).is_dir():
            raise UserError(f"{path} is a pipeline of several runs; name one of them, e.g. {path / layout.STAGES}/NAME")
        if not is_writer:
            return cls(path, is_writer=False, lock=None)
        try:
            run = cls(path, is_writer=True, lock=WriterLock(path / layout.LOCK, path))
            run._clear()
        except OSError as error:
            raise UserError(f"cannot write to run {path}: {logs.reason(error)}; copy it to another place") from error
        return run

    @classmethod
    def find(cls, path: Path) -> Run | None:
        """The run at a place, to read; None where none was begun."""
        return cls.open(path, is_writer=False) if (path / layout.CONFIG).is_file() else None

    @property
    def curves_path(self) -> Path:
        """Where the picture of the curves belongs."""
        return self.path / layout.CURVES

    @property
    def report_path(self) -> Path:
        """Where the report belongs."""
        return self.path / layout.REPORT

    @property
    def rows_path(self) -> Path:
        """Where the rows belong that a run makes for others to learn from."""
        return layout.rows_path(self.path)

    @property
    def recipe(self) -> str:
        """The name of the recipe that the run was made from."""
        return layout.recipe_of(self.path)

    def config_yaml(self) -> str:
        """The resolved configuration."""
        return layout.read_config(self.path)

    def inputs(self) -> Inputs | None:
        """The files that the run was made from, by checksums; None where an older version began it."""
        return read_inputs(self.path / layout.INPUTS)

    def write_inputs(self, inputs: Inputs) -> None:
        """Records what the run is made from."""
        if self.is_writer:
            with self._writing(layout.INPUTS):
                write_inputs(self.path / layout.INPUTS, inputs)

    def track(self, names: Sequence[str], config: Mapping[str, Any], first_step: int) -> None:
        """From now on metrics also go to these trackers; `first_step` is the first step that will be logged."""
        if self.is_writer:
            with self._writing("tracker files"):
                self._trackers += start_trackers(names, self.path, config, first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds a line to the metrics, which must be the same in every repetition of the run."""
        if self.is_writer:
            row = logs.plain_numbers(metrics)
            with self._writing(layout.METRICS):
                self._appender(layout.METRICS).append({"step": step, **row})
                for tracker in self._trackers:
                    tracker.log(step, {name: value for name, value in row.items() if value is not None})

    def log_times(self, step: int, timings: Mapping[str, float]) -> None:
        """Adds a line to the timings."""
        if self.is_writer:
            with self._writing(layout.TIMINGS):
                self._appender(layout.TIMINGS).append({"step": step, **logs.plain_numbers(timings)})

    def record(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rollouts of a step, while the next step begins; `save`, `finish` and `close` wait for the end."""
        if self.is_writer:
            self._settle()
            with self._writing(f"{layout.ROLLOUTS} of step {step}"):
                self._rollouts.write(self._file(layout.ROLLOUTS, step), rows)
                self._recorded = step

    def record_answers(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the answers that were evaluated at a step."""
        if self.is_writer:
            with self._writing(f"{layout.EVALS} of step {step}"):
                logs.write_rows(self._file(layout.EVALS, step), rows)

    def write_rows(self, rows: Iterable[Mapping[str, Any]], key: str = "rows") -> None:
        """Writes the rows that others learn from, or those that this run was given in Python."""
        if self.is_writer:
            with self._writing(f"the rows of {key}"):
                logs.write_rows(layout.rows_path(self.path, key), rows)

    def write_analysis(self, analysis: Mapping[str, Any], picture: bytes) -> Path:
        """Writes where a reward model is right and wrong, as numbers and as a picture; returns the picture's place."""
        target = self.path / layout.ANALYSIS_PICTURE
        if self.is_writer:
            with self._writing(layout.ANALYSIS):
                logs.write_atomic(self.path / layout.ANALYSIS, logs.json_bytes(analysis, indent=2) + b"\n")
                logs.write_atomic(target, picture)
        return target

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return logs.read_log(self.path / layout.METRICS)

    def timings(self) -> list[dict[str, Any]]:
        """The lines of timings.jsonl."""
        return logs.read_log(self.path / layout.TIMINGS)

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        """The rollouts of a step."""
        self._settle()
        return self._rows(layout.ROLLOUTS, step)

    def rollout_steps(self) -> list[int]:
        """The steps whose rollouts are recorded."""
        self._settle()
        return list(self._files(layout.ROLLOUTS))

    def answers(self, step: int) -> list[dict[str, Any]]:
        """The answers that were evaluated at a step."""
        return self._rows(layout.EVALS, step)

    def answer_steps(self) -> list[int]:
        """The steps whose answers are recorded."""
        return list(self._files(layout.EVALS))

    def save(self, step: int, fill: Fill, state: Mapping[str, Any], *, keep: int) -> Path:
        """Makes a checkpoint of the files that `fill` writes into a directory, and keeps the newest `keep`."""
        if keep < 1:
            raise ValueError(f"keep is {keep}; a run keeps at least one checkpoint")
        target = self.path / layout.CHECKPOINTS / logs.step_name(step)
        if not self.is_writer:
            return target
        self._settle()
        with self._writing(f"checkpoint {target.name}"):
            # First, so that a checkpoint never outlives the lines and rollouts that lead up to it.
            for appender in self._appenders.values():
                appender.sync()
            logs.sync_directory(self.path)
            for tracker in self._trackers:
                tracker.flush()
            checkpoints.write_directory(self._inside(layout.CHECKPOINTS) / target.name, fill, layout.STATE, state)
            checkpoints.mark(target.parent, self.path / layout.SAVED)  # not before there is something to miss
            checkpoints.keep_newest(target.parent, keep)
        return target

    @property
    def has_saved(self) -> bool:
        """Whether a checkpoint was ever made; where none is left, they are lost."""
        return (self.path / layout.SAVED).is_file()

    def latest(self) -> Checkpoint | None:
        """The newest intact checkpoint, None when none was ever made; corrupt ones are named in `warnings`."""
        directory = self.path / layout.CHECKPOINTS
        checkpoint = checkpoints.newest_intact(directory, self._warn)
        if checkpoint is None and layout.by_step(directory):
            how = f"start a new one{self._instead()}"
            raise RunFailed(f"no checkpoint in {directory} is intact, so the run cannot be resumed: {how}")
        return checkpoint

    def _instead(self) -> str:
        """Where a new run may begin, if the best model is whole."""
        return f" with model={self.path}, whose best model is whole" if self.best_defect() is None else ""

    def rewind(self, step: int) -> None:
        """Cuts off everything later than `step`; -1 cuts off everything."""
        if not self.is_writer:
            return
        self._settle()
        with self._writing(f"rewind to step {step}"):
            self._close_appenders()
            self._clear()
            # Checkpoints first: killed half-way, the run is resumed from `step` or before and rewound again.
            for path in layout.after(step, layout.by_step(self.path / layout.CHECKPOINTS)):
                checkpoints.discard(path)
            for folder in layout.ENDINGS:
                for path in layout.after(step, self._files(folder)):
                    path.unlink()
            for name in (layout.METRICS, layout.TIMINGS):
                logs.cut_log(self.path / name, step)
            checkpoints.mark(self.path / layout.CHECKPOINTS, self.path / layout.SAVED)
            for name in (layout.RESULTS, layout.ANALYSIS, layout.ANALYSIS_PICTURE):
                (self.path / name).unlink(missing_ok=True)

    def save_best(self, fill: Fill, info: Mapping[str, Any]) -> None:
        """Replaces the best model. Call it before `save`, whose state remembers that it was the best."""
        if self.is_writer:
            with self._writing(layout.BEST):
                checkpoints.write_directory(self.path / layout.BEST, fill, layout.BEST_INFO, info)

    def best_model(self) -> Path | None:
        """The directory of the best model so far."""
        return checkpoints.standing(self.path / layout.BEST)

    def best_defect(self) -> str | None:
        """What is wrong with the best model, or None."""
        best = self.best_model()
        return "it is gone" if best is None else checkpoints.defect(best)

    def best_info(self) -> dict[str, Any] | None:
        """What was said of the best model when it was saved."""
        best = self.best_model()
        return None if best is None else logs.read_json(best / layout.BEST_INFO)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the final results, which also marks the run as finished."""
        if self.is_writer:
            self._settle()
            with self._writing(layout.RESULTS):
                logs.write_sealed(self.path / layout.RESULTS, results)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, and its results can be read."""
        try:
            return self.results() is not None
        except RunFailed:
            return False  # damaged: resuming writes them again

    @property
    def has_report(self) -> bool:
        """Whether the report and its picture are there."""
        return self.report_path.is_file() and self.curves_path.is_file()

    def results(self) -> dict[str, Any] | None:
        """The final results, None before the end."""
        file = self.path / layout.RESULTS
        try:
            return logs.read_sealed(file) if file.is_file() else None
        except RunFailed as error:
            raise RunFailed(f"{error}; whet train {self.path} --resume writes it again") from error

    def fail(self, name: str, payload: Mapping[str, Any]) -> Path:
        """Keeps what a run failed on; returns the file to name in the error.

        The one file that any process may write: whoever failed holds the example. Name it by rank.
        """
        target = layout.numbered(self.path / layout.FAILURES, name)
        try:
            self._inside(layout.FAILURES)
            # Here nan is the very thing to see, so it is spelt out.
            logs.write_atomic(target, logs.json_bytes(payload, not_finite=str, indent=2, other=repr) + b"\n")
        except OSError as error:
            raise RunFailed(f"cannot write {target}: {logs.reason(error)}") from error
        return target

    def remove_if_unused(self) -> None:
        """Removes a run in which nothing was ever logged, so that wrong input leaves nothing behind."""
        if self.is_writer and not self.metrics():
            shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Ends writing and lets another process write."""
        if self._lock is None:
            return
        try:
            self._settle()
            with self._writing("the last lines"):
                self._close_appenders()
                for tracker in self._trackers:
                    tracker.close()
        finally:
            self._rollouts.close()
            self._trackers = []
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Run:
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
        """Returns when the rollouts that were last recorded are on the disk."""
        if self._lock is not None:
            with self._writing(f"{layout.ROLLOUTS} of step {self._recorded}"):
                self._rollouts.wait()

    def _appender(self, name: str) -> logs.Appender:
        if name not in self._appenders:
            self._appenders[name] = logs.Appender(self.path / name)
        return self._appenders[name]

    def _close_appenders(self) -> None:
        while self._appenders:
            self._appenders.popitem()[1].close()

    def _inside(self, folder: str) -> Path:
        if not (self.path / folder).is_dir():
            (self.path / folder).mkdir()
            logs.sync_directory(self.path)
        return self.path / folder

    def _clear(self) -> None:
        for folder in ("", layout.ROLLOUTS, layout.EVALS, layout.CHECKPOINTS, layout.FAILURES):
            checkpoints.recover(self.path / folder)
            logs.remove_leftovers(self.path / folder)

    def _files(self, folder: str) -> dict[int, Path]:
        return layout.by_step(self.path / folder, layout.ENDINGS[folder])

    def _file(self, folder: str, step: int) -> Path:
        return self._inside(folder) / f"{logs.step_name(step)}{layout.ENDINGS[folder]}"

    def _rows(self, folder: str, step: int) -> list[dict[str, Any]]:
        files = self._files(folder)
        if step not in files:
            known = ", ".join(map(str, files)) or "none"
            raise UserError(f"run {self.path} has no {folder} of step {step}; it has those of steps: {known}")
        return logs.read_rows(files[step])

    def _warn(self, message: str) -> None:
        if self.is_writer and message not in self.warnings:
            sys.stderr.write(f"whet: {escaped(message)}; trying the one before it\n")
        self.warnings += [message] if message not in self.warnings else []
