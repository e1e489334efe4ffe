"""Weights before training: tables without values, and the values that a new model begins with."""

from __future__ import annotations

import math

import torch
from torch import nn


def embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding without values: drawing them on the meta device would import the compiler, which takes a second."""
    made: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)  # type: ignore[no-untyped-call]
    return made


@torch.no_grad()
def initialise(model: nn.Module, *, std: float, layers: int, seed: int) -> None:
    """Normal weights, unit norms, zero biases; what writes to the residual stream is scaled by 1/√(2·layers).

    The scale keeps the stream's variance independent of depth (Radford et al. 2019, §2.3). Uses its own generator.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0.0, std / math.sqrt(2 * layers) if into_residual else std, generator=generator)
