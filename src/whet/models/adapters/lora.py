"""LoRA (Hu et al. 2021, arXiv 2106.09685): y = W x + b + s·B(A x), with W and b frozen.

s is alpha / rank, or alpha / √rank (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732). B begins at 0, so that a new adapter
changes nothing. Plain passes compute the formula as it stands. Passes that read each weight once (fused training
blocks, sampling) read W + s·B·A, folded into the joined copies of the weights: trainer and sampler share them.
W may be quantised (QLoRA, `nf4`): then both passes read what it is dequantised to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.adapters.adapter_targets import ALL_LINEAR, chosen
from whet.models.adapters.nf4 import Matrix, NF4Matrix, dense, frozen_linear
from whet.models.storage.rounding import stochastic_bf16

M = TypeVar("M")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoRAShape:
    """Rank and scale of adapters, and which layers get one."""

    rank: int
    alpha: float
    targets: str | tuple[str, ...] = ALL_LINEAR  # names of layers, or a regular expression of whole names
    rslora: bool = False

    @property
    def scale(self) -> float:
        """s: what B·A is multiplied with."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


class LoRALinear(nn.Module):
    """A frozen linear layer with an adapter; its weights have the names of the layer it replaces."""

    def __init__(self, layer: nn.Linear, *, rank: int, scale: float, generator: torch.Generator) -> None:
        """A is uniform in ±1/√in_features, as in PEFT; B is 0."""
        super().__init__()
        self.in_features, self.out_features, self.scale = layer.in_features, layer.out_features, scale
        self.weight: Matrix = layer.weight
        self.bias = layer.bias
        bound = 1 / math.sqrt(layer.in_features)
        first = torch.empty(rank, layer.in_features).uniform_(-bound, bound, generator=generator)
        device = layer.weight.device
        self.lora_A = nn.Parameter(first.to(device))
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank, device=device))
        self.is_on = True  # off: the base alone

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        outputs = frozen_linear(inputs, self.weight, self.bias)
        if self.is_on:
            a, b = self.lora_A.to(outputs.dtype), self.lora_B.to(outputs.dtype)
            outputs = outputs + self.scale * F.linear(F.linear(inputs, a), b)
        return outputs

    @torch.no_grad()
    def folded(self) -> Tensor:
        """W + s·B·A in fp32, as a new tensor; W if the adapter is off."""
        weight = dense(self.weight).to(torch.float32, copy=not isinstance(self.weight, NF4Matrix))
        return weight.addmm_(self.lora_B, self.lora_A, alpha=self.scale) if self.is_on else weight

    @torch.no_grad()
    def fold_into(self, target: Tensor, generator: torch.Generator) -> None:
        """Writes W + s·B·A in the dtype of the target.

        In bf16 with stochastic rounding: a change below half of the last bit of W would be lost in every element
        at once by rounding to the nearest. Without a change W stays as it is.
        """
        folded = self.folded()
        is_rounded = target.dtype is torch.bfloat16 and self.is_on
        target.copy_(stochastic_bf16(folded, generator) if is_rounded else folded)


def attach(model: nn.Module, shape: LoRAShape, *, seed: int) -> list[str]:
    """Freezes a model and gives its targeted layers new adapters; returns the names of the layers."""
    names = targeted(model, shape.targets)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        parent, _, leaf = name.rpartition(".")
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        adapter = LoRALinear(layer, rank=shape.rank, scale=shape.scale, generator=generator)
        setattr(model.get_submodule(parent), leaf, adapter)
    return names


def targeted(model: nn.Module, targets: str | Sequence[str]) -> list[str]:
    """The names of the linear layers that are meant, in the order of the model.

    As in PEFT: a name stands for every layer that is called so or ends in it; one string that is no name is a regular
    expression of whole names.
    """
    return chosen([name for name, module in model.named_modules() if type(module) is nn.Linear], targets)


def adapters(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    """The adapted layers by name."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoRALinear))


def has_adapters(model: object) -> bool:
    """Whether it is a frozen model with adapters."""
    return isinstance(model, nn.Module) and next(adapters(model), None) is not None


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What training changes, by name: adapters, and what else is not frozen."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """The model without its adapters, for passes without gradients."""
    layers = [layer for _, layer in adapters(model)]
    for layer in layers:
        layer.is_on = False
    try:
        with torch.no_grad():
            yield
    finally:
        for layer in layers:
            layer.is_on = True


def copied(model: M) -> M:
    """A copy; of a model with adapters, a copy of these on the same frozen weights."""
    if not has_adapters(model):
        return copy.deepcopy(model)
    assert isinstance(model, nn.Module)
    shared: dict[int, object] = {id(one): one for one in model.parameters() if not one.requires_grad}
    shared |= {id(one): one for one in model.modules() if isinstance(one, NF4Matrix)}
    return copy.deepcopy(model, shared)


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the merged model by their plain names; the model stays as it is."""
    found = dict(model.state_dict())
    for name, matrix in model.named_modules():
        if isinstance(matrix, NF4Matrix):
            del found[f"{name}.packed"], found[f"{name}.absmax"]
            found[name] = matrix.dequantized()
    for name, layer in adapters(model):
        found[f"{name}.weight"] = layer.folded()
        del found[f"{name}.lora_A"], found[f"{name}.lora_B"]
    return found
