"""What a session is given: the built parts of a run, and objects whose state checkpoints save besides."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.models.storage.tensor_file import Named, Whole
from whet.train.setup.offloading import size_of


class SessionParts(Protocol):
    """What a session reads of the parts of a run: `train.setup.build.Parts`, or those of a policy without text."""

    @property
    def policy(self) -> Any: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def engine(self) -> Any:
        """What samples for evaluations; None if a session has its own measure."""

    @property
    def evaluation(self) -> Mapping[str, Any]: ...

    @property
    def conversing(self) -> Any:
        """What plays tasks in turns; None where nothing generates text."""

    @property
    def tokenizer(self) -> Any:
        """None for a policy without text."""

    @property
    def adapter(self) -> Any: ...

    @property
    def origin(self) -> str: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def measure(self) -> Callable[[Any], dict[str, float]]: ...

    @property
    def saved(self) -> Sequence[Tensor]: ...

    def save_model(self, directory: Path | None) -> None: ...

    def export_model(self, directory: Path | None) -> None: ...

    def restore_model(self, directory: Path) -> None: ...


class Checkpointed(ABC):
    """An object with state: numbers in state.json, tensors in a file of their own."""

    def numbers(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def items(self, whole: Whole) -> Named:
        """`tensors` one by one, made of whole ones: for models that are spread over processes."""
        return ((name, whole(tensor)) for name, tensor in self.tensors().items())

    def saved_sizes(self) -> tuple[int, int]:
        """Bytes of its weights, and the number of its moments, in a checkpoint of a run that has begun to train."""
        return size_of(self.tensors().values()), 0

    @abstractmethod
    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Takes over what `numbers` and `tensors` gave."""


class OwnFiles(Checkpointed):
    """With state that is too large to be written anew for every checkpoint."""

    @abstractmethod
    def write_files(self, directory: Path) -> None:
        """Puts its files into the directory of a checkpoint, which is not complete yet."""

    @abstractmethod
    def read_files(self, directory: Path) -> None:
        """Takes over what `write_files` wrote, after `restore`."""
