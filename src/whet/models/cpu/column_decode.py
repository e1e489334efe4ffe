"""The decoder's forward pass without gradients on a CPU, for sampling: states are columns (D, N).

Every product is then weight · states, in the layout in which weights are stored; `nn.Linear` multiplies a few rows with
a transposed weight, which is slower on processors with AVX-512. Residuals are added by the products (addmm).

`read_columns` serves every decoder with its own weights. `JoinedColumns` serves the block of Llama, Qwen2 and Qwen3
with the joined weights of `kernels.fused_block`, which training passes use too: a decode step reads every weight once,
so it is bound by memory bandwidth, and matrices with few rows (keys, values) are read at half of it.

Letters: B rows, T time, N = B · T columns, D width, M width of the MLP, dim width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.kernels.fused_block import Joined
from whet.models.layers.attention import Attend, rotary_frequencies
from whet.models.layers.decoder_config import DecoderConfig, has_plain_products, has_usual_blocks

if TYPE_CHECKING:
    from whet.models.decoder.decoder import MLP, Attention, Block, Norm, Trunk


FEW = 64  # rows: above, both layouts of a product are as fast
CHUNK_ROWS = 4096  # rows of a weight per product: the result stays in the processor's cache until it is transposed

Rotation = tuple[Tensor, Tensor]  # (dim / 2, N): cosine and sine of every column's angles
# (B, T) ids at (B, T) positions, and one Attend per layer → (B, T, D), before the final norm.
Read = Callable[[Tensor, Tensor, Sequence[Attend]], Tensor]


def quickest_reader(trunk: Trunk) -> Read:
    """The fastest forward pass without gradients, with the weights of now: get a new one for each batch of prompts."""
    if trunk.embed_tokens.weight.device.type != "cpu" or not has_plain_products(trunk.layers):
        return trunk
    return JoinedColumns(trunk) if has_usual_blocks(trunk.config) else partial(read_columns, trunk)


@torch.no_grad()
def read_columns(trunk: Trunk, tokens: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
    """(B, T) ids at (B, T) positions → (B, T, D), before the final norm; as `Trunk.forward`."""
    states = trunk.embed_tokens.weight[tokens.flatten()].t().contiguous()  # (D, N)
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
    """LayerNorm or RMSNorm of every column of (…, D, N)."""
    if norm.bias is None:
        return (states * _scale(states, norm.eps)).mul_(norm.weight[:, None])
    centred = states - states.mean(dim=-2, keepdim=True)
    return centred.mul_(_scale(centred, norm.eps)).mul_(norm.weight[:, None]).add_(norm.bias[:, None])


def _scale(states: Tensor, eps: float) -> Tensor:
    """(…, D, N) → (…, 1, N): 1 / √(mean square + eps) of every column."""
    return states.square().mean(dim=-2, keepdim=True).add_(eps).rsqrt_()


def are_few_rows(states: Tensor) -> bool:
    """Whether `product_of_rows` is faster than `F.linear`."""
    return states.device.type == "cpu" and states.dim() == 2 and len(states) <= FEW and not torch.is_grad_enabled()


def product_of_rows(states: Tensor, weight: Tensor) -> Tensor:
    """(N, D) states, (V, D) weight → (N, V), as `F.linear`: the LM head of a decode step."""
    columns = states.t().contiguous()
    rows = states.new_empty(len(states), len(weight))
    for start in range(0, len(weight), CHUNK_ROWS):
        piece = slice(start, start + CHUNK_ROWS)
        rows[:, piece] = torch.mm(weight[piece], columns).t()
    return rows


def _block(
    block: Block, config: DecoderConfig, states: Tensor, rotation: Rotation | None, attend: Attend, *, batch: int
) -> None:
    """One block on the (D, N) states, in place."""
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
    """(D, N) → queries (B, heads, T, dim), keys and values (B, kv_heads, T, dim)."""
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
    """RoPE of (heads, dim, N) by (dim / 2, N) angles, as `attention.rotate` applies it to rows."""
    halves = states.view(len(states), 2, -1, states.shape[-1])
    turned = halves * cosine
    turned[:, 0].addcmul_(halves[:, 1], sine, value=-1)
    turned[:, 1].addcmul_(halves[:, 0], sine)
    return turned


def _inner(mlp: MLP, states: Tensor) -> Tensor:
    """(D, N) → (M, N): the input of the MLP's last product."""
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


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of a block; norms and biases as columns."""

    half: Joined
    norm: Tensor  # (D, 1)
    mlp_norm: Tensor  # (D, 1)
    head_norm: Tensor | None  # (heads + kv_heads, dim, 1): of queries and keys
    qkv_bias: Tensor | None  # ((heads + 2 · kv_heads) · dim, 1)


class JoinedColumns:
    """A forward pass with the weights as they were when this was made."""

    @torch.no_grad()
    def __init__(self, trunk: Trunk) -> None:
        self._config, self._embeddings = trunk.config, trunk.embed_tokens.weight.detach()
        halves = trunk.joined.refreshed(list(trunk.layers), torch.float32)
        self._blocks = [_joined_block(block, half) for block, half in zip(trunk.layers, halves, strict=True)]  # type: ignore[arg-type]
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
        """RMSNorm of every column of (D, N)."""
        lengths = torch.linalg.vector_norm(states, dim=0)
        scales = torch.addcmul(self._eps, lengths, lengths, value=1 / len(states)).rsqrt_()
        return (states * scales).mul_(weight)

    def _heads(self, block: _Block, states: Tensor, rotation: Rotation, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """(D, N) → queries (B, heads, T, dim), keys and values (B, kv_heads, T, dim)."""
        config, size = self._config, states.shape[1]
        if block.qkv_bias is None:
            projected = torch.mm(block.half.qkv, states)
        else:
            projected = torch.addmm(block.qkv_bias, block.half.qkv, states)
        projected = projected.view(-1, config.head_dim, size)
        turned, values = torch.split(projected, [config.heads + config.kv_heads, config.kv_heads])
        if block.head_norm is not None:
            turned = (turned * _scale(turned, config.norm_eps)).mul_(block.head_norm)
        turned = rotated(turned, *rotation)
        shaped = (x.view(-1, config.head_dim, batch, size // batch).permute(2, 0, 3, 1) for x in (turned, values))
        both, values = shaped
        return both[:, : config.heads], both[:, config.heads :], values


def _joined_block(block: Block, half: Joined) -> _Block:
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
