"""Whether the disk has room for all runs of an experiment, which stay there side by side."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from whet.errors import UserError
from whet.train.session.disk_space import size
from whet.train.setup.disk_use import DiskUse


def require_room(uses: Iterable[DiskUse | None], directory: Path, note: Callable[[str], None]) -> None:
    """Says what new runs take in all; refuses them if their models do not fit. None: a run that is not known yet.

    Each run looks again before it starts, when its models are loaded.
    """
    runs = list(uses)
    known = [use for use in runs if use is not None]
    if len(runs) < 2 or not known:
        return
    models = sum(use.total - use.rollouts for use in known) + max(use.peak - use.total + use.rollouts for use in known)
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    rollouts, free = sum(use.rollouts for use in known), shutil.disk_usage(existing).free
    more = "" if len(known) == len(runs) else f" (without {len(runs) - len(known)} whose size is not known yet)"
    if models > free:
        raise UserError(
            f"{len(runs)} runs need {size(models)} on disk{more} and {directory} has {size(free)} free: free some, "
            "write them to another disk, lower save.keep, or set save.optimizer=8bit, with which resumed runs are not "
            "bit-identical"
        )
    written = f", rollouts up to {size(rollouts)}" if rollouts else ""
    note(f"disk: {len(runs)} runs take at most {size(models + rollouts)}{more}{written}; {size(free)} free")
