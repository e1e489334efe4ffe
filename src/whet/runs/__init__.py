"""The run directory: the sole owner of its paths, of checkpoints, logs and trackers."""

from whet.runs.checkpoints import Checkpoint
from whet.runs.directory import Run
from whet.runs.interrupt import Interrupt

__all__ = ["Checkpoint", "Interrupt", "Run"]
