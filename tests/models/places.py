"""Where a reward model is asked."""

import torch


def last_places(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """(B,) lengths → (B, T), True at the last token of each sequence."""
    return torch.arange(width, device=lengths.device) == lengths[:, None] - 1
