"""The decoder's forward pass without gradients on a CPU, for sampling: states are columns (D, N).

Every product is then weight · states, in the layout in which weights are stored; `nn.Linear` multiplies a few rows with
a transposed weight, which is slower on processors with AVX-512. Residuals are added by the products (addmm). Weights
are the joined ones (`JoinedWeights`), which fused training passes use too: a decode step reads every weight
once, so it is bound by memory bandwidth, and matrices with few rows (keys, values) are read at half of it.

Letters: B rows, T time, N = B · T columns, D width, M width of the MLP, dim width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.layers.attention import Attend, rotary_frequencies
from whet.models.layers.decoder_config import has_plain_products

if TYPE_CHECKING:
    from whet.models.decoder.decoder import Attention, Trunk
    from whet.models.decoder.joined_weights import Joined
    from whet.models.decoder.mlp import MLP
    from whet.models.decoder.norm import Norm


FEW = 64  # rows: above, both layouts of a product are as fast
CHUNK_ROWS = 4096  # rows of a weight per product: the result stays in the processor's cache until it is transposed

Rotation = tuple[Tensor, Tensor]  # (dim / 2, N): cosine and sine of every column's angles
# (B, T) ids at (B, T) positions, and one Attend per layer → (B, T, D), before the final norm.
Read = Callable[[Tensor, Tensor, Sequence[Attend]], Tensor]


def quickest_reader(trunk: Trunk) -> Read:
    """The fastest forward pass without gradients, with the weights of now: get a new one for each batch of prompts."""
    is_cpu, c = trunk.embed_tokens.weight.device.type == "cpu", trunk.config
    has_joined = c.latent is None and c.experts is None
    return ColumnReader(trunk) if is_cpu and has_joined and has_plain_products(trunk.layers) else trunk


class ColumnReader:
    """The forward pass of a trunk, with the products' weights as they were when this was made."""

    def __init__(self, trunk: Trunk) -> None:
        self._trunk, self._config = trunk, trunk.config
        blocks: list[Any] = list(trunk.layers)  # torch types the members of a module as tensors or modules
        joined = trunk.joined.refreshed(blocks, torch.float32)
        self._layers = [(block, half, _inner_bias(block.mlp)) for block, half in zip(blocks, joined, strict=True)]

    @torch.no_grad()
    def __call__(self, tokens: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
        """(B, T) ids at (B, T) positions → (B, T, D), before the final norm; as `Trunk.forward`."""
        states = self._trunk.scaled(self._trunk.embed_tokens.weight[tokens.flatten()]).t().contiguous()  # (D, N)
        rotations: list[Rotation | None] = [None] * len(self._layers)
        if self._trunk.embed_positions is not None:
            states += self._trunk.embed_positions.weight[positions.flatten()].t()
        else:
            rotations = self._rotations(positions.flatten().float())
        for (block, half, inner_bias), rotation, attend in zip(self._layers, rotations, attends, strict=True):
            before, after, before_mlp, after_mlp = block.norms()
            heads = self._heads(block.self_attn, half, norm_columns(before, states), rotation, batch=len(tokens))
            attended = attend(*heads).permute(1, 3, 0, 2).reshape(-1, states.shape[1])
            _add(states, half.out, block.self_attn.o_proj.bias, attended, after)
            source = norm_columns(before_mlp, states)
            inner = _times(half.gate_up, inner_bias, source)  # (2 · M, N), or (M, N) without a gate
            if self._config.mlp == "gelu":
                inner = F.gelu(inner, approximate="tanh")
            else:
                gate, up = inner.chunk(2)
                is_silu = self._config.mlp == "swiglu"
                inner = (F.silu(gate, inplace=True) if is_silu else F.gelu(gate, approximate="tanh")).mul_(up)
            _add(states, half.down, block.mlp.down_proj.bias, inner, after_mlp)
        return states.t().view(*tokens.shape, -1)

    def _rotations(self, positions: Tensor) -> list[Rotation | None]:
        """Of every layer, at (N,) positions; those with a window may have other angles."""
        local = [self._config.has_window_angles(layer) for layer in range(self._config.layers)]
        each = {}
        for windowed in set(local):
            angles = rotary_frequencies(self._config, positions.device, windowed=windowed)[:, None] * positions
            each[windowed] = (angles.cos(), angles.sin())
        return [each[windowed] for windowed in local]

    def _heads(
        self, attention: Attention, half: Joined, states: Tensor, rotation: Rotation | None, *, batch: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(D, N) → queries (B, heads, T, dim), keys and values (B, kv_heads, T, dim)."""
        heads, dim, size = self._config.heads, self._config.head_dim, states.shape[1]
        projected = _times(half.qkv, half.qkv_bias, states)
        if self._config.qk_norm != "none":
            for norm, part in zip(
                (attention.q_norm, attention.k_norm), torch.split(projected, half.sizes)[:2], strict=True
            ):
                each = part.view(-1, dim, size) if self._config.qk_norm == "head" else part
                each.copy_(norm_columns(norm, each))
        turned, values = torch.split(
            projected.view(-1, dim, size), [heads + self._config.kv_heads, self._config.kv_heads]
        )
        if rotation is not None:
            turned = rotated(turned, *rotation)
            if self._config.query_factor != 1.0:
                turned[:heads] *= self._config.query_factor
        both, values = (x.view(-1, dim, batch, size // batch).permute(2, 0, 3, 1) for x in (turned, values))
        return both[:, :heads], both[:, heads:], values


@torch.no_grad()
def norm_columns(norm: Norm | None, states: Tensor) -> Tensor:
    """LayerNorm or RMSNorm of every column of (…, D, N); without a norm, the states."""
    if norm is None:
        return states
    if norm.bias is None:  # with the fewest temporaries
        lengths: Tensor = torch.linalg.vector_norm(states, dim=-2, keepdim=True)
        scales = lengths.square_().div_(states.shape[-2]).add_(norm.eps).rsqrt_()
        return (states * scales).mul_(norm.scale[:, None])
    centred = states - states.mean(dim=-2, keepdim=True)
    scales = centred.square().mean(dim=-2, keepdim=True).add_(norm.eps).rsqrt_()
    return centred.mul_(scales).mul_(norm.scale[:, None]).add_(norm.bias[:, None])


def rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """RoPE of (heads, dim, N) by (dim / 2, N) angles, as `attention.rotate` applies it to rows."""
    halves = states.view(len(states), 2, -1, states.shape[-1])
    turned = halves * cosine
    turned[:, 0].addcmul_(halves[:, 1], sine, value=-1)
    turned[:, 1].addcmul_(halves[:, 0], sine)
    return turned


@torch.no_grad()
def _inner_bias(mlp: MLP) -> Tensor | None:
    """The biases of gate and up projection, joined as their weights."""
    parts = [part for part in (mlp.gate_proj, mlp.up_proj) if part is not None]
    return None if parts[0].bias is None else torch.cat([part.bias for part in parts])


def _times(weight: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    return torch.mm(weight, states) if bias is None else torch.addmm(bias[:, None], weight, states)


def _add(states: Tensor, weight: Tensor, bias: Tensor | None, inner: Tensor, norm: Norm | None) -> None:
    """states += weight · inner + bias, normed where a norm is given."""
    if norm is not None:
        states += norm_columns(norm, _times(weight, bias, inner))
        return
    states.addmm_(weight, inner)
    if bias is not None:
        states += bias[:, None]


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
