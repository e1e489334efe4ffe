"""Matrices in bf16: frozen ones under adapters, and trained ones, whose gradients stay in fp32.

Norms and biases stay in fp32: they are small, and their arithmetic is in fp32 everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from whet.errors import UserError
from whet.models.adapters.lora import LoRALinear
from whet.models.decoder.decoder import Decoder


def halve(trunk: Any, *, trained: bool = False) -> None:
    """Matrices of a language model in bf16; those in training only if `trained`.

    Of transformers' own models only those that autocast rounds, and so not the head's.
    """
    if isinstance(trunk, Decoder):
        kinds: tuple[type[nn.Module], ...] = (nn.Linear, nn.Embedding, LoRALinear)
        head = None
    else:
        kinds, head = (nn.Linear, LoRALinear), trunk.model.get_output_embeddings()
    kept = set() if head is None else {id(parameter) for parameter in head.parameters()}
    for module in trunk.modules():
        for parameter in module.parameters(recurse=False) if isinstance(module, kinds) else ():
            is_meant = parameter.dim() == 2 and id(parameter) not in kept
            if is_meant and (trained or not parameter.requires_grad):
                parameter.data = parameter.data.to(torch.bfloat16)


def accumulate_in_fp32(parameters: Iterable[torch.Tensor]) -> None:
    """Gradients of trained bf16 weights in fp32: sums over many micro-batches would lose their small terms in bf16.

    A copy of a parameter does not inherit it.
    """
    for parameter in parameters:
        if parameter.dtype is not torch.bfloat16 or not parameter.requires_grad:
            continue
        if not hasattr(torch.Tensor, "grad_dtype"):
            raise UserError(
                f"fp32 gradients of bf16 weights need torch 2.10 or newer, and this is {torch.__version__}: use "
                "optimizer.master_weights=fp32"
            )
        parameter.grad_dtype = torch.float32
