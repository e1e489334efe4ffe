"""Scores of a reward model to a loss: one per pair, per judged token, or per step of a solution.

Scores are logits in fp32. The loop chooses the tokens that are scored and the average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn.functional import cross_entropy, logsigmoid, softplus
else:
    from whet.late_torch import cross_entropy, logsigmoid, softplus, torch


def bradley_terry(
    chosen_scores: Tensor,
    rejected_scores: Tensor,
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
    gap, wanted = chosen_scores - rejected_scores, margins if use_margins else torch.zeros_like(margins)
    right, wrong = -logsigmoid(gap - wanted), -logsigmoid(-gap - wanted)
    return (1 - smoothing) * right + smoothing * wrong + centring * (chosen_scores + rejected_scores).square()


def outcome(scores: Tensor, labels: Tensor) -> Tensor:
    """−y·log σ(s) − (1−y)·log σ(−s), s = score, y = 1 for a right solution and 0 for a wrong one. Cobbe et al. 2021.

    Any shape, one label for each score: the last token of a solution, or all its tokens with the same label.
    """
    return softplus(scores) - labels.to(scores.dtype) * scores


def process(scores: Tensor, classes: Tensor) -> Tensor:
    """−log softmax(s)_y, s = scores of a step, y = its class. Lightman et al. 2023.

    Scores are (N, K), classes (N,) int64. The last class is good, class 0 bad; with K = 3 class 1 is neither.
    """
    return cross_entropy(scores, classes, reduction="none")
