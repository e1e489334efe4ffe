"""Preferences to a loss per pair, or per labelled completion: the DPO family.

Terms of pair losses are (P,): `chosen` and `rejected` are sums of log π over the trained tokens of each completion,
`chosen_ref` and `rejected_ref` the same under the reference, `chosen_tokens` and `rejected_tokens` how many tokens that
is. Terms of label losses are (N,): `logprobs`, `logprobs_ref`, `labels` (True: desirable), `tokens`, and one number,
`point`. All in fp32: in bf16 a sum of 500 nats moves in steps of 2. Nothing is averaged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn.functional import logsigmoid
else:
    from whet.late_torch import logsigmoid, torch


def dpo(chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, *, beta: float = 0.1) -> Tensor:
    """−log σ(β(w − l)), w and l = log π/π_ref of chosen and rejected. Rafailov et al. 2023, eq. 7."""
    return -logsigmoid(beta * (log_ratio(chosen, chosen_ref) - log_ratio(rejected, rejected_ref)))


def cdpo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_ref: Tensor,
    rejected_ref: Tensor,
    *,
    beta: float = 0.1,
    smoothing: float = 0.1,
) -> Tensor:
    """−(1−ε)·log σ(d) − ε·log σ(−d), d = β(w − l), w and l = log π/π_ref of chosen and rejected, ε = smoothing.

    The mean of `dpo` where a share ε of the labels is flipped. Mitchell 2023.
    """
    kept = dpo(chosen, rejected, chosen_ref, rejected_ref, beta=beta)
    flipped = dpo(rejected, chosen, rejected_ref, chosen_ref, beta=beta)
    return (1 - smoothing) * kept + smoothing * flipped


def robust_dpo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_ref: Tensor,
    rejected_ref: Tensor,
    *,
    beta: float = 0.1,
    smoothing: float = 0.1,
) -> Tensor:
    """(ε·log σ(−d) − (1−ε)·log σ(d))/(1−2ε), d = β(w − l), w and l = log π/π_ref of chosen and rejected, ε = smoothing.

    If a share ε of the labels is flipped, its mean is that of `dpo` on the true labels; it has no lower bound.
    Chowdhury et al. 2024.
    """
    if not 0 <= smoothing < 0.5:
        raise ValueError(f"smoothing is {smoothing:g}, but robust_dpo divides by 1 − 2·smoothing: it must be below 0.5")
    kept = dpo(chosen, rejected, chosen_ref, rejected_ref, beta=beta)
    flipped = dpo(rejected, chosen, rejected_ref, chosen_ref, beta=beta)
    return ((1 - smoothing) * kept - smoothing * flipped) / (1 - 2 * smoothing)


def dpo_norm(
    chosen: Tensor,
    rejected: Tensor,
    chosen_ref: Tensor,
    rejected_ref: Tensor,
    chosen_tokens: Tensor,
    rejected_tokens: Tensor,
    *,
    beta: float = 2.0,
) -> Tensor:
    """−log σ(β(w − l)), w and l = mean_t log π/π_ref of chosen and rejected. Lambert et al. 2024 (Tülu 3)."""
    better = mean_log_ratio(chosen, chosen_ref, chosen_tokens)
    return -logsigmoid(beta * (better - mean_log_ratio(rejected, rejected_ref, rejected_tokens)))


def ipo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_ref: Tensor,
    rejected_ref: Tensor,
    chosen_tokens: Tensor,
    rejected_tokens: Tensor,
    *,
    beta: float = 0.1,
    per_token: bool = False,
) -> Tensor:
    """(w − l − 1/(2β))², w and l = log π/π_ref of chosen and rejected. Azar et al. 2023, eq. 17.

    With `per_token` w and l are means over tokens, and 1/(2β) is the target per token.
    """
    if per_token:
        better = mean_log_ratio(chosen, chosen_ref, chosen_tokens)
        worse = mean_log_ratio(rejected, rejected_ref, rejected_tokens)
    else:
        better, worse = log_ratio(chosen, chosen_ref), log_ratio(rejected, rejected_ref)
    return (better - worse - 1 / (2 * beta)).square()


def hinge(chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, *, beta: float = 0.1) -> Tensor:
    """max(0, 1 − β(w − l)), w and l = log π/π_ref of chosen and rejected. Liu et al. 2023 (RSO)."""
    return torch.relu(1 - beta * (log_ratio(chosen, chosen_ref) - log_ratio(rejected, rejected_ref)))


def simpo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_tokens: Tensor,
    rejected_tokens: Tensor,
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
) -> Tensor:
    """−log σ(β(w − l) − γ), w and l = mean_t log π of chosen and rejected. Meng et al. 2024.

    γ is the margin that β(w − l) should have, not a multiple of β.
    """
    better, worse = mean_logprob(chosen, chosen_tokens), mean_logprob(rejected, rejected_tokens)
    return -logsigmoid(beta * (better - worse) - gamma)


def orpo(
    chosen: Tensor, rejected: Tensor, chosen_tokens: Tensor, rejected_tokens: Tensor, *, beta: float = 0.1
) -> Tensor:
    """−log p_w − β·log σ(w − l), w and l = log p/(1−p) of chosen and rejected, p = exp(mean_t log π). Hong et al. 2024.

    p_w is that of the chosen: its negative log-likelihood per token is added to the odds ratio loss.
    """
    better, worse = log_odds(chosen, chosen_tokens), log_odds(rejected, rejected_tokens)
    return -mean_logprob(chosen, chosen_tokens) - beta * logsigmoid(better - worse)


def cpo(chosen: Tensor, rejected: Tensor, chosen_tokens: Tensor, *, beta: float = 0.1, nll: float = 1.0) -> Tensor:
    """−log σ(β(w − l)) − nll·w/T, w and l = log π of chosen and rejected, T = tokens of the chosen. Xu et al. 2024."""
    return -logsigmoid(beta * (chosen - rejected)) - nll * mean_logprob(chosen, chosen_tokens)


def apo_zero(
    chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, *, beta: float = 0.1
) -> Tensor:
    """1 − σ(βw) + σ(βl), w and l = log π/π_ref of chosen and rejected. D'Oosterlinck et al. 2024, eq. 7.

    For chosen completions that are better than the policy's own: it makes them likelier.
    """
    better, worse = log_ratio(chosen, chosen_ref), log_ratio(rejected, rejected_ref)
    return torch.sigmoid(-beta * better) + torch.sigmoid(beta * worse)


def apo_down(
    chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, *, beta: float = 0.1
) -> Tensor:
    """1 − σ(β(w − l)) + σ(βw), w and l = log π/π_ref of chosen and rejected. D'Oosterlinck et al. 2024, eq. 8.

    For chosen completions that are worse than the policy's own: it makes both less likely, the rejected more so.
    """
    better, worse = log_ratio(chosen, chosen_ref), log_ratio(rejected, rejected_ref)
    return torch.sigmoid(-beta * (better - worse)) + torch.sigmoid(beta * better)


def sppo(chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, *, beta: float = 0.1) -> Tensor:
    """(w − 1/(2β))² + (l + 1/(2β))², w and l = log π/π_ref of chosen and rejected. Wu et al. 2024, hard labels."""
    target = 1 / (2 * beta)
    better, worse = log_ratio(chosen, chosen_ref), log_ratio(rejected, rejected_ref)
    return (better - target).square() + (worse + target).square()


def kto(
    logprobs: Tensor,
    logprobs_ref: Tensor,
    labels: Tensor,
    point: Tensor,
    *,
    beta: float = 0.1,
    desirable: float = 1.0,
    undesirable: float = 1.0,
) -> Tensor:
    """desirable·σ(β(z − r)) if the label is True else undesirable·σ(β(r − z)), r = log π/π_ref, z = point.

    Ethayarajh et al. 2024, where σ(−x) is written 1 − σ(x). The point is a KL between policy and reference
    (`mismatched_kl`); no gradient passes through it.
    """
    above = beta * (log_ratio(logprobs, logprobs_ref) - point.detach())
    return torch.where(labels, desirable * torch.sigmoid(-above), undesirable * torch.sigmoid(above))


def bco(logprobs: Tensor, logprobs_ref: Tensor, labels: Tensor, point: Tensor, *, beta: float = 0.1) -> Tensor:
    """−log σ(β(r − z)) if the label is True else −log σ(β(z − r)), r = log π/π_ref, z = point. Jung et al. 2024.

    The point lies halfway between the mean log-ratios of the two kinds (`midpoint`); no gradient passes through it. The
    paper's weights for prompts of another distribution are not here.
    """
    above = beta * (log_ratio(logprobs, logprobs_ref) - point.detach())
    return -logsigmoid(torch.where(labels, above, -above))


def log_ratio(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """log π/π_ref."""
    return logprobs - logprobs_ref


def mean_log_ratio(logprobs: Tensor, logprobs_ref: Tensor, tokens: Tensor) -> Tensor:
    """mean_t log π/π_ref."""
    return (logprobs - logprobs_ref) / tokens.clamp(min=1)


def sum_logprob(logprobs: Tensor) -> Tensor:
    """log π."""
    return logprobs


def mean_logprob(logprobs: Tensor, tokens: Tensor) -> Tensor:
    """mean_t log π."""
    return logprobs / tokens.clamp(min=1)


def log_odds(logprobs: Tensor, tokens: Tensor) -> Tensor:
    """log p/(1−p), p = exp(mean_t log π). Hong et al. 2024."""
    mean = mean_logprob(logprobs, tokens)
    # p = 1 has infinite odds: the nearest number below 1 replaces it.
    likely = mean.clamp(max=-torch.finfo(mean.dtype).eps)
    return mean - torch.log(-torch.expm1(likely))  # expm1: 1 − exp(log p) loses all digits for p near 1


def mismatched_kl(mismatched: Tensor, mismatched_ref: Tensor) -> Tensor:
    """max(0, mean(log π/π_ref)), over completions after prompts of other rows. Ethayarajh et al. 2024."""
    return log_ratio(mismatched, mismatched_ref).mean().clamp(min=0).detach()


def midpoint(means: Tensor) -> Tensor:
    """½·(m₀ + m₁), m = moving means of log π/π_ref over undesirable and desirable completions. Jung et al. 2024."""
    return means.mean().detach()


def moving_means(means: Tensor, log_ratios: Tensor, labels: Tensor, *, share: float = 0.1) -> Tensor:
    """m ← (1 − share)·m + share·mean(log π/π_ref) of a step, (2,) for undesirable and desirable: one without any stays.

    A run begins at zeros, which is exact while the policy is the reference.
    """
    kinds = torch.stack([~labels, labels])
    counts = kinds.sum(dim=1)
    now = (kinds * log_ratios.detach()).sum(dim=1) / counts.clamp(min=1)
    return torch.where(counts > 0, torch.lerp(means, now, share), means)
