"""The steps of `whet.engines.native.decode_kernels` in plain torch: their oracle; on a CPU they run the scheduler."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.engines.native.slots import SlotCache, SlotRows, Turn, Where
from whet.streams import uniform


def add_norm(residual: Tensor, added: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """residual += added (fp32, in place); RMSNorm(residual) · weight."""
    if added is not None:
        residual += added.float()
    return F.rms_norm(residual, weight.shape, weight, eps).to(dtype)


def place(
    qkv: Tensor, how: Turn, where: Where, dense: tuple[Tensor, Tensor] | None, cache: SlotCache, layer: int
) -> Tensor:
    """Normalises heads where asked, turns queries and keys, and writes keys and values at each row's slot and position.

    `dense` (rows, kv_heads, dim) gets the new keys and values too.
    """
    positions = where.positions[where.slots] if where.by_slot else where.positions
    _, _, kv_heads, _, dim = cache.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    q, k, v = torch.split(qkv.view(len(qkv), -1, dim), [heads, kv_heads, kv_heads], dim=1)
    if how.norms is not None:
        q, k = (
            F.rms_norm(x.float(), w.shape, w, how.eps).to(qkv.dtype) for x, w in zip((q, k), how.norms, strict=True)
        )
    turn = [angle[positions][:, None] for angle in how.angles]
    k = _turned(k, *turn)
    for held, new in zip(cache.layer(layer), (k, v), strict=True):
        held[where.slots, :, positions] = new.to(held.dtype)
    if dense is not None:
        dense[0].copy_(k)
        dense[1].copy_(v)
    return _turned(q, *turn).to(qkv.dtype)


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def attend(queries: Tensor, cache: SlotCache, layer: int, slots: Tensor, rows: SlotRows, splits: int = 1) -> Tensor:
    """Each row's (heads, dim) queries over what its slot holds up to its position, its shared beginning included."""
    keys, values = cache.layer(layer)
    lengths, shared, prefixes = rows.positions[slots] + 1, rows.shared[slots], rows.prefixes[slots]
    places = torch.arange(int(lengths.max()), device=queries.device)
    owner = torch.where(places < shared[:, None], prefixes[:, None], slots[:, None])  # (n, T)
    visible = (places < lengths[:, None])[:, None, None]
    grouped = queries.view(len(queries), keys.shape[1], -1, queries.shape[-1])
    blank = ~visible[:, :, 0, :, None]  # filled, as 0 · NaN would reach the output
    k, v = (x[owner, :, places].transpose(1, 2).masked_fill(blank, 0) for x in (keys, values))  # (n, kv_heads, T, dim)
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=visible).reshape(queries.shape)


def gate(both: Tensor) -> Tensor:
    """silu(first half) · second half."""
    first, second = both.chunk(2, dim=-1)
    return F.silu(first) * second


def draw(
    logits: Tensor, slots: Tensor, rows: SlotRows, stops: Tensor, coldness: Tensor, *, greedy: bool, capacity: int
) -> None:
    """Draws a token per row by its slot's own random number, notes it with its log-prob, and moves the slot on."""
    scaled = logits.float() * coldness
    steps = rows.steps[slots]
    if greedy:
        chosen = scaled.argmax(dim=-1)
        highest = scaled.gather(-1, chosen[:, None])[:, 0]
        logprobs = highest - highest  # 0, or NaN where the highest is not finite: NaN is highest of all
    else:
        distribution = scaled.log_softmax(dim=-1)
        cumulative = distribution.double().exp().cumsum(dim=-1)
        target = uniform(rows.streams[slots], steps)[:, None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=logits.shape[-1] - 1)[:, 0]
        logprobs = distribution.gather(-1, chosen[:, None])[:, 0]
    has_stopped = torch.isin(chosen, stops)
    rows.ended[slots] = torch.where(has_stopped, torch.minimum(rows.ended[slots], steps + 1), rows.ended[slots])
    rows.tokens[slots] = chosen
    fits = steps < rows.out_tokens.shape[1]
    rows.out_tokens[slots[fits], steps[fits]] = chosen[fits].int()
    rows.logprobs[slots[fits], steps[fits]] = logprobs[fits]
    rows.steps[slots] = steps + 1
    rows.positions[slots] = (rows.positions[slots] + 1).clamp(max=capacity - 1)
