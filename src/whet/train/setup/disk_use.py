"""What a run writes to disk: checkpoints, the best model and rollouts; and what it would with other keys.

Imports no torch: numbers of weights and moments are enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from whet.config import OnlineConfig
from whet.config.loops import Trained
from whet.train.optimizers.state_sizes import moment_bytes, saved_moment_bytes

FP32_BYTES = 4
ROLLOUT_BYTES = 20  # of a sampled token with its id, log-prob and text, compressed


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedSizes:
    """What a checkpoint and the best model hold."""

    weights: int  # bytes of all but moments: policy or adapter, critic, reference, master weights, tokenizer
    moments: int  # how many numbers, of all optimizers
    best: int  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskUse:
    """Bytes of a run directory."""

    checkpoint: int  # one: weights and the state of the optimizer
    kept: int  # checkpoints at the end
    at_once: int  # checkpoints at most, while one is written
    best: int  # the best model, in the dtype of `model.dtype`
    bests: int  # copies of it at most, while one is written
    rollouts: int  # at most, if every completion has rollout.max_tokens

    @property
    def total(self) -> int:
        """At the end of the run."""
        return self.kept * self.checkpoint + self.best + self.rollouts

    @property
    def peak(self) -> int:
        """Of models, at most: while a checkpoint is written, or the best model."""
        return max(self.at_once * self.checkpoint + self.best, self.kept * self.checkpoint + self.bests * self.best)


def disk_use(config: Trained, sizes: SavedSizes, *, done: int = 0) -> DiskUse:
    """The disk use of a run; rollouts of the steps after `done`."""
    save, rollouts = config.save, 0
    if isinstance(config, OnlineConfig):
        recorded = ceil((config.steps - done) / save.rollouts_every_steps)
        tokens = config.rollout.prompts * config.rollout.group * config.rollout.max_tokens
        rollouts = recorded * tokens * ROLLOUT_BYTES
    each = saved_moment_bytes(moment_bytes(config.optimizer.name), save.optimizer)
    written = ceil(config.steps / save.every_steps)
    return DiskUse(
        checkpoint=sizes.weights + ceil(sizes.moments * each),
        kept=min(save.keep, written),
        at_once=min(save.keep + (save.delete_old == "after"), written),
        best=sizes.best,
        bests=2 if config.eval.every_steps else 1,  # without evaluations it is written once
        rollouts=rollouts,
    )


def smaller(config: Trained, sizes: SavedSizes) -> Iterator[tuple[str, Trained]]:
    """Configs whose `save` needs less room, one change after the other and at last all together; by their keys."""
    changes: list[dict[str, Any]] = [
        {"keep": 1},
        *({"optimizer": how} for how in ("bf16", "8bit", "none")),
        {"delete_old": "before"},
    ]
    all_together: dict[str, Any] = {}
    for change in changes:
        found = _changed(config, change)
        if disk_use(found, sizes).peak < disk_use(config, sizes).peak:
            all_together |= change
            yield _keys(change), found
    if len(all_together) > 1:
        yield _keys(all_together), _changed(config, all_together)


def _changed(config: Trained, change: dict[str, Any]) -> Trained:
    return config.model_copy(update={"save": config.save.model_copy(update=change)})


def _keys(change: dict[str, Any]) -> str:
    return " ".join(f"save.{key}={value}" for key, value in change.items())
