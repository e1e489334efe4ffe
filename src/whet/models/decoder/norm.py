"""The norms of a decoder."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.layers.decoder_config import DecoderConfig


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last dimension, computed in fp32."""

    def __init__(self, width: int, config: DecoderConfig, *, eps: float | None = None) -> None:
        """`eps`: in place of the config's."""
        super().__init__()
        self.eps = config.norm_eps if eps is None else eps
        self.offset = 1.0 if config.norm_offset else 0.0
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if config.norm == "layer" else None

    @property
    def scale(self) -> Tensor:
        """What normed states are multiplied with, in fp32."""
        return self.weight.float() + self.offset if self.offset else self.weight.float()

    def forward(self, states: Tensor) -> Tensor:
        """Keeps shape and dtype."""
        shape, weight = self.weight.shape, self.scale
        if self.bias is None:
            normed: Tensor = F.rms_norm(states.float(), shape, weight, self.eps)
        else:
            normed = F.layer_norm(states.float(), shape, weight, self.bias.float(), self.eps)
        return normed.to(states.dtype)
