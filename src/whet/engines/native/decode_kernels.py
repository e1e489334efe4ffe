"""Triton kernels of a decode step, imported only on CUDA. Their oracle in plain torch is tests/engines/decode_plain.py.

Norm and gate are those of the training block (`models.kernels`). RoPE and attention are not: these write into the KV
cache of slots and read it, and need no state for a backward pass.

Letters: n rows of a step, S slots, D width, M width of the MLP, V vocabulary, dim width of a head, kv_heads key heads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from whet.engines.native.slots import SlotCache, SlotRows, Turn, Where
from whet.models.kernels.block_kernels import gate, norm_kernel

__all__ = ["add_norm", "attend", "draw", "gate", "place"]

GROUP_ROWS = 16  # least rows of a tensor-core product: the query heads that share a key head are padded to it
KEY_BLOCK = 64  # positions of the context per iteration of attention
ATTEND_WARPS = 2  # of a program of decode attention
ATTEND_STAGES = 4  # blocks of keys that are loaded ahead, in bf16
VOCABULARY_BLOCK = 4096  # logits per program of a draw
LOG2_E = 1.4426950408889634


def add_norm(residual: Tensor, added: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """residual (n, D) fp32 += added (n, D), in place; returns RMSNorm(residual) · weight (D,), (n, D) in the dtype."""
    rows, width = residual.shape
    out = torch.empty(rows, width, dtype=dtype, device=residual.device)
    scales = torch.empty(rows, device=residual.device)  # only a backward pass reads them
    norm_kernel[(rows,)](
        residual, residual if added is None else added, weight, residual, out, scales, width, eps,
        HAS_ADDED=added is not None, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _held(table, index, HALF: tl.constexpr):
    """Pointer to the cache's keys (index 0) or values (1), read from device memory: it changes between rollouts."""
    address = tl.load(table + index)
    kind: tl.constexpr = tl.bfloat16 if HALF else tl.float32
    return tl.multiple_of(address.to(tl.pointer_type(kind)), 16)


@triton.jit(do_not_specialize=["layer"])
def _place(
    qkv, cosine, sine, slots, positions, q_weight, k_weight, queries, dense_keys, dense_values, table,
    layer, slot_count, heads, kv_heads, capacity, eps,
    HEAD_NORM: tl.constexpr, IS_DENSE: tl.constexpr, BY_SLOT: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """One program per row, all its heads at once; HEADS is the number of heads rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    position = tl.load(positions + (slot if BY_SLOT else row))
    head = tl.arange(0, HEADS)[:, None]
    half = tl.arange(0, DIM // 2)[None, :]
    is_query = head < heads
    turns = head < heads + kv_heads
    inside = head < heads + 2 * kv_heads
    kind = qkv.dtype.element_ty
    base = qkv + (row * (heads + 2 * kv_heads) + head) * DIM + half
    first = tl.load(base, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(base + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    if HEAD_NORM:
        scale = 1.0 / tl.sqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / DIM + eps)[:, None]
        w1 = tl.where(is_query, tl.load(q_weight + half), tl.load(k_weight + half))
        w2 = tl.where(is_query, tl.load(q_weight + DIM // 2 + half), tl.load(k_weight + DIM // 2 + half))
        first = tl.where(turns, (first * scale * w1).to(kind).to(tl.float32), first)
        second = tl.where(turns, (second * scale * w2).to(kind).to(tl.float32), second)
    cos = tl.load(cosine + position * (DIM // 2) + half)
    sin = tl.load(sine + position * (DIM // 2) + half)
    turned = tl.where(turns, first * cos - second * sin, first).to(kind)
    second = tl.where(turns, second * cos + first * sin, second).to(kind)
    target = queries + (row * heads + head) * DIM + half
    tl.store(target, turned, mask=is_query)
    tl.store(target + DIM // 2, second, mask=is_query)
    is_key = turns & (head >= heads)
    is_value = inside & (head >= heads + kv_heads)
    mine = head - heads - tl.where(is_value, kv_heads, 0)
    slab = (layer.to(tl.int64) * slot_count + slot) * kv_heads + mine
    place = (slab * capacity + position) * DIM + half
    keys = _held(table, 0, HALF)
    values = _held(table, 1, HALF)
    tl.store(keys + place, turned, mask=is_key)
    tl.store(keys + place + DIM // 2, second, mask=is_key)
    tl.store(values + place, turned, mask=is_value)
    tl.store(values + place + DIM // 2, second, mask=is_value)
    if IS_DENSE:
        dense = (row * kv_heads + mine) * DIM + half
        tl.store(dense_keys + dense, turned, mask=is_key)
        tl.store(dense_keys + dense + DIM // 2, second, mask=is_key)
        tl.store(dense_values + dense, turned, mask=is_value)
        tl.store(dense_values + dense + DIM // 2, second, mask=is_value)


def place(
    qkv: Tensor, how: Turn, where: Where, dense: tuple[Tensor, Tensor] | None, cache: SlotCache, layer: int
) -> Tensor:
    """Splits qkv (n, (heads + 2 · kv_heads) · dim), norms heads (Qwen3), and applies RoPE; returns queries (n, heads, dim).

    Keys and values go to the cache at each row's slot and position, and also to `dense`, two tensors (n, kv_heads,
    dim), for a prefill, whose attention does not read the cache.
    """
    _, slot_count, kv_heads, capacity, dim = cache.shape
    rows, heads = len(qkv), qkv.shape[1] // dim - 2 * kv_heads
    queries = torch.empty(rows, heads, dim, dtype=qkv.dtype, device=qkv.device)
    q_weight, k_weight = how.norms or (queries, queries)
    dense_keys, dense_values = dense or (queries, queries)
    _place[(rows,)](
        qkv, *how.angles, where.slots, where.positions, q_weight, k_weight, queries, dense_keys, dense_values,
        cache.table, layer, slot_count, heads, kv_heads, capacity, how.eps,
        HEAD_NORM=how.norms is not None, IS_DENSE=dense is not None, BY_SLOT=where.by_slot,
        HALF=cache.dtype is torch.bfloat16, DIM=dim, HEADS=triton.next_power_of_2(heads + 2 * kv_heads), num_warps=4,
    )  # fmt: skip
    return queries


@triton.jit(do_not_specialize=["layer"])
def _attend(  # noqa: PLR0915 - a kernel's running sums cannot be handed on without being copied
    queries, table, slots, positions, prefixes, shared, out, parts, peaks,
    layer, slot_count, kv_heads, capacity, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    # One program per row, key head and split: online softmax (Milakov & Gimelshein 2018) over blocks of the context.
    # Scores sⱼ = q·kⱼ · scale, scale includes log₂ e; out = Σ 2^(sⱼ − highest) · vⱼ / Σ 2^(sⱼ − highest).
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    slot = tl.load(slots + row)
    length = tl.load(positions + slot) + 1
    common = tl.load(shared + slot)
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    base = (row * kv_heads + kv_head) * GROUP
    query = tl.load(queries + (base + lanes)[:, None] * DIM + dims[None, :], mask=(lanes < GROUP)[:, None], other=0.0)
    first = layer.to(tl.int64) * slot_count
    stride = capacity * DIM
    own = ((first + slot) * kv_heads + kv_head) * stride
    other = ((first + tl.load(prefixes + slot)) * kv_heads + kv_head) * stride
    keys = _held(table, 0, HALF)
    values = _held(table, 1, HALF)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    gathered = tl.zeros((ROWS, DIM), tl.float32)
    low = 0
    high = length
    if SPLITS > 1:
        share = (tl.cdiv(tl.cdiv(length, SPLITS), BLOCK)) * BLOCK
        low = tl.program_id(2) * share
        high = tl.minimum(length, low + share)
    ahead = tl.arange(0, BLOCK)
    precision: tl.constexpr = "tf32" if HALF else "ieee"
    # Blocks start at multiples of their size whichever slot holds the keys, so sharing a prompt keeps the rounding.
    for start in range(low, high, BLOCK):
        seen = start + ahead
        inside = seen < high
        slab = tl.where(seen < common, other, own) + seen * DIM
        k = tl.load(keys + slab[None, :] + dims[:, None], mask=inside[None, :], other=0.0)
        scores = tl.dot(query, k, input_precision=precision) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        above = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp2(highest - above)
        weights = tl.exp2(scores - above[:, None])
        v = tl.load(values + slab[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        gathered = gathered * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=precision)
        total = total * shrink + tl.sum(weights, axis=1)
        highest = above
    if SPLITS == 1:
        result = gathered / total[:, None]
        target = out + (base + lanes)[:, None] * DIM + dims[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=(lanes < GROUP)[:, None])
    else:
        piece = (row * kv_heads + kv_head) * SPLITS + tl.program_id(2)
        target = parts + (piece * GROUP + lanes)[:, None] * DIM + dims[None, :]
        tl.store(target, gathered, mask=(lanes < GROUP)[:, None])
        tl.store(peaks + piece * 2 * GROUP + lanes, highest, mask=lanes < GROUP)
        tl.store(peaks + (piece * 2 + 1) * GROUP + lanes, total, mask=lanes < GROUP)


@triton.jit
def _combine(
    parts, peaks, out, kv_heads, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr
):
    """Merges the splits of `_attend`: each is rescaled by 2^(its highest − the overall highest), then summed."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    is_head = lanes < GROUP
    first = (row * kv_heads + kv_head) * SPLITS
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        highest = tl.maximum(highest, tl.load(peaks + (first + split) * 2 * GROUP + lanes, mask=is_head, other=0.0))
    total = tl.zeros((ROWS,), tl.float32)
    gathered = tl.zeros((ROWS, DIM), tl.float32)
    for split in tl.static_range(SPLITS):
        share = tl.exp2(tl.load(peaks + (first + split) * 2 * GROUP + lanes, mask=is_head, other=0.0) - highest)
        total += share * tl.load(peaks + ((first + split) * 2 + 1) * GROUP + lanes, mask=is_head, other=1.0)
        target = parts + ((first + split) * GROUP + lanes)[:, None] * DIM + dims[None, :]
        gathered += share[:, None] * tl.load(target, mask=is_head[:, None], other=0.0)
    target = out + ((row * kv_heads + kv_head) * GROUP + lanes)[:, None] * DIM + dims[None, :]
    tl.store(target, (gathered / total[:, None]).to(out.dtype.element_ty), mask=is_head[:, None])


def attend(queries: Tensor, cache: SlotCache, layer: int, slots: Tensor, rows: SlotRows, splits: int = 1) -> Tensor:
    """(n, heads, dim): attention of queries (n, heads, dim) over each row's slot up to its position.

    With `splits` > 1 several programs share a long context (split-K), because few rows would leave the GPU idle.
    """
    count, heads, dim = queries.shape
    out = torch.empty_like(queries)
    _, slot_count, kv_heads, capacity, _ = cache.shape
    group = heads // kv_heads
    lanes = max(GROUP_ROWS, triton.next_power_of_2(group))
    pieces = count * kv_heads * splits if splits > 1 else 0
    parts = torch.empty(pieces * group * dim, device=out.device)
    peaks = torch.empty(pieces * group * 2, device=out.device)
    _attend[(count, kv_heads, splits)](
        queries, cache.table, slots, rows.positions, rows.prefixes, rows.shared, out, parts, peaks,
        layer, slot_count, kv_heads, capacity, dim**-0.5 * LOG2_E,
        GROUP=group, ROWS=lanes, DIM=dim, BLOCK=KEY_BLOCK, SPLITS=splits, HALF=cache.dtype is torch.bfloat16,
        num_warps=ATTEND_WARPS, num_stages=ATTEND_STAGES if cache.dtype is torch.bfloat16 else 2,
    )  # fmt: skip
    if splits > 1:
        _combine[(count, kv_heads)](
            parts, peaks, out, kv_heads, GROUP=group, ROWS=lanes, DIM=dim, SPLITS=splits, num_warps=4
        )
    return out


@triton.jit
def _mix(z):
    """The finalizer of SplitMix64, as in `whet.streams`."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _weigh(logits, coldness, peaks, masses, likeliest, vocab, BLOCK: tl.constexpr):
    """Per row and block of the vocabulary: peak = max x, mass = Σ e^(x − peak), and the id of the peak."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    some = tl.load(logits + row * vocab + columns, mask=columns < vocab, other=float("-inf")) * tl.load(coldness)
    peak = tl.max(some, 0)
    place = row * tl.num_programs(1) + block
    tl.store(peaks + place, peak)
    tl.store(masses + place, tl.sum(tl.exp(some - peak), 0))
    tl.store(likeliest + place, block * BLOCK + tl.argmax(some, 0))


@triton.jit
def _draw(
    logits, coldness, peaks, masses, likeliest, slots, streams, steps, positions, ended, stops, tokens, logprobs,
    out_tokens, vocab, room, capacity, blocks,
    STOPS: tl.constexpr, GREEDY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Inverse transform sampling, one program per row: first the block of the vocabulary, then the token in it.

    The uniform number u is SplitMix64 of the slot's stream and step. The token is the first whose cumulative mass
    exceeds u · total; its log-prob is x − highest − log total.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    several = tl.arange(0, BLOCKS)
    tops = tl.load(peaks + row * blocks + several, mask=several < blocks, other=float("-inf"))
    highest = tl.max(tops, 0)
    step = tl.load(steps + slot)
    if GREEDY:
        chosen = tl.load(likeliest + row * blocks + tl.argmax(tops, 0))
        # tl.max ignores NaN; a sum of exponentials does not, and is NaN too if the maximum is infinite.
        whole = tl.sum(tl.load(masses + row * blocks + several, mask=several < blocks, other=0.0), 0)
        logprob = tl.where(whole < float("inf"), 0.0, float("nan"))
    else:
        mass = tl.load(masses + row * blocks + several, mask=several < blocks, other=0.0) * tl.exp(tops - highest)
        reached = tl.cumsum(mass, 0)
        total = tl.sum(mass, 0)
        z = _mix(tl.load(streams + slot).to(tl.uint64) + (step + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
        wanted = ((z >> 11).to(tl.float64) * 1.1102230246251565e-16).to(tl.float32) * total
        block = tl.minimum(tl.sum((reached <= wanted).to(tl.int32), 0), blocks - 1)
        rest = wanted - tl.max(tl.where(several < block, reached, 0.0), 0)  # the sum that chose: never below 0
        columns = block * BLOCK + tl.arange(0, BLOCK)
        inside = columns < vocab
        cold = tl.load(coldness)
        some = tl.load(logits + row * vocab + columns, mask=inside, other=float("-inf")) * cold
        within = tl.cumsum(tl.exp(some - highest), 0)
        chosen = tl.min(tl.where((within > rest) & inside, columns, vocab), 0)
        # Rounding may put u · total above the last cumulative sum.
        chosen = tl.where(chosen >= vocab, tl.load(likeliest + row * blocks + block), chosen)
        logprob = tl.load(logits + row * vocab + chosen) * cold - highest - tl.log(total)
    chosen = tl.minimum(tl.maximum(chosen, 0), vocab - 1)  # padding may hold anything
    last = tl.load(ended + slot)
    for index in tl.static_range(STOPS):
        last = tl.where(chosen == tl.load(stops + index), tl.minimum(last, step + 1), last)
    tl.store(ended + slot, last)
    tl.store(tokens + slot, chosen.to(tl.int64))
    tl.store(out_tokens + slot * room + step, chosen, mask=step < room)
    tl.store(logprobs + slot * room + step, logprob, mask=step < room)
    tl.store(steps + slot, step + 1)
    tl.store(positions + slot, tl.minimum(tl.load(positions + slot) + 1, capacity - 1))


def draw(
    logits: Tensor, slots: Tensor, rows: SlotRows, stops: Tensor, coldness: Tensor, *, greedy: bool, capacity: int
) -> None:
    """Samples a token per row of (n, V) logits, records it with its log-prob, and advances the row's slot.

    `coldness` (1,) is 1 / temperature, on the device so that one graph serves every temperature.
    """
    count, vocab = logits.shape
    blocks = triton.cdiv(vocab, VOCABULARY_BLOCK)
    peaks, masses = (torch.empty(count, blocks, device=logits.device) for _ in range(2))
    likeliest = torch.empty(count, blocks, dtype=torch.int32, device=logits.device)
    _weigh[(count, blocks)](logits, coldness, peaks, masses, likeliest, vocab, BLOCK=VOCABULARY_BLOCK, num_warps=8)
    _draw[(count,)](
        logits, coldness, peaks, masses, likeliest, slots, rows.streams, rows.steps, rows.positions, rows.ended, stops,
        rows.tokens, rows.logprobs, rows.out_tokens, vocab, rows.out_tokens.shape[1], capacity, blocks,
        STOPS=len(stops), GREEDY=greedy, BLOCKS=triton.next_power_of_2(blocks), BLOCK=VOCABULARY_BLOCK, num_warps=8,
    )  # fmt: skip
