"""The MLPs of a small policy. On a CPU their layers and gradients are computed beside autograd, with NumPy's tanh.

A policy of a few thousand weights spends its time in the dispatch of single operations, in nodes of a graph, and in
torch's tanh, which takes ten times as long as NumPy's. Products are torch's, so they take the threads that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


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
    """An MLP and its linear head, as tensors that share the memory of the weights."""

    def __init__(self, network: Mlp, head: nn.Linear) -> None:
        layers = [*network.linears, head]
        self._weights = [weight for layer in layers for weight in (layer.weight, layer.bias)]
        self._last, self._is_tanh = len(layers) - 1, network.activation == "tanh"
        self._places = [-1] * len(self._weights)  # in memory, of the tensors
        self._plain: list[Tensor] = []

    def suits(self, rows: Tensor) -> bool:
        """Whether rows and weights are fp32 on a CPU; takes the weights that were moved since the last call."""
        if rows.device.type != "cpu" or rows.dtype is not torch.float32:
            return False
        places = [weight.data_ptr() for weight in self._weights]
        if places != self._places:
            if any(one.device.type != "cpu" or one.dtype is not torch.float32 for one in self._weights):
                return False
            self._places, self._plain = places, [one.detach() for one in self._weights]
        return True

    @torch.no_grad()
    def states(self, rows: Tensor) -> list[Tensor]:
        """The rows and the output of every layer, that of the head last; only for rows that it `suits`."""
        states = [rows]
        for layer in range(self._last + 1):
            state = torch.addmm(self._plain[2 * layer + 1], states[-1], self._plain[2 * layer].T)
            if layer < self._last and self._is_tanh:
                array = state.numpy()
                np.tanh(array, array)
            elif layer < self._last:
                state.relu_()
            states.append(state)
        return states

    @torch.no_grad()
    def set_gradients(self, states: Sequence[Tensor], slope: Tensor) -> None:
        """Sets `grad` of every weight by the states of a pass and the slope of the loss in its outputs."""
        for weight in self._weights:
            weight.grad = torch.empty_like(weight) if weight.grad is None else weight.grad
        for layer in range(self._last, -1, -1):
            torch.mm(slope.T, states[layer], out=self._weights[2 * layer].grad)
            torch.sum(slope, 0, out=self._weights[2 * layer + 1].grad)
            if layer:
                slope, reached = slope @ self._plain[2 * layer], states[layer]
                if self._is_tanh:
                    slope.addcmul_(slope, reached.square(), value=-1.0)
                else:
                    slope.mul_(reached.sign())
