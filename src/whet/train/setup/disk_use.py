"""What a run writes to disk: checkpoints, the best model and rollouts; and whether the disk has room for it."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.config import OnlineConfig
from whet.config.loops import Training
from whet.errors import UserError
from whet.train.setup.build import Parts
from whet.train.setup.offloading import size_of
from whet.train.setup.optimizer import state_bytes

FP32_BYTES = 4
ROLLOUT_BYTES = 20  # of a sampled token with its id, log-prob and text, compressed
GB = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskUse:
    """Bytes of a run directory."""

    checkpoint: int  # one: fp32 weights and the state of the optimizer
    kept: int  # checkpoints at the end
    best: int  # the best model, in the dtype of `model.dtype`
    rollouts: int  # at most, if every completion has rollout.max_tokens

    @property
    def total(self) -> int:
        """At the end of the run."""
        return self.kept * self.checkpoint + self.best + self.rollouts

    @property
    def peak(self) -> int:
        """Of models, at most: a checkpoint or best model is complete before the one that it replaces is deleted."""
        return (self.kept + 1) * self.checkpoint + 2 * self.best


def disk_use(config: Training, *, weights: int, state: int, others: int, dtype: torch.dtype) -> DiskUse:
    """The disk use of a run.

    `weights` and `state` are bytes of the policy in fp32 and of its optimizer, `others` what else a checkpoint has.
    """
    rollouts = 0
    if isinstance(config, OnlineConfig):
        recorded = ceil(config.steps / config.save.rollouts_every_steps)
        tokens = config.rollout.prompts * config.rollout.group * config.rollout.max_tokens
        rollouts = recorded * tokens * ROLLOUT_BYTES
    return DiskUse(
        checkpoint=weights + state + others,
        kept=min(config.save.keep, ceil(config.steps / config.save.every_steps)),
        best=weights * torch.finfo(dtype).bits // (8 * FP32_BYTES),
        rollouts=rollouts,
    )


def measured_use(config: Training, parts: Parts[Any], others: Iterable[Tensor]) -> DiskUse:
    """The disk use of a run whose models are loaded; `others` are further tensors of its checkpoints."""
    return disk_use(
        config,
        weights=size_of(parts.saved),
        state=state_bytes(parts.policy, config.optimizer),
        others=3 * size_of(others),  # of a critic: its weights, and two moments after the first step
        dtype=parts.dtype if parts.adapter is None else torch.float32,
    )


def require_space(directory: Path, use: DiskUse, note: Callable[[str], None]) -> None:
    """Refuses a run whose models do not fit on the disk; notes one whose rollouts may not."""
    free = shutil.disk_usage(directory).free
    models = f"{use.kept + 1} checkpoints of {use.checkpoint / GB:.3g} GB and the best model, {use.best / GB:.3g} GB"
    if use.peak > free:
        raise UserError(
            f"the run needs {use.peak / GB:.3g} GB on disk ({models}, twice while it is replaced) and {directory} has "
            f"{free / GB:.3g} GB free: free some, lower save.keep, or write the run to another disk"
        )
    if use.peak + use.rollouts > free:
        note(
            f"note: with rollouts the run may need {(use.peak + use.rollouts) / GB:.3g} GB on disk and {directory} has "
            f"{free / GB:.3g} GB free: raise save.rollouts_every_steps, or free some"
        )
