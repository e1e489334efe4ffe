"""Protocols of what a loop trains, as the session sees it."""

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
    """What has a state besides the policy's weights that a resumed run needs."""

    def numbers(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None: ...


class Learning(Trainable, Protocol):
    """A model that learns."""

    def state_dict(self) -> dict[str, Tensor]: ...


class Trained(Protocol):
    """What a loop trains, and what is needed to look at it and to save it."""

    @property
    def task(self) -> Task: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def policy(self) -> Learning: ...

    @property
    def engine(self) -> Engine | None: ...  # None: it says nothing, so there is nothing to sample

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def origin(self) -> str: ...

    def sync(self, version: int) -> None: ...

    def save_model(self, directory: Path) -> None: ...

    def saved_weights(self, directory: Path) -> dict[str, Tensor]: ...
