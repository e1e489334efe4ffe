"""The files of a checkpoint: model, optimizer, and what else has state. Every rank gathers, one of them writes."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from whet.config.parts import SavedOptimizer
from whet.distributed.world import World
from whet.models.storage.tensor_file import Items, StoredItems, has_any, write_items
from whet.runs.checkpoints import Checkpoint
from whet.train.optimizers.optimizer import optimizer_items, restore_optimizer
from whet.train.optimizers.saved_moments import is_rounded
from whet.train.session.checkpointed import Checkpointed, OwnFiles, SessionParts

MODEL, OPTIMIZER = "model", "optimizer"


def write_checkpoint(
    directory: Path | None, parts: SessionParts, kept: Mapping[str, Checkpointed], how: SavedOptimizer, world: World
) -> None:
    """Fills the directory of a checkpoint; without one this rank takes part in gathering alone."""
    if directory is not None:
        (directory / MODEL).mkdir()
    parts.save_model(None if directory is None else directory / MODEL)
    items: dict[str, Items] = {OPTIMIZER: partial(optimizer_items, parts.optimizer, parts.policy, how)}
    items |= {name: one.items for name, one in kept.items() if has_any(one.items)}
    for name, some in items.items():
        write_items(None if directory is None else _file(directory, name), some, world.sharding.whole)
    if directory is not None:
        for one in kept.values():
            if isinstance(one, OwnFiles):
                one.write_files(directory)


def read_checkpoint(checkpoint: Checkpoint, parts: SessionParts, kept: Mapping[str, Checkpointed]) -> bool:
    """Restores what `write_checkpoint` wrote; returns whether it rounded moments of an optimizer."""
    parts.restore_model(checkpoint.path / MODEL)
    with StoredItems(_file(checkpoint.path, OPTIMIZER)) as tensors:
        restore_optimizer(parts.optimizer, parts.policy, tensors)
        rounded = is_rounded(tensors)
    for name, one in kept.items():
        with StoredItems(_file(checkpoint.path, name)) as tensors:
            one.restore(checkpoint.state["kept"][name], tensors)
            rounded |= is_rounded(tensors)
        if isinstance(one, OwnFiles):
            one.read_files(checkpoint.path)
    return rounded


def _file(directory: Path, name: str) -> Path:
    return directory / f"{name}.safetensors"
