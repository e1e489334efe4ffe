"""Multi-head latent attention (MLA; DeepSeek-AI 2024, arXiv 2405.04434 §2.1), with the module names of DeepSeek.

A token's keys and values are W_UK c and W_UV c of its latent c = norm(W_DKV h), beside one rotary key that all heads
share. Training and prefill compute them. Decoding does not: q · (W_UK c) = (W_UKᵀ q) · c and Σ p (W_UV c) =
W_UV Σ p c, so queries are taken into the space of the latents, and what they attend to is taken out of it. A decode
step is then attention with one key head of width kv_rank + rope_dim for all heads, whose values are a part of its keys.

Letters: B rows, T time, C columns of the cache, D width, H heads, R = kv_rank.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.decoder.kv_cache import LatentLayer
from whet.models.decoder.norm import Norm
from whet.models.layers.attention import Attend, Rotation, rotate, uninterleaved
from whet.models.layers.decoder_config import DecoderConfig

LATENT_EPS = 1e-6  # of the norms of latents, whatever the config says of the others: as in transformers


class LatentAttention(nn.Module):
    """Attention whose keys and values are products of one latent vector per token."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.latent is not None
        self.heads, self.latent = config.heads, config.latent
        shape, query = config.latent, config.heads * config.head_dim
        if shape.q_rank is None:
            self.q_proj = nn.Linear(config.width, query, bias=False)
        else:
            self.q_a_proj = nn.Linear(config.width, shape.q_rank, bias=config.attention_bias)
            self.q_a_layernorm = Norm(shape.q_rank, config, eps=LATENT_EPS)
            self.q_b_proj = nn.Linear(shape.q_rank, query, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(config.width, shape.cached, bias=config.attention_bias)
        self.kv_a_layernorm = Norm(shape.kv_rank, config, eps=LATENT_EPS)
        self.kv_b_proj = nn.Linear(shape.kv_rank, config.heads * (shape.nope_dim + shape.value_dim), bias=False)
        self.o_proj = nn.Linear(config.heads * shape.value_dim, config.width, bias=config.attention_out_bias)

    def forward(self, states: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """(B, T, D) → (B, T, D); a `LatentLayer` keeps the latents, any other `attend` gets keys and values."""
        queries, latents = self._queries(states, rotation), self._latents(states, rotation)
        past = attend.keep(latents) if isinstance(attend, LatentLayer) else None
        attended = self._attend_past(queries, *past) if past else attend(queries, *self._keys_and_values(latents))
        written: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return written

    def _queries(self, states: Tensor, rotation: Rotation) -> Tensor:
        """(B, H, T, nope_dim + rope_dim)."""
        if self.latent.q_rank is None:
            projected = self.q_proj(states)
        else:
            projected = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(states)))
        heads = projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        plain, rotary = torch.split(heads, [self.latent.nope_dim, self.latent.rope_dim], dim=-1)
        return torch.cat((plain, self._rotated(rotary, rotation)), dim=-1)

    def _latents(self, states: Tensor, rotation: Rotation) -> Tensor:
        """(B, T, R + rope_dim): the normed latent and the rotated shared key of each token; all that is cached."""
        projected = self.kv_a_proj_with_mqa(states)
        latent, shared = torch.split(projected, [self.latent.kv_rank, self.latent.rope_dim], dim=-1)
        key = self._rotated(shared[:, None], rotation)[:, 0]
        return torch.cat((self.kv_a_layernorm(latent), key), dim=-1)

    def _rotated(self, rotary: Tensor, rotation: Rotation) -> Tensor:
        assert rotation is not None
        return rotate(uninterleaved(rotary) if self.latent.interleaved else rotary, *rotation)

    def _keys_and_values(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, T, nope_dim + rope_dim) and (B, H, T, value_dim)."""
        latent, shared = torch.split(latents, [self.latent.kv_rank, self.latent.rope_dim], dim=-1)
        both = self.kv_b_proj(latent).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        keys, values = torch.split(both, [self.latent.nope_dim, self.latent.value_dim], dim=-1)
        return torch.cat((keys, shared[:, None].expand(-1, self.heads, -1, -1)), dim=-1), values

    def _attend_past(self, queries: Tensor, past: Tensor, bias: Tensor) -> Tensor:
        """(B, H, 1, nope_dim + rope_dim) queries over (B, C, R + rope_dim) latents → (B, H, 1, value_dim)."""
        if type(self.kv_b_proj) is not nn.Linear:  # an adapter has no one matrix to absorb
            return F.scaled_dot_product_attention(queries, *self._keys_and_values(past), attn_mask=bias[:, None])
        up = self.kv_b_proj.weight.view(self.heads, -1, self.latent.kv_rank)
        to_keys, to_values = torch.split(up, [self.latent.nope_dim, self.latent.value_dim], dim=1)  # W_UK, W_UV
        plain, rotary = torch.split(queries[:, :, 0], [self.latent.nope_dim, self.latent.rope_dim], dim=-1)
        taken = torch.bmm(plain.transpose(0, 1), to_keys).transpose(0, 1)  # W_UKᵀ q: (B, H, R)
        inside = torch.cat((taken, rotary), dim=-1).to(past.dtype)
        scores = torch.baddbmm(bias, inside, past.transpose(1, 2), alpha=1 / math.sqrt(queries.shape[-1]))
        mixed = torch.bmm(scores.softmax(dim=-1).to(past.dtype), past[..., : self.latent.kv_rank])  # Σ p c: (B, H, R)
        return torch.bmm(mixed.transpose(0, 1), to_values.transpose(1, 2)).transpose(0, 1)[:, :, None]
