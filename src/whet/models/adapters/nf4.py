"""QLoRA's frozen matrices in four bits (Dettmers et al. 2023, arXiv 2305.14314, §3): NF4, through bitsandbytes.

A matrix is read row by row in blocks of 64 weights. A block keeps its largest magnitude (absmax, fp32) and, for every
weight, four bits: which of 16 quantiles of a normal distribution, scaled to [−1, 1], is nearest to weight / absmax.
Products read quantile · absmax, in the dtype that the matrix had before. There is no double quantisation: absmax stays
in fp32, half a bit for each weight.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.imports import optional_package

BLOCK = 64  # weights with one absmax


def _bitsandbytes() -> Any:
    """bitsandbytes.functional; its import warns of a CPU kernel that is not used here."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    remedy = "pip install 'whet[qlora]'"
    return optional_package("bitsandbytes", "model.lora.quantization=nf4", remedy=remedy).functional


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """→ two weights to a byte (uint8), and absmax of every block (fp32); zeros fill up the last block."""
    flat = weight.detach().reshape(-1)
    # In rows of one block, which is the same order of blocks: on a CPU bitsandbytes 0.50 dequantises rows that are no
    # multiple of a block to wrong numbers, and compiles a function for those of odd length.
    rows = F.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    packed, state = _bitsandbytes().quantize_4bit(rows, blocksize=BLOCK, quant_type="nf4")
    return packed, state.absmax


def dequantize(packed: Tensor, absmax: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """What `quantize` stored of a matrix with this shape, as a new tensor."""
    functional = _bitsandbytes()
    state = functional.QuantState(
        absmax=absmax, shape=torch.Size((len(absmax), BLOCK)), dtype=dtype, blocksize=BLOCK, quant_type="nf4"
    )
    rows: Tensor = functional.dequantize_4bit(packed, state)
    return rows.view(-1)[: shape.numel()].view(shape)


class NF4Matrix(nn.Module):
    """A frozen matrix in NF4; stands where a layer has its `weight`."""

    packed: Tensor
    absmax: Tensor

    def __init__(self, weight: Tensor) -> None:
        """Quantises on the device of the weight."""
        super().__init__()
        self.shape, self.dtype = weight.shape, weight.dtype  # as they are dequantised
        packed, absmax = quantize(weight)
        self.register_buffer("packed", packed)
        self.register_buffer("absmax", absmax)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def device(self) -> torch.device:
        return self.packed.device

    def dequantized(self) -> Tensor:
        """A new tensor with the values that products read."""
        return dequantize(self.packed, self.absmax, self.shape, self.dtype)


Matrix = Tensor | NF4Matrix  # of a frozen layer


def dense(weight: Matrix) -> Tensor:
    """The matrix as a tensor; a new one if it is quantised."""
    return weight.dequantized() if isinstance(weight, NF4Matrix) else weight.detach()


class NF4Linear(nn.Module):
    """A frozen linear layer in NF4 without an adapter; its weights have the names of the layer it replaces."""

    def __init__(self, layer: nn.Linear, weight: NF4Matrix) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = weight, layer.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        return frozen_linear(inputs, self.weight, self.bias)


def frozen_linear(inputs: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """W x + b with gradients for x alone where W is quantised; (…, in) → (…, out)."""
    if not isinstance(weight, NF4Matrix):
        return F.linear(inputs, weight, bias)
    device = inputs.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype
    outputs: Tensor = _Product.apply(inputs.to(dtype), weight, bias)  # type: ignore[no-untyped-call]
    return outputs


class _Product(torch.autograd.Function):
    """The backward pass dequantises W again: nothing but four bits of a weight is kept between the passes."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: NF4Matrix, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return F.linear(inputs, dense(weight).to(inputs.dtype), None if bias is None else bias.to(inputs.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] @ dense(ctx.weight).to(grads[0].dtype), None, None
