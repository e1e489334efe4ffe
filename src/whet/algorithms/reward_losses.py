"""Scores of a reward model to a loss: one per pair, per judged token, or per step of a solution.

Scores are logits in fp32. Which tokens are scored, and what is averaged, is the loop's matter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, softplus


def bradley_terry(
    chosen: Tensor,
    rejected: Tensor,
    margins: Tensor,
    *,
    centring: float = 0.0,
    smoothing: float = 0.0,
    use_margins: bool = False,
) -> Tensor:
    """−(1−ε)·log σ(w−l−m) − ε·log σ(l−w−m) + centring·(w+l)², w and l = scores, m = margin or 0, ε = smoothing.

    The pair loss is that of Ouyang et al. 2022, eq. 1, the margin that of Touvron et al. 2023 (Llama 2), eq. 2; it is
    0 without `use_margins`. Centring pulls the scores of a pair to a mean of 0, which pairs alone leave open
    (Eisenstein et al. 2023). Terms are (P,).
    """
    gap, wanted = chosen - rejected, margins if use_margins else torch.zeros_like(margins)
    right, wrong = -logsigmoid(gap - wanted), -logsigmoid(-gap - wanted)
    return (1 - smoothing) * right + smoothing * wrong + centring * (chosen + rejected).square()


def outcome(scores: Tensor, labels: Tensor) -> Tensor:
    """−y·log σ(s) − (1−y)·log σ(−s), s = score, y = 1 for a right solution and 0 for a wrong one. Cobbe et al. 2021.

    Any shape, one label for each score: the last token of a solution, or all its tokens with the same label.
    """
    return softplus(scores) - labels.to(scores.dtype) * scores


def process(scores: Tensor, labels: Tensor) -> Tensor:
    """−log softmax(s)_y, s = scores of a step, y = its class. Lightman et al. 2023.

    Scores are (N, K), labels (N,) int64. The last class is good, class 0 bad; with K = 3 class 1 is neither.
    """
    return cross_entropy(scores, labels, reduction="none")


def step_probabilities(scores: Tensor, *, neutral: float = 1.0) -> Tensor:
    """(N, K) logits of steps → (N,) how likely each is good; a step that is neither counts as `neutral` of a good one.

    Lightman et al. 2023, appendix F, count it as good.
    """
    shares = torch.full_like(scores, neutral)
    shares[..., 0], shares[..., -1] = 0.0, 1.0
    return (scores.softmax(dim=-1) * shares).sum(dim=-1)


def product(probabilities: Tensor, mask: Tensor) -> Tensor:
    """Π_k p_k: that every step is good, if steps fail by themselves. Lightman et al. 2023."""
    return torch.where(mask, probabilities, 1.0).prod(dim=-1)


def minimum(probabilities: Tensor, mask: Tensor) -> Tensor:
    """min_k p_k: the weakest step. Lightman et al. 2023, appendix F."""
    return torch.where(mask, probabilities, 1.0).amin(dim=-1)


def last(probabilities: Tensor, mask: Tensor) -> Tensor:
    """p_K: the last step alone."""
    after = mask.long().flip(dims=[-1]).cumsum(dim=-1).flip(dims=[-1])
    return torch.where(mask & (after == 1), probabilities, 0.0).sum(dim=-1) + (~mask).all(dim=-1)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"product": product, "min": minimum, "last": last}


def aggregate(probabilities: Tensor, mask: Tensor, *, how: str = "product") -> Tensor:
    """(B, S) probabilities of steps → (B,) one of each solution; off the mask is padding, and no step gives 1."""
    return AGGREGATIONS[how](probabilities, mask)
