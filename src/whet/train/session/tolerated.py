"""Failures on disk: those of the reward that a recipe allows, counted over the run and told once; those that end it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.distributed.world import RankLost, World
from whet.errors import RunFailed, UserError
from whet.runs.directory import RunDirectory
from whet.tasks.grading.failures import GradingFailed, Tolerance
from whet.tasks.loading import TaskFailed
from whet.train.optimizers.optimizer import NotFinite
from whet.train.session.callbacks import Progress
from whet.train.session.checkpointed import Checkpointed
from whet.user_code import by_lines, frames_of, one_line

OTHER = "error"  # begins the name of the file about an error of no kind of its own


class RewardFailures(Checkpointed):
    """Rollouts on which the reward failed, of all ranks; at most `reward.allowed_failures` in the whole run.

    Held-out answers are counted for each evaluation anew: the same answer may fail every time.
    """

    def __init__(self, allowed: int, run: RunDirectory, world: World, progress: Progress) -> None:
        self.tolerance = Tolerance(allowed)
        self._run, self._world, self._progress = run, world, progress
        self._is_told = False

    @property
    def kept(self) -> "RewardFailures | None":
        """For checkpoints; None where no failure is allowed, so that there is nothing to keep."""
        return self if self.tolerance.allowed else None

    def of_rollouts(self, step: int) -> int:
        """After rollouts were scored: the failures of all ranks; RunFailed if they are too many together."""
        found = self.tolerance.take()
        total = int(self._world.sum(torch.tensor(float(len(found)), dtype=torch.float64)))
        self.tolerance.used += total
        if self.tolerance.used > self.tolerance.allowed:
            raise found[-1] if found else RunFailed(f"the reward failed more than {self.tolerance.allowed} times")
        self._write(found, step, f"step {step}")
        return total

    @contextmanager
    def evaluating(self, step: int) -> Iterator[None]:
        """Around the scores of an evaluation; eval/scored states how many answers have one."""
        before, self.tolerance.used = self.tolerance.used, 0
        try:
            yield
        finally:
            self.tolerance.used = before
        self._write(self.tolerance.take(), step, f"evaluation after step {step}")

    def _write(self, failures: Sequence[GradingFailed], step: int, where: str) -> None:
        for failure in failures:
            path = _written(self._run, self._world, failure.kind, failure, failure.culprit, step=step, where=where)
            if not self._is_told:
                self._progress.note(
                    f"warning: {where}: {failure}; this completion is left out (reward.allowed_failures is "
                    f"{self.tolerance.allowed}), see {path}; the next ones are written there without a warning"
                )
                self._is_told = True

    def numbers(self) -> dict[str, Any]:
        return {"used": self.tolerance.used}

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        self.tolerance.used = numbers["used"]


def keep_failure(
    error: BaseException | None, run: RunDirectory, world: World, *, step: int, where: str, began: bool
) -> str:
    """Writes what ended a run to disk; of an example or a batch that it failed on also says, for the error, where.

    Any other error is written with its traceback, so that one is told later why the run ended; not that of a run that
    never `began`.
    """
    if isinstance(error, GradingFailed | TaskFailed | NotFinite):
        return f"; see {_written(run, world, error.kind, error, error.culprit, step=step, where=where)}"
    if began and isinstance(error, Exception) and not isinstance(error, RankLost):  # the lost rank has its own error
        with suppress(RunFailed):  # the disk may be what failed
            _written(run, world, OTHER, error, by_lines(frames_of(error)), step=step, where=where)
    return ""


def _written(
    run: RunDirectory, world: World, kind: str, error: Exception, more: Mapping[str, Any], *, step: int, where: str
) -> Path:
    name = kind if world.size == 1 else f"{kind}-rank{world.rank}"
    said = str(error) if isinstance(error, RunFailed | UserError) else one_line(error)
    return run.fail(name, {"step": step, "where": where, "error": said, **more})
