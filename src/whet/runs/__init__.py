"""The run directory: paths, checkpoints, logs and trackers."""

from whet.runs.checkpoints import Checkpoint
from whet.runs.directory import Run
from whet.runs.interrupt import Interrupt

__all__ = ["Checkpoint", "Interrupt", "Run"]
