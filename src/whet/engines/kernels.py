"""Triton kernels of a decode step. Imported only on a CUDA device; `whet.engines.plain` says the same in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The sequences in the making, one slot each."""

    tokens: Tensor  # (N,) int64: the last one drawn
    positions: Tensor  # (N,) int32: where it stands
    steps: Tensor  # (N,) int64: tokens drawn
    ended: Tensor  # (N,) int64: tokens that the sequence will have, as far as is known
    streams: Tensor  # (N,) int64: names the random numbers
    out_tokens: Tensor  # (N, room) int32
    logprobs: Tensor  # (N, room) float32

    @classmethod
    def empty(cls, count: int, room: int, device: torch.device) -> Rows:
        """Nothing drawn yet."""

        def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            tokens=whole(count),
            positions=whole(count, dtype=torch.int32),
            steps=whole(count),
            ended=whole(count),
            streams=whole(count),
            out_tokens=whole(count, room, dtype=torch.int32),
            logprobs=whole(count, room, dtype=torch.float32),
        )

    def each(self) -> tuple[Tensor, ...]:
        """All of them."""
        return (
            self.tokens, self.positions, self.steps, self.ended, self.streams, self.out_tokens, self.logprobs
        )  # fmt: skip

    def first(self, count: int) -> Rows:
        """A view of the first so many."""
        return Rows(*(tensor[:count] for tensor in self.each()))


GROUP_ROWS = 16  # the query heads that share a key head, padded for the tensor cores


@triton.jit
def _add_norm(residual, added, weight, out, width, eps, HAS_ADDED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    states = tl.load(residual + row * width + columns, mask=inside, other=0.0)
    if HAS_ADDED:
        states += tl.load(added + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * width + columns, states, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(states * states, axis=0) / width + eps)
    normed = states * scale * tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(out + row * width + columns, normed.to(tl.bfloat16), mask=inside)


def add_norm(residual: Tensor, added: Tensor | None, weight: Tensor, out: Tensor, eps: float) -> None:
    """residual += added (fp32, in place); out = RMSNorm(residual) · weight in bf16."""
    rows, width = residual.shape
    source = residual if added is None else added
    _add_norm[(rows,)](
        residual, source, weight, out, width, eps,
        HAS_ADDED=added is not None, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip


@triton.jit
def _rope_cache(
    qkv, cosine, sine, positions, q_weight, k_weight, queries, key_cache, value_cache,
    heads, kv_heads, capacity, eps, HEAD_NORM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    position = tl.load(positions + row)
    half = tl.arange(0, DIM // 2)
    base = qkv + row * (heads + 2 * kv_heads) * DIM + head * DIM
    first = tl.load(base + half).to(tl.float32)
    second = tl.load(base + DIM // 2 + half).to(tl.float32)
    if head < heads + kv_heads:
        if HEAD_NORM:
            weight = q_weight if head < heads else k_weight
            scale = 1.0 / tl.sqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / DIM + eps)
            first = (first * scale * tl.load(weight + half)).to(tl.bfloat16).to(tl.float32)
            second = (second * scale * tl.load(weight + DIM // 2 + half)).to(tl.bfloat16).to(tl.float32)
        cos = tl.load(cosine + position * (DIM // 2) + half)
        sin = tl.load(sine + position * (DIM // 2) + half)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    if head < heads:
        target = queries + (row * heads + head) * DIM
    elif head < heads + kv_heads:
        target = key_cache + ((row * kv_heads + head - heads).to(tl.int64) * capacity + position) * DIM
    else:
        target = value_cache + ((row * kv_heads + head - heads - kv_heads).to(tl.int64) * capacity + position) * DIM
    tl.store(target + half, first.to(tl.bfloat16))
    tl.store(target + DIM // 2 + half, second.to(tl.bfloat16))


def rope_cache(
    qkv: Tensor, angles: tuple[Tensor, Tensor], positions: Tensor, norms: tuple[Tensor, Tensor] | None,
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, eps: float,
) -> None:  # fmt: skip
    """Normalises heads where asked, turns queries and keys, and writes keys and values at each row's position."""
    rows, heads, dim = queries.shape
    kv_heads, capacity = key_cache.shape[1:3]
    q_weight, k_weight = norms or (queries, queries)
    _rope_cache[(rows, heads + 2 * kv_heads)](
        qkv, *angles, positions, q_weight, k_weight, queries, key_cache, value_cache,
        heads, kv_heads, capacity, eps, HEAD_NORM=norms is not None, DIM=dim, num_warps=1,
    )  # fmt: skip


@triton.jit
def _attend(
    queries, key_cache, value_cache, positions, out, kv_heads, capacity, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    length = tl.load(positions + row) + 1
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    keys = tl.arange(0, BLOCK)
    base = (row * kv_heads + kv_head) * GROUP
    query = tl.load(queries + (base + lanes)[:, None] * DIM + dims[None, :], mask=(lanes < GROUP)[:, None], other=0.0)
    slab = (row * kv_heads + kv_head).to(tl.int64) * capacity * DIM
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    gathered = tl.zeros((ROWS, DIM), tl.float32)
    for start in range(0, length, BLOCK):
        seen = start + keys
        k = tl.load(key_cache + slab + seen[None, :] * DIM + dims[:, None], mask=(seen < length)[None, :], other=0.0)
        scores = tl.dot(query, k) * scale
        scores = tl.where((seen < length)[None, :], scores, float("-inf"))
        above = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp2(highest - above)
        weights = tl.exp2(scores - above[:, None])
        v = tl.load(value_cache + slab + seen[:, None] * DIM + dims[None, :], mask=(seen < length)[:, None], other=0.0)
        gathered = gathered * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), v)
        total = total * shrink + tl.sum(weights, axis=1)
        highest = above
    result = gathered / total[:, None]
    tl.store(out + (base + lanes)[:, None] * DIM + dims[None, :], result.to(tl.bfloat16), mask=(lanes < GROUP)[:, None])


def attend(queries: Tensor, key_cache: Tensor, value_cache: Tensor, positions: Tensor, out: Tensor) -> None:
    """Each row's (heads, dim) queries over what its cache holds up to its position."""
    rows, heads, dim = queries.shape
    kv_heads, capacity = key_cache.shape[1:3]
    group = heads // kv_heads
    _attend[(rows, kv_heads)](
        queries, key_cache, value_cache, positions, out, kv_heads, capacity, dim**-0.5 * 1.4426950408889634,
        GROUP=group, ROWS=max(GROUP_ROWS, triton.next_power_of_2(group)), DIM=dim, BLOCK=64, num_warps=4, num_stages=3,
    )  # fmt: skip


@triton.jit
def _gate(both, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(both + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    opened = (gate / (1.0 + tl.exp(-gate))).to(tl.bfloat16).to(tl.float32)
    tl.store(out + row * width + columns, (opened * up).to(tl.bfloat16), mask=inside)


def gate(both: Tensor, out: Tensor) -> None:
    """silu(first half) · second half."""
    rows, width = out.shape
    _gate[(rows, triton.cdiv(width, 1024))](both, out, width, BLOCK=1024, num_warps=4)


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _draw(
    logits, keys, steps, positions, ended, stops, tokens, logprobs, out_tokens, vocab, room, coldness, capacity,
    STOPS: tl.constexpr, GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inverse_temperature = tl.load(coldness)
    base = logits + row.to(tl.int64) * vocab
    highest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    likeliest = tl.full((), 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        inside = start + columns < vocab
        some = tl.load(base + start + columns, mask=inside, other=float("-inf")) * inverse_temperature
        top = tl.max(some, 0)
        likeliest = tl.where(top > highest, start + tl.argmax(some, 0), likeliest)
        above = tl.maximum(highest, top)
        total = total * tl.exp(highest - above) + tl.sum(tl.exp(some - above), 0)
        highest = above
    step = tl.load(steps + row)
    if GREEDY:
        chosen = likeliest
        logprob = 0.0
    else:
        z = _mix(tl.load(keys + row).to(tl.uint64) + (step + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
        wanted = ((z >> 11).to(tl.float64) * 1.1102230246251565e-16).to(tl.float32) * total
        before = tl.zeros((), tl.float32)
        chosen = tl.full((), vocab, tl.int32)
        for start in range(0, vocab, BLOCK):
            inside = start + columns < vocab
            some = tl.load(base + start + columns, mask=inside, other=float("-inf")) * inverse_temperature
            mass = tl.exp(some - highest)
            reached = before + tl.cumsum(mass, 0)
            chosen = tl.minimum(chosen, tl.min(tl.where((reached > wanted) & inside, start + columns, vocab), 0))
            before += tl.sum(mass, 0)
        chosen = tl.where(chosen >= vocab, likeliest, chosen)  # rounding left a little above the last sum
        logprob = tl.load(base + chosen) * inverse_temperature - highest - tl.log(total)
    last = tl.load(ended + row)
    for index in tl.static_range(STOPS):
        last = tl.where(chosen == tl.load(stops + index), tl.minimum(last, step + 1), last)
    tl.store(ended + row, last)
    tl.store(tokens + row, chosen.to(tl.int64))
    tl.store(out_tokens + row * room + step, chosen, mask=step < room)
    tl.store(logprobs + row * room + step, logprob, mask=step < room)
    tl.store(steps + row, step + 1)
    tl.store(positions + row, tl.minimum(tl.load(positions + row) + 1, capacity - 1))


def draw(logits: Tensor, rows: Rows, stops: Tensor, coldness: Tensor, *, greedy: bool, capacity: int) -> None:
    """Draws a token per row by its own random number, notes it with its log-prob, and moves the row on.

    `coldness` (1,) is 1 / temperature, on the device so that a graph need not know it.
    """
    count, vocab = logits.shape
    _draw[(count,)](
        logits, rows.streams, rows.steps, rows.positions, rows.ended, stops, rows.tokens, rows.logprobs, rows.out_tokens,
        vocab, rows.out_tokens.shape[1], coldness, capacity,
        STOPS=len(stops), GREEDY=greedy, BLOCK=4096, num_warps=8,
    )  # fmt: skip
