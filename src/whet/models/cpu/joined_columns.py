"""The usual decoder block in columns with joined weights: what reads prompts and extends sequences on a CPU.

A decode step reads every weight once, so it is as fast as memory; few rows of a weight (those of keys and values) are
read at half the speed of many. The weights are the copies of `kernels.fused_block`, which a training pass uses too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.cpu.columns import Attend, fits_columns, read_columns, rotated
from whet.models.kernels.fused_block import Joined
from whet.models.layers.attention import rotary_frequencies
from whet.models.layers.decoder_config import has_usual_blocks

if TYPE_CHECKING:
    from whet.models.decoder.decoder import Block, Trunk

# (B, T) ids at (B, T) positions, and what attends in each layer → (B, T, D), before the final norm.
Read = Callable[[Tensor, Tensor, Sequence[Attend]], Tensor]


def quickest_reader(trunk: Trunk) -> Read:
    """What reads tokens without gradients: its weights are those of now, so each batch of prompts asks for its own."""
    if not fits_columns(trunk):
        return trunk
    return JoinedColumns(trunk) if has_usual_blocks(trunk.config) else partial(read_columns, trunk)


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of a block; those of norms stand as columns."""

    half: Joined
    norm: Tensor  # (D, 1)
    mlp_norm: Tensor  # (D, 1)
    head_norm: Tensor | None  # (heads + kv_heads, head_dim, 1): of queries and keys
    qkv_bias: Tensor | None  # ((heads + 2 · kv_heads) · head_dim, 1)


class JoinedColumns:
    """Reads tokens with the weights as they were when this was made."""

    @torch.no_grad()
    def __init__(self, trunk: Trunk) -> None:
        self._config, self._embeddings = trunk.config, trunk.embed_tokens.weight.detach()
        halves = trunk.joined.refreshed(list(trunk.layers), torch.float32)
        self._blocks = [_block(block, half) for block, half in zip(trunk.layers, halves, strict=True)]  # type: ignore[arg-type]
        self._eps = torch.tensor(trunk.config.norm_eps)

    @torch.no_grad()
    def __call__(self, tokens: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
        """(B, T) ids at (B, T) positions → (B, T, D), before the final norm; as `Trunk.forward`."""
        states = self._embeddings[tokens.flatten()].t().contiguous()
        angles = rotary_frequencies(self._config, tokens.device)[:, None] * positions.flatten().float()
        rotation = (angles.cos(), angles.sin())
        batch = len(tokens)
        for block, attend in zip(self._blocks, attends, strict=True):
            half = block.half
            heads = self._heads(block, self._normed(states, block.norm), rotation, batch)
            attended = attend(*heads).permute(1, 3, 0, 2).reshape(-1, states.shape[1])
            states.addmm_(half.out, attended)
            gate, up = torch.mm(half.gate_up, self._normed(states, block.mlp_norm)).chunk(2)
            states.addmm_(half.down, F.silu(gate, inplace=True).mul_(up))
        return states.t().view(*tokens.shape, -1)

    def _normed(self, states: Tensor, weight: Tensor) -> Tensor:
        """(D, N), every column normed."""
        lengths = torch.linalg.vector_norm(states, dim=0)
        scales = torch.addcmul(self._eps, lengths, lengths, value=1 / len(states)).rsqrt_()
        return (states * scales).mul_(weight)

    def _heads(
        self, block: _Block, states: Tensor, rotation: tuple[Tensor, Tensor], batch: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(D, B · T) → queries, keys and values (B, heads, T, head_dim)."""
        config, size = self._config, states.shape[1]
        if block.qkv_bias is None:
            projected = torch.mm(block.half.qkv, states)
        else:
            projected = torch.addmm(block.qkv_bias, block.half.qkv, states)
        projected = projected.view(-1, config.head_dim, size)
        turned, values = torch.split(projected, [config.heads + config.kv_heads, config.kv_heads])
        if block.head_norm is not None:
            turned = _head_normed(turned, block.head_norm, config.norm_eps)
        turned = rotated(turned, *rotation)
        shaped = (x.view(-1, config.head_dim, batch, size // batch).permute(2, 0, 3, 1) for x in (turned, values))
        both, values = shaped
        return both[:, : config.heads], both[:, config.heads :], values


def _block(block: Block, half: Joined) -> _Block:
    attention = block.self_attn
    head_norm = None
    if attention.qk_norm == "head":
        counts = torch.tensor([half.sizes[0], half.sizes[1]]) // attention.head_dim
        both = torch.stack([attention.q_norm.weight, attention.k_norm.weight])
        head_norm = both.detach().repeat_interleave(counts, dim=0)[..., None]
    return _Block(
        half=half,
        norm=block.input_layernorm.weight.detach()[:, None],
        mlp_norm=block.post_attention_layernorm.weight.detach()[:, None],
        head_norm=head_norm,
        qkv_bias=None if half.qkv_bias is None else half.qkv_bias[:, None],
    )


def _head_normed(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """(heads, head_dim, N), every head of every column normed."""
    scales = states.square().mean(dim=1, keepdim=True).add_(eps).rsqrt_()
    return (states * scales).mul_(weight)
