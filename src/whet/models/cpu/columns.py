"""The decoder without gradients on a CPU: states are columns, so that every product is a weight times a matrix.

A product of a few rows with a transposed weight, as `nn.Linear` asks for, runs at a third of the speed on processors
with AVX-512 (MKL 2024); this order needs no copy of the weights. Residuals are added by the products themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.layers.attention import rotary_frequencies
from whet.models.layers.decoder_config import DecoderConfig

if TYPE_CHECKING:
    from whet.models.decoder.decoder import MLP, Attention, Block, Norm, Trunk

FEW = 64  # rows: above, both orders of a product are as fast
CHUNK_ROWS = 4096  # of a weight: what they give stays in the cache of the processor until it is turned into rows

# Queries, keys and values (B, heads, T, head_dim) → what each query attended to, shaped as the queries.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotation = tuple[Tensor, Tensor]  # (head_dim / 2, N) cosine and sine of every column's angles


def fits_columns(trunk: Trunk) -> bool:
    """Whether this file computes the trunk: fp32 on a CPU, and no adapter in the place of a product."""
    weight = trunk.embed_tokens.weight
    plain = all(type(part) is nn.Linear for block in trunk.layers for part in _products(block))  # type: ignore[arg-type]
    return plain and weight.device.type == "cpu" and weight.dtype is torch.float32


@torch.no_grad()
def read_columns(trunk: Trunk, tokens: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
    """(B, T) ids at (B, T) positions → (B, T, D), before the final norm; as `Trunk.forward`."""
    states = trunk.embed_tokens.weight[tokens.flatten()].t().contiguous()
    rotation = None
    if trunk.embed_positions is not None:
        states += trunk.embed_positions.weight[positions.flatten()].t()
    else:
        angles = rotary_frequencies(trunk.config, tokens.device)[:, None] * positions.flatten().float()
        rotation = (angles.cos(), angles.sin())
    for block, attend in zip(trunk.layers, attends, strict=True):
        _block(block, trunk.config, states, rotation, attend, batch=len(tokens))  # type: ignore[arg-type]
    return states.t().view(*tokens.shape, -1)


@torch.no_grad()
def norm_columns(norm: Norm, states: Tensor) -> Tensor:
    """(…, D, N) → the same, every column normed."""
    if norm.bias is None:
        return (states * _scale(states, norm.eps)).mul_(norm.weight[:, None])
    centred = states - states.mean(dim=-2, keepdim=True)
    return centred.mul_(_scale(centred, norm.eps)).mul_(norm.weight[:, None]).add_(norm.bias[:, None])


def _scale(states: Tensor, eps: float) -> Tensor:
    """(…, D, N) → (…, 1, N): one over the root of the mean square of every column."""
    return states.square().mean(dim=-2, keepdim=True).add_(eps).rsqrt_()


def are_few_rows(states: Tensor) -> bool:
    """Whether `product_of_rows` is the quicker way."""
    return states.device.type == "cpu" and states.dim() == 2 and len(states) <= FEW and not torch.is_grad_enabled()


def product_of_rows(states: Tensor, weight: Tensor) -> Tensor:
    """(N, K) states, (V, K) weight → (N, V), as `F.linear`."""
    columns = states.t().contiguous()
    rows = states.new_empty(len(states), len(weight))
    for start in range(0, len(weight), CHUNK_ROWS):
        piece = slice(start, start + CHUNK_ROWS)
        rows[:, piece] = torch.mm(weight[piece], columns).t()
    return rows


def _products(block: Block) -> list[nn.Module | None]:
    attention, mlp = block.self_attn, block.mlp
    gate = [] if mlp.gate_proj is None else [mlp.gate_proj]
    return [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, *gate, mlp.up_proj, mlp.down_proj]


def _block(
    block: Block, config: DecoderConfig, states: Tensor, rotation: Rotation | None, attend: Attend, *, batch: int
) -> None:
    """Adds what attention and MLP write to the (D, B · T) states, in place."""
    attention, mlp = block.self_attn, block.mlp
    is_pre = config.norm_place == "pre"
    source = norm_columns(block.input_layernorm, states) if is_pre else states
    queries, keys, values = _projected(attention, config, source, rotation, batch=batch)
    attended = attend(queries, keys, values).permute(1, 3, 0, 2).reshape(-1, states.shape[1])
    _add(states, attention.o_proj, attended, None if is_pre else block.post_attention_layernorm)
    source = norm_columns(block.post_attention_layernorm, states) if is_pre else states
    _add(states, mlp.down_proj, _inner(mlp, source), None if is_pre else block.post_feedforward_layernorm)


def _projected(
    attention: Attention, config: DecoderConfig, states: Tensor, rotation: Rotation | None, *, batch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(D, B · T) → queries, keys and values (B, heads, T, head_dim)."""
    width, size = config.head_dim, states.shape[1]
    queries, keys, values = (_times(part, states) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
    if config.qk_norm == "full":
        queries, keys = norm_columns(attention.q_norm, queries), norm_columns(attention.k_norm, keys)
    queries, keys = queries.view(-1, width, size), keys.view(-1, width, size)
    if config.qk_norm == "head":
        queries, keys = norm_columns(attention.q_norm, queries), norm_columns(attention.k_norm, keys)
    if rotation is not None:
        queries, keys = rotated(queries, *rotation), rotated(keys, *rotation)
    heads = (x.view(-1, width, batch, size // batch).permute(2, 0, 3, 1) for x in (queries, keys, values))
    first, second, third = heads
    return first, second, third


def rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(heads, head_dim, N) turned by (head_dim / 2, N) angles, as `whet.models.layers.attention.rotate` does it."""
    halves = states.view(len(states), 2, -1, states.shape[-1])
    turned = halves * cosine
    turned[:, 0].addcmul_(halves[:, 1], sine, value=-1)
    turned[:, 1].addcmul_(halves[:, 0], sine)
    return turned


def _inner(mlp: MLP, states: Tensor) -> Tensor:
    """(D, N) → (mlp_width, N): what the MLP's last product reads."""
    inner = _times(mlp.up_proj, states)
    if mlp.gate_proj is None:
        return F.gelu(inner, approximate="tanh")
    return F.silu(_times(mlp.gate_proj, states), inplace=True).mul_(inner)


def _times(linear: nn.Linear, states: Tensor) -> Tensor:
    if linear.bias is None:
        return torch.mm(linear.weight, states)
    return torch.addmm(linear.bias[:, None], linear.weight, states)


def _add(states: Tensor, linear: nn.Linear, inner: Tensor, norm: Norm | None) -> None:
    """states += linear(inner), normed where a norm is given."""
    if norm is not None:
        states += norm_columns(norm, _times(linear, inner))
        return
    states.addmm_(linear.weight, inner)
    if linear.bias is not None:
        states += linear.bias[:, None]
