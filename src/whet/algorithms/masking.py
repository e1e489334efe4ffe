"""Which tokens of a text are hidden from a bidirectional model, and how much the loss of each counts.

A masking takes uniform numbers in [0, 1) and draws none itself, so the same numbers give the same masks. All tensors
are (B, T), one window of text per row; `step_draw` is one number, `row_draws` and `row_places` are (B,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whet.algorithms.cells import Cell, options

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from whet.late_torch import torch

SCHEDULES = ("linear", "cosine")


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked:
    """What a model is shown of a text, and what it has to predict."""

    chosen: Tensor  # bool: the tokens that are predicted
    hidden: Tensor  # bool: of these, shown as the mask token
    replaced: Tensor  # bool: of these, shown as a random token
    weights: Tensor  # of a token's loss; 0 where it is not predicted
    counted: Tensor  # bool: the tokens that the loss is a mean over


def diffusion(
    step_draw: Tensor,
    row_draws: Tensor,
    row_places: Tensor,
    token_draws: Tensor,
    *,
    schedule: str = "linear",
    stratified: bool = True,
    least_time: float = 0.001,
) -> Masked:
    """w·[masked], w = −α'(t)/(1 − α(t)), t ~ U(0, 1), tokens masked with probability 1 − α(t). Sahoo et al. 2024.

    The mean of the loss over all tokens is an unbiased estimate of the bound −log p(x) ≤ ∫ w(t)·E[Σ_masked −log π] dt,
    whose value does not depend on the schedule α; linear: α = 1 − t, cosine: α = 1 − sin(πt/2). `stratified` spreads
    the times of a step evenly, t = (u + row / rows) mod 1 with one u (Kingma et al. 2021). Times start at `least_time`,
    because w grows without bound towards 0; the part of the integral before it is left out of the loss.
    """
    spread = (step_draw + row_places) % 1 if stratified else row_draws
    times = least_time + (1 - least_time) * spread
    hidden = token_draws < masked_share(times, schedule)[:, None]
    heights = (1 - least_time) * time_weight(times, schedule)[:, None]
    return Masked(
        chosen=hidden,
        hidden=hidden,
        replaced=torch.zeros_like(hidden),
        weights=torch.where(hidden, heights, 0.0),
        counted=torch.ones_like(hidden),
    )


def bert(
    token_draws: Tensor,
    kind_draws: Tensor,
    *,
    ratio: float = 0.15,
    mask_share: float = 0.8,
    random_share: float = 0.1,
) -> Masked:
    """[chosen]: a fixed share of the tokens, shown as the mask, as a random token or as they are. Devlin et al. 2018.

    Of every row round(ratio · T) tokens are chosen, at least one. The mean is over the chosen ones; it bounds nothing.
    """
    count = max(1, round(ratio * token_draws.shape[1]))
    chosen = token_draws.argsort(dim=1).argsort(dim=1) < count
    return Masked(
        chosen=chosen,
        hidden=chosen & (kind_draws < mask_share),
        replaced=chosen & (kind_draws >= mask_share) & (kind_draws < mask_share + random_share),
        weights=chosen.double(),
        counted=chosen,
    )


def masked_share(times: Tensor, schedule: str) -> Tensor:
    """1 − α(t): the share of the tokens that is masked at a time, from 0 at 0 to 1 at 1."""
    return times if schedule == "linear" else (math.pi / 2 * times).sin()


def time_weight(times: Tensor, schedule: str) -> Tensor:
    """−α'(t) / (1 − α(t)): 1/t, and for the cosine schedule (π/2)·cot(πt/2)."""
    return 1 / times if schedule == "linear" else math.pi / 2 / (math.pi / 2 * times).tan()


def senseless_masking(masking: Cell) -> str:
    """Why the options of a masking make no sense; empty where they do."""
    given = options(masking)
    if given.get("schedule", SCHEDULES[0]) not in SCHEDULES:
        return f"schedule is {given['schedule']!r}: use {' or '.join(SCHEDULES)}"
    if not 0 <= given.get("least_time", 0.0) < 1:
        return f"least_time is {given['least_time']:g}: it must be from 0 on and below 1"
    if not 0 < given.get("ratio", 0.5) <= 1:
        return f"ratio is {given['ratio']:g}: it must be above 0 and at most 1"
    shares = [given.get(key, 0.0) for key in ("mask_share", "random_share")]
    if min(shares) < 0 or sum(shares) > 1 + 1e-9:
        return f"mask_share {shares[0]:g} and random_share {shares[1]:g} must be from 0 on and at most 1 together"
    return ""
