"""Triton kernels over (n, V) logits: log-prob of one token per row and entropy of the row, and their gradient.

They read the logits once, where log_softmax, gather and entropy would write several (n, V) tensors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits of a row per iteration or program


@triton.jit
def _read(logits, targets, logprobs, entropies, lse, vocab, coldness, BLOCK: tl.constexpr):
    """One program per row; one pass over the row with running sums, rescaled whenever the maximum rises.

    With x = logits · coldness, m = max x, Z = Σ e^(x−m): lse = m + log Z, log p(y) = x_y − lse,
    H = log Z − Σ (x−m) e^(x−m) / Z.
    """
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * vocab
    highest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    weighted = tl.zeros((), tl.float32)  # Σ (x − highest) · exp(x − highest)
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        some = tl.load(base + columns, mask=columns < vocab, other=float("-inf")) * coldness
        above = tl.maximum(highest, tl.max(some, 0))
        shrink = tl.exp(highest - above)
        fall = tl.where(highest == float("-inf"), 0.0, highest - above)
        distance = tl.where(columns < vocab, some - above, 0.0)
        mass = tl.where(columns < vocab, tl.exp(some - above), 0.0)
        weighted = (weighted + fall * total) * shrink + tl.sum(distance * mass, 0)
        total = total * shrink + tl.sum(mass, 0)
        highest = above
    whole = highest + tl.log(total)
    chosen = tl.load(base + tl.load(targets + row)) * coldness
    tl.store(logprobs + row, chosen - whole)
    tl.store(entropies + row, tl.log(total) - weighted / total)
    tl.store(lse + row, whole)


def read(logits: Tensor, targets: Tensor, temperature: float, logprobs: Tensor, entropies: Tensor, lse: Tensor) -> None:
    """Fills (n,) log-probs of the (n,) targets, entropies and log-sum-exps of (n, V) fp32 logits at a temperature."""
    rows, vocab = logits.shape
    _read[(rows,)](logits, targets, logprobs, entropies, lse, vocab, 1.0 / temperature, BLOCK=BLOCK, num_warps=8)


@triton.jit
def _pull(
    logits, targets, lse, entropies, of_logprobs, of_entropies, out, vocab, coldness,
    HAS_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """∂L/∂logits = coldness · (a · (onehot(y) − p) − h · p · (log p + H)), a = ∂L/∂log p(y), h = ∂L/∂H."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab
    logs = tl.load(logits + row * vocab + columns, mask=inside, other=0.0) * coldness - tl.load(lse + row)
    pull = tl.load(of_logprobs + row)
    slope = -pull
    if HAS_ENTROPY:
        slope -= tl.load(of_entropies + row) * (logs + tl.load(entropies + row))
    slope = slope * tl.exp(logs) + tl.where(columns == tl.load(targets + row), pull, 0.0)
    tl.store(out + row * vocab + columns, (slope * coldness).to(tl.bfloat16), mask=inside)


def pull(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    lse: Tensor,
    entropies: Tensor,
    of_logprobs: Tensor,
    of_entropies: Tensor | None,
) -> Tensor:
    """∂L/∂logits, (n, V) bf16, from the (n,) gradients of log-probs and, unless None, of entropies."""
    rows, vocab = logits.shape
    out = torch.empty(rows, vocab, dtype=torch.bfloat16, device=logits.device)
    _pull[(rows, triton.cdiv(vocab, BLOCK))](
        logits, targets, lse, entropies, of_logprobs.contiguous(),
        of_logprobs if of_entropies is None else of_entropies.contiguous(), out, vocab, 1.0 / temperature,
        HAS_ENTROPY=of_entropies is not None, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    return out
