"""The policy loss: surrogates, loss aggregation, KL estimators, importance correction, coefficients that follow a run.

All tensors are (B, T), one sequence per row; nothing is summed here but in `effective_share`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.algorithms.cells import per_sequence

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from whet.late_torch import torch

# Surrogates: log-probs and advantages → a loss per token. One that is declared `per_sequence` has one ratio per row:
# every token carries the loss of its row.


def reinforce(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """−A·log π. Williams 1992."""
    return -advantages * logprobs


def clip(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.2) -> Tensor:
    """−min(ρA, clip(ρ, 1−low, 1+high)·A), ρ = π/π_old. Schulman et al. 2017, eq. 7."""
    ratio = (logprobs - logprobs_old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def dual_clip(
    logprobs: Tensor,
    logprobs_old: Tensor,
    advantages: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    bound: float = 3.0,
) -> Tensor:
    """−max(m, bound·A) if A < 0 else −m, m = min(ρA, clip(ρ, 1−low, 1+high)·A), ρ = π/π_old. Ye et al. 2019."""
    clipped = clip(logprobs, logprobs_old, advantages, low=low, high=high)
    return torch.where(advantages < 0, torch.minimum(clipped, -bound * advantages), clipped)


def stopped_ratio(
    logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, *, low: float = 1.0, high: float = 4.0
) -> Tensor:
    """−sg(clip(ρ, 1−low, 1+high))·A·log π, ρ = π/π_old, sg stops the gradient. MiniMax 2025 (CISPO)."""
    ratio = (logprobs - logprobs_old).detach().exp()
    return -ratio.clamp(1 - low, 1 + high) * advantages * logprobs


def soft_gate(
    logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, *, positive: float = 1.0, negative: float = 1.05
) -> Tensor:
    """−(4/τ)·σ(τ(ρ−1))·A, ρ = π/π_old, τ = positive if A > 0 else negative. SAPO, arXiv 2511.20347."""
    ratio = (logprobs - logprobs_old).exp()
    sharpness = torch.where(advantages > 0, positive, negative)
    return -(4 / sharpness) * torch.sigmoid(sharpness * (ratio - 1)) * advantages


@per_sequence
def sequence_clip(
    logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor, *, low: float = 3e-4, high: float = 4e-4
) -> Tensor:
    """−min(sA, clip(s, 1−low, 1+high)·A), s = exp(mean_t log ρ_t), ρ = π/π_old. Zheng et al. 2025 (GSPO)."""
    ratio = _sequence_mean(logprobs - logprobs_old, mask).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


@per_sequence
def geometric_clip(
    logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor, *, low: float = 0.4, high: float = 0.4
) -> Tensor:
    """−wA, w = exp(mean_t c_t), c_t = min(log ρ_t, high) if A > 0 else max(log ρ_t, −low). GMPO, arXiv 2507.20673."""
    log_ratio = logprobs - logprobs_old
    clipped = torch.where(advantages > 0, log_ratio.clamp(max=high), log_ratio.clamp(min=-low))
    return -_sequence_mean(clipped, mask).exp() * advantages


def _sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """(B, 1): the mean over the trained tokens of each row."""
    return (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


# Loss aggregation: the weight of each trained token. A weighting sees the mask, never the loss. Each returns (B, T)
# weights and a count. Counts are summed over micro-batches and ranks, the weights are divided by that sum once, and
# from then on every loss is (per_token · weights).sum(): splits, padding and ranks just add.


def token_mean(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_{i,t} / number of tokens: every token has one vote. Yu et al. 2025 (DAPO), eq. 8."""
    return mask.float(), mask.sum()


def sequence_mean(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_i (1/T_i) Σ_t / number of sequences: every sequence has one vote. Shao et al. 2024 (GRPO), eq. 3."""
    return mask / mask.sum(dim=1, keepdim=True).clamp(min=1), mask.any(dim=1).sum()


def sequence_sum(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_i Σ_t / number of sequences: the log-prob of a sequence is the sum over its tokens. Williams 1992."""
    return mask.float(), mask.any(dim=1).sum()


def budget_mean(mask: Tensor, max_tokens: int) -> tuple[Tensor, Tensor]:
    """Σ_i Σ_t / (number of sequences × max_tokens): a constant, so length is not rewarded. Liu et al. 2025, §3."""
    return mask.float() / max_tokens, mask.any(dim=1).sum()


# Estimates of KL(policy ‖ reference) from tokens that the policy sampled, one value per token. Schulman,
# "Approximating KL divergence" (2020). With d = log π − log π_ref, all have non-negative expectation under the policy
# and are zero where the two agree. What their *gradients* estimate differs: see `kl_place` in the table.


def k1(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """d: unbiased, high variance, may be negative."""
    return logprobs - logprobs_ref


def k2(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """d²/2: biased, low variance; its gradient, on policy, is that of the true KL of each token."""
    return (logprobs - logprobs_ref).square() / 2


def k3(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """exp(−d) − 1 + d: unbiased, low variance, never negative; its gradient is that of KL(reference ‖ policy)."""
    d = logprobs - logprobs_ref
    return torch.expm1(-d) + d  # expm1: exp(−d) − 1 loses all digits for small d


def unbiased(logprobs: Tensor, logprobs_old: Tensor, logprobs_ref: Tensor) -> Tensor:
    """ρ·(exp(−d) − 1 + d), ρ = π/π_old: value and gradient are the true KL's, token by token. DeepSeek-V3.2 2025."""
    return (logprobs - logprobs_old).exp() * k3(logprobs, logprobs_ref)


# Importance correction for tokens that another distribution sampled: ρ = π_old / π_sampler, from log-probs of the
# same tokens. π_old is the trainer's policy at the start of the step; a sampler with other kernels, another precision
# or older weights differs from it. A sequence's weight is repeated at each of its tokens, and is 0 outside the mask.


def uncorrected(mask: Tensor) -> Tensor:
    """1: the sampler is taken for the policy."""
    return mask.float()


def token_truncate(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, high: float = 2.0) -> Tensor:
    """min(ρ_t, high). Yao et al. 2025."""
    return token_weights(logprobs_old, logprobs_sampled, mask).clamp(max=high)


def sequence_truncate(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, high: float = 2.0) -> Tensor:
    """min(Π_t ρ_t, high). Liu & Li 2025."""
    return sequence_weights(logprobs_old, logprobs_sampled, mask).clamp(max=high)


def geometric_truncate(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, high: float = 2.0) -> Tensor:
    """min(exp(mean_t log ρ_t), high). Liu & Li 2025."""
    return geometric_weights(logprobs_old, logprobs_sampled, mask).clamp(max=high)


def token_mask(
    logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, low: float = 0.5, high: float = 5.0
) -> Tensor:
    """ρ_t inside [low, high], else 0. Ling Team 2025 (IcePop)."""
    return _inside(token_weights(logprobs_old, logprobs_sampled, mask), low, high)


def sequence_mask(
    logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, low: float = 0.0, high: float = 3.0
) -> Tensor:
    """Π_t ρ_t inside [low, high], else 0. Liu & Li 2025."""
    return _inside(sequence_weights(logprobs_old, logprobs_sampled, mask), low, high)


def geometric_mask(
    logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, low: float = 0.99, high: float = 1.01
) -> Tensor:
    """exp(mean_t log ρ_t) inside [low, high], else 0. Liu & Li 2025."""
    return _inside(geometric_weights(logprobs_old, logprobs_sampled, mask), low, high)


def token_weights(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor) -> Tensor:
    """ρ_t."""
    return ((logprobs_old - logprobs_sampled) * mask).exp() * mask


def sequence_weights(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor) -> Tensor:
    """Π_t ρ_t: the only weight under which the gradient of a whole sequence is unbiased."""
    total = ((logprobs_old - logprobs_sampled) * mask).sum(dim=1, keepdim=True)
    return torch.where(mask, total.exp(), 0.0)  # not `* mask`: a long row can reach inf, and inf · 0 is not 0


def geometric_weights(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor) -> Tensor:
    """exp(mean_t log ρ_t): does not shrink or grow with the length."""
    total = ((logprobs_old - logprobs_sampled) * mask).sum(dim=1, keepdim=True)
    return torch.where(mask, (total / mask.sum(dim=1, keepdim=True).clamp(min=1)).exp(), 0.0)


def effective_share(weights: Tensor) -> float:
    """(Σw)² / (n·Σw²), the effective sample size over n weights: 1 if all are equal, 0 if all are 0. Kong 1992."""
    if weights.numel() == 0:
        return 1.0
    exact = weights.double()
    # Divided by the largest, because squares overflow; beside an infinite weight the finite ones are nothing.
    heavy = exact.isinf().double() if bool(exact.isinf().any()) else exact / exact.max()
    return float(heavy.sum().square() / (heavy.numel() * heavy.square().sum())) if bool(exact.any()) else 0.0


def _inside(weights: Tensor, low: float, high: float) -> Tensor:
    return torch.where((weights >= low) & (weights <= high), weights, 0.0)


# Coefficients and a temperature as functions of what was measured. Plain floats.


def adapted(coefficient: float, measured: float, *, target: float, horizon: float, count: int) -> float:
    """β·(1 + clip(KL/target − 1, ±0.2)·min(1, count/horizon)). Ziegler et al. 2019, §2.2."""
    error = min(0.2, max(-0.2, measured / target - 1))
    return coefficient * (1 + error * min(1.0, count / horizon))


def annealed(coefficient: float, tokens: int, *, over: int) -> float:
    """From 0 to β in a straight line over the first `over` tokens."""
    return coefficient * min(1.0, tokens / over) if over > 0 else coefficient


def spread_temperature(temperature: float, deviation: float | None, *, low: float, high: float) -> float:
    """T' = clip(T/σ, low, high), σ the deviation of the last step's rewards: the less they differ, the hotter.

    Before the first step there is no σ and T stays; where all rewards were equal it is `high`.
    """
    if deviation is None:
        return temperature
    return high if deviation == 0 else min(high, max(low, temperature / deviation))


def entropy_bonus(coefficient: float, entropy: float, *, floor: float, floor_coefficient: float) -> float:
    """c + 2·c_floor·max(0, floor − H): the slope of c·H − c_floor·max(0, floor − H)² at the entropy H of the step."""
    return coefficient + 2 * floor_coefficient * max(0.0, floor - entropy)


# Supervised learning.


def negative_log_likelihood(logprobs: Tensor) -> Tensor:
    """−log π."""
    return -logprobs
