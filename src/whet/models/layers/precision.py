"""Compute precision: fp32 weights everywhere, bf16 arithmetic on CUDA, fp32 on CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """The context that a model's arithmetic runs in. On a CPU bf16 is hundreds of times slower, so never there."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """fp32 within a bf16 context, where rounding would show: the head."""
    return torch.autocast(device.type, enabled=False)
