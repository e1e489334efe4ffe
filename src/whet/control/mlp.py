"""The MLPs of a small policy. On a CPU their layers and gradients are computed by NumPy, beside autograd.

A policy of a few thousand weights spends its time in the dispatch of single operations, in nodes of a graph, and in
torch's tanh, which takes ten times as long as NumPy's. Elsewhere, and for other dtypes, the layers run in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
Array = NDArray[np.float32]


class Mlp(nn.Sequential):
    """Linear layers, each followed by the activation."""

    def __init__(self, sizes: Sequence[int], activation: str) -> None:
        pairs = pairwise(sizes)
        super().__init__(*(part for a, b in pairs for part in (nn.Linear(a, b), ACTIVATIONS[activation]())))
        self.activation = activation

    @property
    def linears(self) -> list[nn.Linear]:
        """The layers with weights."""
        return [one for one in self if isinstance(one, nn.Linear)]


class HeadedMlp:
    """An MLP and its linear head as arrays, which share the memory of the weights."""

    def __init__(self, network: Mlp, head: nn.Linear) -> None:
        layers = [*network.linears, head]
        self._weights = [weight for layer in layers for weight in (layer.weight, layer.bias)]
        self._last, self._is_tanh = len(layers) - 1, network.activation == "tanh"
        self._places = [-1] * len(self._weights)  # in memory, of the arrays
        self._arrays: list[Array] = []
        self._gradients: list[Tensor | None] = []
        self._slopes: list[Array] = []  # the memory of the gradients

    def suits(self, rows: Tensor) -> bool:
        """Whether rows and weights are arrays of a CPU; takes the weights that were moved since the last call."""
        if rows.device.type != "cpu" or rows.dtype is not torch.float32:
            return False
        places = [weight.data_ptr() for weight in self._weights]
        if places != self._places:
            if any(one.device.type != "cpu" or one.dtype is not torch.float32 for one in self._weights):
                return False
            self._places, self._arrays = places, [one.detach().numpy() for one in self._weights]
        return True

    def states(self, rows: Tensor) -> list[Array]:
        """The rows and the output of every layer, that of the head last; only for rows that it `suits`."""
        states = [rows.numpy()]
        for layer in range(self._last + 1):
            state = states[-1] @ self._arrays[2 * layer].T
            state += self._arrays[2 * layer + 1]
            if layer < self._last:
                np.tanh(state, state) if self._is_tanh else np.maximum(state, 0.0, state)
            states.append(state)
        return states

    def set_gradients(self, states: Sequence[Array], slope: Array) -> None:
        """Sets `grad` of every weight by the states of a pass and the slope of the loss in its outputs."""
        self._take_gradients()
        ones = np.ones(len(slope), np.float32)
        for layer in range(self._last, -1, -1):
            np.matmul(slope.T, states[layer], self._slopes[2 * layer])
            np.matmul(ones, slope, self._slopes[2 * layer + 1])
            if layer:
                weight, reached = self._arrays[2 * layer], states[layer]
                slope = slope * weight if len(weight) == 1 else slope @ weight
                slope *= 1.0 - reached * reached if self._is_tanh else reached > 0

    def _take_gradients(self) -> None:
        """The tensors that gradients are written to, where they are other ones than before."""
        found = [weight.grad for weight in self._weights]
        if not self._slopes or any(
            new is None or new is not old for new, old in zip(found, self._gradients, strict=True)
        ):
            for weight in self._weights:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            self._gradients = [weight.grad for weight in self._weights]
            self._slopes = [one.numpy() for one in self._gradients if one is not None]
