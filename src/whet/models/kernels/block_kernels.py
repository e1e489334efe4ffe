"""Triton kernels of a decoder block in training (norm, RoPE, gate) with hand-written gradients; bf16 in and out.

The native engine's decode step uses the forward norm and gate too, also in fp32.

`block_plain` has the same functions in plain torch. Letters: N packed tokens, D width, M width of the MLP, dim width of
a head. A name `of_x` is the gradient of the loss with respect to x.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NORM_PROGRAMS = 1056  # of a norm's backward pass: each sums the weight's gradient over its share of the rows
TURN_ROWS = 16  # tokens per program of RoPE


@triton.jit
def norm_kernel(states, added, weight, total, out, scales, width, eps, HAS_ADDED: tl.constexpr, BLOCK: tl.constexpr):
    """One program per token: x = states + added, r = 1 / √(mean(x²) + eps), out = x · r · weight."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(states + row * width + columns, mask=inside, other=0.0)
    if HAS_ADDED:
        x += tl.load(added + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * width + columns, x, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    tl.store(scales + row, scale)
    normed = x * scale * tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(out + row * width + columns, normed.to(out.dtype.element_ty), mask=inside)


def norm(states: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """states (N, D) fp32, added (N, D) bf16, weight (D,) → x = states + added fp32, RMSNorm(x) bf16, scales r (N,)."""
    rows, width = states.shape
    total = states if added is None else torch.empty_like(states)
    out = torch.empty(rows, width, dtype=torch.bfloat16, device=states.device)
    scales = torch.empty(rows, device=states.device)
    norm_kernel[(rows,)](
        states, states if added is None else added, weight, total, out, scales, width, eps,
        HAS_ADDED=added is not None, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return total, out, scales


@triton.jit
def _norm_back(
    states, scales, weight, of_out, of_total, out, half, normed, of_weight, rows, width, BLOCK: tl.constexpr
):
    """With u = x · r (unit RMS), y = u · w and g = ∂L/∂y: ∂L/∂w = Σ_rows g · u, and with p = g · w

    ∂L/∂x = of_total + r · (p − u · mean(p · u)), where of_total is the gradient that reaches x past the norm.
    """
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    w = tl.load(weight + columns, mask=inside, other=0.0)
    summed = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        place = row.to(tl.int64) * width + columns  # type: ignore[attr-defined]  # Triton's range counts in tensors
        scale = tl.load(scales + row)
        unit = tl.load(states + place, mask=inside, other=0.0) * scale
        pull = tl.load(of_out + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(normed + place, (unit * w).to(tl.bfloat16), mask=inside)
        summed += pull * unit
        pull *= w
        along = tl.sum(pull * unit, axis=0) / width
        slope = tl.load(of_total + place, mask=inside, other=0.0) + scale * (pull - unit * along)
        tl.store(out + place, slope, mask=inside)
        tl.store(half + place, slope.to(tl.bfloat16), mask=inside)
    tl.store(of_weight + program * width + columns, summed, mask=inside)


def norm_back(
    states: Tensor, scales: Tensor, weight: Tensor, of_out: Tensor, of_total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """→ ∂L/∂states (N, D) fp32 and bf16, the norm's output recomputed (N, D) bf16, ∂L/∂weight (D,).

    `of_out` (N, D) bf16 is the gradient of the norm's output, `of_total` (N, D) fp32 that of the residual stream.
    """
    rows, width = states.shape
    out = torch.empty_like(states)
    half, normed = (torch.empty(rows, width, dtype=torch.bfloat16, device=states.device) for _ in range(2))
    programs = min(rows, NORM_PROGRAMS)
    of_weight = torch.empty(programs, width, device=states.device)
    _norm_back[(programs,)](
        states, scales, weight, of_out, of_total, out, half, normed, of_weight, rows, width,
        BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out, half, normed, of_weight.sum(dim=0)


@triton.jit
def _turn(
    qkv, cosine, sine, q_weight, k_weight, queries, keys, values, rows, heads, kv_heads, eps,
    HEAD_NORM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program per TURN_ROWS tokens and head. RoPE turns the pair (a, b) = (xᵢ, xᵢ₊dim/2) by its angle θ:

    (a cos θ − b sin θ, b cos θ + a sin θ).
    """
    here = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    half = tl.arange(0, DIM // 2)
    inside = (here < rows)[:, None]
    lines = here[:, None].to(tl.int64)
    base = qkv + lines * (heads + 2 * kv_heads) * DIM + head * DIM + half[None, :]
    first = tl.load(base, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(base + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    if head < heads + kv_heads:
        if HEAD_NORM:
            weight = q_weight if head < heads else k_weight
            size = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / DIM
            scale = (1.0 / tl.sqrt(size + eps))[:, None]
            first = (first * scale * tl.load(weight + half)[None, :]).to(tl.bfloat16).to(tl.float32)
            second = (second * scale * tl.load(weight + DIM // 2 + half)[None, :]).to(tl.bfloat16).to(tl.float32)
        cos = tl.load(cosine + lines * (DIM // 2) + half[None, :], mask=inside, other=0.0)
        sin = tl.load(sine + lines * (DIM // 2) + half[None, :], mask=inside, other=0.0)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    if head < heads:
        target = queries + (lines * heads + head) * DIM
    elif head < heads + kv_heads:
        target = keys + (lines * kv_heads + head - heads) * DIM
    else:
        target = values + (lines * kv_heads + head - heads - kv_heads) * DIM
    tl.store(target + half[None, :], first.to(tl.bfloat16), mask=inside)
    tl.store(target + DIM // 2 + half[None, :], second.to(tl.bfloat16), mask=inside)


def turn(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    shape: tuple[int, int, int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv (N, (heads + 2 · kv_heads) · dim) → queries (N, heads, dim), keys and values (N, kv_heads, dim).

    Queries and keys get RMS norms per head (`norms`, two (dim,) weights, or None) and then RoPE: `angles` are cosine
    and sine, (N, dim / 2) each.
    """
    heads, kv_heads, dim = shape
    queries = torch.empty(len(qkv), heads, dim, dtype=qkv.dtype, device=qkv.device)
    keys, values = (torch.empty(len(qkv), kv_heads, dim, dtype=qkv.dtype, device=qkv.device) for _ in range(2))
    _turn[(triton.cdiv(len(qkv), TURN_ROWS), heads + 2 * kv_heads)](
        qkv, *angles, *(norms or angles), queries, keys, values, len(qkv), heads, kv_heads, eps,
        HEAD_NORM=norms is not None, DIM=dim, ROWS=TURN_ROWS, num_warps=1,
    )  # fmt: skip
    return queries, keys, values


@triton.jit
def _turn_back(
    qkv, cosine, sine, q_weight, k_weight, of_queries, of_keys, of_values, out, of_weights,
    rows, heads, kv_heads, eps, HEAD_NORM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of a rotation is the rotation by −θ; then that of the head norm, with the formula of `_norm_back`."""
    here = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    half = tl.arange(0, DIM // 2)
    inside = (here < rows)[:, None]
    lines = here[:, None].to(tl.int64)
    if head < heads:
        source = of_queries + (lines * heads + head) * DIM
    elif head < heads + kv_heads:
        source = of_keys + (lines * kv_heads + head - heads) * DIM
    else:
        source = of_values + (lines * kv_heads + head - heads - kv_heads) * DIM
    first = tl.load(source + half[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + DIM // 2 + half[None, :], mask=inside, other=0.0).to(tl.float32)
    place = lines * (heads + 2 * kv_heads) * DIM + head * DIM + half[None, :]
    if head < heads + kv_heads:
        cos = tl.load(cosine + lines * (DIM // 2) + half[None, :], mask=inside, other=0.0)
        sin = tl.load(sine + lines * (DIM // 2) + half[None, :], mask=inside, other=0.0)
        turned = first * cos + second * sin
        second = second * cos - first * sin
        first = turned
        if HEAD_NORM:
            weight = q_weight if head < heads else k_weight
            w1 = tl.load(weight + half)[None, :]
            w2 = tl.load(weight + DIM // 2 + half)[None, :]
            x1 = tl.load(qkv + place, mask=inside, other=0.0).to(tl.float32)
            x2 = tl.load(qkv + place + DIM // 2, mask=inside, other=0.0).to(tl.float32)
            scale = (1.0 / tl.sqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / DIM + eps))[:, None]
            x1 *= scale
            x2 *= scale
            mine = of_weights + (tl.program_id(0) * (heads + kv_heads) + head) * DIM
            tl.store(mine + half, tl.sum(first * x1, 0))
            tl.store(mine + DIM // 2 + half, tl.sum(second * x2, 0))
            first *= w1
            second *= w2
            along = ((tl.sum(first * x1, 1) + tl.sum(second * x2, 1)) / DIM)[:, None]
            first = scale * (first - x1 * along)
            second = scale * (second - x2 * along)
    tl.store(out + place, first.to(tl.bfloat16), mask=inside)
    tl.store(out + place + DIM // 2, second.to(tl.bfloat16), mask=inside)


def turn_back(
    qkv: Tensor, angles: tuple[Tensor, Tensor], norms: tuple[Tensor, Tensor] | None,
    of_queries: Tensor, of_keys: Tensor, of_values: Tensor, eps: float,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:  # fmt: skip
    """→ ∂L/∂qkv, shaped as qkv, and the (dim,) gradients of the two head norms' weights.

    `qkv` itself is only read for head norms.
    """
    rows, heads, dim = of_queries.shape
    kv_heads = of_keys.shape[1]
    out = torch.empty_like(qkv)
    programs = triton.cdiv(rows, TURN_ROWS)
    of_weights = torch.empty(programs if norms else 0, heads + kv_heads, dim, device=qkv.device)
    _turn_back[(programs, heads + 2 * kv_heads)](
        qkv, *angles, *(norms or angles), of_queries, of_keys, of_values, out, of_weights, rows, heads, kv_heads, eps,
        HEAD_NORM=norms is not None, DIM=dim, ROWS=TURN_ROWS, num_warps=1,
    )  # fmt: skip
    if norms is None:
        return out, None
    summed = of_weights.sum(dim=0)
    return out, (summed[:heads].sum(dim=0), summed[heads:].sum(dim=0))


@triton.jit
def _gate(both, out, width, BLOCK: tl.constexpr):
    """silu(a) · b with silu(a) = a / (1 + e⁻ᵃ), rounded to the output's dtype before the product as under autocast."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    first = tl.load(both + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(both + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    opened = (first / (1.0 + tl.exp(-first))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, (opened * second).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gate_back(both, pull, out, width, BLOCK: tl.constexpr):
    """With y = silu(a) · b, g = ∂L/∂y, σ = sigmoid(a): ∂L/∂a = g · b · σ · (1 + a · (1 − σ)), ∂L/∂b = g · silu(a).

    Both overwrite a and b; y is recomputed into `out`.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    first = tl.load(both + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(both + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    p = tl.load(pull + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-first))
    opened = first * share
    tl.store(out + row * width + columns, (opened.to(tl.bfloat16).to(tl.float32) * second).to(tl.bfloat16), mask=inside)
    of_first = p * second * share * (1.0 + first * (1.0 - share))
    tl.store(both + row * 2 * width + columns, of_first.to(tl.bfloat16), mask=inside)
    tl.store(both + row * 2 * width + width + columns, (p * opened).to(tl.bfloat16), mask=inside)


def gate(both: Tensor) -> Tensor:
    """(N, 2 · M) → (N, M): silu(first half) · second half."""
    rows, width = len(both), both.shape[1] // 2
    out = torch.empty(rows, width, dtype=both.dtype, device=both.device)
    _gate[(rows, triton.cdiv(width, 1024))](both, out, width, BLOCK=1024, num_warps=4)
    return out


def gate_back(both: Tensor, pull: Tensor) -> Tensor:
    """(N, M): the output of `gate`, recomputed; `both` is overwritten with its gradient. `pull` (N, M) is ∂L/∂output."""
    out = torch.empty_like(pull)
    rows, width = pull.shape
    _gate_back[(rows, triton.cdiv(width, 1024))](both, pull, out, width, BLOCK=1024, num_warps=4)
    return out
