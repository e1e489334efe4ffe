"""Failures of the reward that a recipe allows: counted over the run, written to disk, told once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from whet.distributed.world import World
from whet.errors import RunFailed
from whet.runs.directory import RunDirectory
from whet.tasks.grading.failures import GradingFailed, Tolerance
from whet.train.session.callbacks import Progress
from whet.train.session.checkpointed import Checkpointed


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
        name = "reward" if self._world.size == 1 else f"reward-rank{self._world.rank}"
        for failure in failures:
            path = self._run.fail(name, {"step": step, "where": where, "error": str(failure), **failure.culprit})
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
