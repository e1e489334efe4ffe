"""Networks from rows to features: an MLP, convolutions over pictures, attention over the newest observations."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from whet.control.mlp import Mlp

PICTURE_FEATURES = 512
LARGE = 36  # pixels: a smaller picture would vanish under the strides of the usual convolutions


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = math.sqrt(2)) -> Layer:
    """Orthogonal weights and no bias: signals keep their size through the layers at the start."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def mlp(size: int, widths: tuple[int, ...], activation: str) -> Mlp:
    """Linear layers, each followed by the activation."""
    made = Mlp((size, *widths), activation)
    for layer in made.linears:
        orthogonal(layer)
    return made


class Convolutions(nn.Module):
    """Mnih et al. 2015; small pictures, as of a grid world, keep their size."""

    def __init__(self, picture: tuple[int, int, int]) -> None:
        super().__init__()
        self.picture = picture
        layers = [(32, 8, 4), (64, 4, 2), (64, 3, 1)] if min(picture[1:]) >= LARGE else [(32, 3, 1), (64, 3, 1)]
        channels, parts = picture[0], list[nn.Module]()
        for width, kernel, stride in layers:
            padding = 1 if min(picture[1:]) < LARGE else 0
            parts += [orthogonal(nn.Conv2d(channels, width, kernel, stride, padding)), nn.ReLU()]
            channels = width
        self.layers = nn.Sequential(*parts, nn.Flatten())
        with torch.no_grad():
            flat = self.layers(torch.zeros(1, *picture)).shape[1]
        self.head = nn.Sequential(orthogonal(nn.Linear(flat, PICTURE_FEATURES)), nn.ReLU())

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(rows.view(-1, *self.picture)))
        return found


class Attention(nn.Module):
    """One pre-norm block of attention and an MLP over the observations that are there."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: Tensor, visible: Tensor) -> Tensor:
        split = self.joined(self.norms[0](states)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        seen = scaled_dot_product_attention(query, key, value, attn_mask=visible[:, None, None, :])
        states = states + self.out(seen.transpose(1, 2).flatten(2))
        found: Tensor = states + self.mlp(self.norms[1](states))
        return found


class Transformer(nn.Module):
    """The newest state after attention over a history of observations."""

    def __init__(self, size: int, history: int, width: int, *, layers: int, heads: int) -> None:
        super().__init__()
        self.history = history
        self.input = nn.Linear(size, width)
        self.places = nn.Parameter(torch.zeros(history, width))
        self.blocks = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        observations = rows.view(len(rows), self.history, -1)
        visible = observations[:, :, -1] > 0
        states = self.input(observations[:, :, :-1]) + self.places
        for block in self.blocks:
            states = block(states, visible)
        newest: Tensor = self.norm(states)[:, self.history - 1]
        return newest
