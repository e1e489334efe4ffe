"""State besides model and optimizer that checkpoints save."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from whet.models.storage.tensor_file import Named, Whole
from whet.train.setup.offloading import size_of


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
