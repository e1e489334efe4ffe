"""The ten broken files, in order."""

from __future__ import annotations

from whet.learn.bugs.broken_loops import LOOPS
from whet.learn.bugs.broken_losses import LOSSES
from whet.learn.exercise import Exercise

BUGS: tuple[Exercise, ...] = (*LOSSES, *LOOPS)
