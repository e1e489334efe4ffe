"""A Triton kernel that merges attention over two sets of keys by their log-sum-exps. Apart, because it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _join(
    out, lse, other, other_lse, row_stride, head_stride, other_row_stride, other_head_stride,
    lse_stride, other_lse_stride, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """lse = log(e^lse₁ + e^lse₂), out = out₁ · e^(lse₁ − lse) + out₂ · e^(lse₂ − lse); one program per token."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    inside = dims < DIM
    for head in tl.static_range(HEADS):
        ours = tl.load(lse + head * lse_stride + row)
        theirs = tl.load(other_lse + head * other_lse_stride + row)
        highest = tl.maximum(ours, theirs)
        joined = highest + tl.log(tl.exp(ours - highest) + tl.exp(theirs - highest))
        here = out + row * row_stride + head * head_stride + dims
        there = other + row * other_row_stride + head * other_head_stride + dims
        mine = tl.load(here, mask=inside, other=0.0).to(tl.float32) * tl.exp(ours - joined)
        more = tl.load(there, mask=inside, other=0.0).to(tl.float32) * tl.exp(theirs - joined)
        tl.store(here, (mine + more).to(out.dtype.element_ty), mask=inside)
        tl.store(lse + head * lse_stride + row, joined)


def join(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Merges `other` into `out`, both (N, heads, dim), and `other_lse` into `lse`, both (heads, N), in place."""
    count, heads, dim = out.shape
    _join[(count,)](
        out, lse, other, other_lse, *out.stride()[:2], *other.stride()[:2], lse.stride(0), other_lse.stride(0),
        HEADS=heads, DIM=dim, BLOCK=triton.next_power_of_2(dim), num_warps=1,
    )  # fmt: skip
