"""Whether the disk has room for a run: said before it starts or resumes, and refused if its models do not fit."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from whet.config.loops import Acting, Trained
from whet.errors import UserError
from whet.models.protocol import Tokenizer
from whet.runs.checkpoints import model_bytes
from whet.runs.directory import RunDirectory
from whet.runs.logs import bytes_below
from whet.train.optimizers.optimizer import master_bytes, moment_count
from whet.train.session.checkpointed import SessionParts
from whet.train.setup.disk_use import DiskUse, SavedSizes, disk_use, smaller
from whet.train.setup.offloading import size_of

UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
MOST_OFFERS = 4


def measured_sizes(config: Trained, parts: SessionParts, others: Iterable[tuple[int, int]]) -> SavedSizes:
    """The sizes of a run whose models are loaded; `others`: bytes and moments of what else its checkpoints have."""
    more = list(others)
    policy, files = parts.policy, _files_bytes(parts.tokenizer)
    exported = torch.float32 if parts.adapter is not None else parts.dtype
    return SavedSizes(
        weights=size_of(parts.saved) + master_bytes(policy, config.optimizer) + files + sum(size for size, _ in more),
        moments=moment_count(policy, config.optimizer) + sum(count for _, count in more),
        best=sum(tensor.numel() for tensor in parts.saved) * exported.itemsize + files,
    )


def require_space(run: RunDirectory, config: Trained, sizes: SavedSizes, *, done: int) -> list[str]:
    """What the run takes, as notes for the user; refuses one whose models do not fit.

    A resumed run, which has made `done` steps, has a part of it on disk already.
    """
    use, free, there = disk_use(config, sizes, done=done), shutil.disk_usage(run.path).free, model_bytes(run.path)
    needed = _needed(config, sizes, there)
    if needed > free:
        raise UserError(_refusal(run.path, config, sizes, free=free, there=there))
    rollouts = f", rollouts up to {size(use.rollouts)}" if use.rollouts else ""
    already = f"{size(there)} of it there already, " if there else ""
    notes = [f"disk: at most {size(use.peak + use.rollouts)}: {_models(use)}{rollouts}; {already}{size(free)} free"]
    if needed + use.rollouts > free:
        notes.append(
            f"note: with rollouts the run may need {size(needed + use.rollouts)} on disk and {run.path} has "
            f"{size(free)} free: raise save.rollouts_every_steps, or free some"
        )
    if config.save.delete_old == "before":
        notes.append(f"note: save.delete_old=before: {_danger(config.save.keep)}")
    return notes


def size(count: float) -> str:
    """Bytes for people."""
    unit, factor = next((one for one in UNITS if count >= one[1]), UNITS[-1])
    return f"{count / factor:.3g} {unit}"


def _needed(config: Trained, sizes: SavedSizes, there: int) -> int:
    """Bytes of models beyond those that are there."""
    use = disk_use(config, sizes)
    return max(use.peak - there, use.checkpoint if config.save.delete_old == "after" else 0)


def _refusal(path: Path, config: Trained, sizes: SavedSizes, *, free: int, there: int) -> str:
    """How much is missing, and the keys with which the run would fit."""
    known = {keys: (other, _needed(other, sizes, there)) for keys, other in smaller(config, sizes)}
    offers = [
        f"set {keys} ({size(needed)}{_price(config, other)})"
        for keys, (other, needed) in known.items()
        if needed <= free
    ]
    if not offers and not isinstance(config, Acting) and config.model.lora is None and config.model.new is None:
        offers = ["train adapters, model.lora=16, which are all that is saved then"]
    needs, models = size(_needed(config, sizes, there)), _models(disk_use(config, sizes))
    ways = ", or ".join(["free some", "write the run to another disk", *offers[:MOST_OFFERS]])
    return f"the run needs {needs} on disk ({models}) and {path} has {size(free)} free: {ways}"


def _models(use: DiskUse) -> str:
    many = f"{use.at_once} checkpoints of {size(use.checkpoint)} at a time"
    one = f"1 checkpoint of {size(use.checkpoint)}"
    twice = " (two while it is replaced)" if use.bests > 1 else ""
    return f"{many if use.at_once > 1 else one}, a best model of {size(use.best)}{twice}"


def _price(before: Trained, now: Trained) -> str:
    """What a change costs apart from disk."""
    is_exact = now.save.optimizer == before.save.optimizer
    costs = [] if is_exact else ["a resumed run is then not bit-identical"]
    costs += [] if now.save.delete_old == before.save.delete_old else [_danger(now.save.keep)]
    return "".join(f"; {cost}" for cost in costs)


def _danger(keep: int) -> str:
    left = "no checkpoint" if keep == 1 else f"{keep - 1} older checkpoint{'s' * (keep > 2)}"
    return f"a crash while a checkpoint is written leaves {left} to resume from"


def _files_bytes(tokenizer: Tokenizer | None) -> int:
    """Bytes of the tokenizer's files, which every saved language model has."""
    if tokenizer is None:
        return 0
    with TemporaryDirectory() as directory:
        tokenizer.save(Path(directory))
        return bytes_below(Path(directory))
