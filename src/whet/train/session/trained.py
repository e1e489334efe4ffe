"""Protocols of trained models and their state, as the session sees them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.engines.engine_protocol import Engine
from whet.models.protocol import Tokenizer
from whet.tasks.protocol import Task
from whet.train.setup.optimizer import Trainable


class Kept(Protocol):
    """Further state of a run (controllers, reference, critic) that checkpoints save."""

    def numbers(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None: ...


class Learning(Trainable, Protocol):
    """A model in training."""

    def state_dict(self) -> dict[str, Tensor]: ...


class Trained(Protocol):
    """The model in training, with what is needed to evaluate and save it."""

    @property
    def task(self) -> Task: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def policy(self) -> Learning: ...

    @property
    def engine(self) -> Engine | None: ...  # None for reward models, which do not generate

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def origin(self) -> str: ...

    def sync(self, version: int) -> None: ...

    def save_model(self, directory: Path) -> None: ...

    def saved_weights(self, directory: Path) -> dict[str, Tensor]: ...
