"""Losses on rows that already exist, one value per token."""

from __future__ import annotations

from torch import Tensor


def negative_log_likelihood(logprobs: Tensor) -> Tensor:
    """−log π."""
    return -logprobs
