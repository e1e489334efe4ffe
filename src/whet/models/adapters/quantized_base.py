"""The frozen base under adapters in NF4 (QLoRA): which matrices are quantised, and what they take dequantised."""

import torch
from torch import nn

from whet.errors import UserError
from whet.models.adapters.lora import LoRALinear
from whet.models.adapters.nf4 import NF4Linear, NF4Matrix


def quantize_base(blocks: nn.Module, device: torch.device) -> None:
    """Every linear layer of the blocks in NF4 on this device, with an adapter or without; one at a time.

    Embeddings, head, norms and biases stay as they are, as in QLoRA.
    """
    for name, layer in list(blocks.named_modules()):
        if isinstance(layer, LoRALinear):
            quantized = _quantized(name, layer.weight, device)
            del layer.weight  # torch puts no module in the place of a parameter
            layer.weight = quantized
        elif type(layer) is nn.Linear:
            parent, _, leaf = name.rpartition(".")
            setattr(blocks.get_submodule(parent), leaf, NF4Linear(layer, _quantized(name, layer.weight, device)))


def _quantized(name: str, weight: object, device: torch.device) -> NF4Matrix:
    assert isinstance(weight, nn.Parameter)
    here = weight.detach().to(device)
    if not bool(here.isfinite().all()):  # in four bits they would become ordinary numbers
        raise UserError(f"the base model is damaged: layers.{name}.weight has values that are not finite")
    return NF4Matrix(here)


def dequantized_bytes(model: nn.Module) -> int:
    """Bytes of all its quantised matrices once they are dequantised."""
    found = (module for module in model.modules() if isinstance(module, NF4Matrix))
    return sum(matrix.shape.numel() * matrix.dtype.itemsize for matrix in found)
