"""Rewards to advantages. Every cell sees the rollouts of all ranks at once, so its statistics are exact.

`rewards` is (P, G): one row per prompt, one column per rollout of its group. A cell returns (P, G), which counts for
every token of a rollout, or (B, T) if it tells tokens apart (`gae`, `to_go`, …). Scalings then see (B, T) advantages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.algorithms.cells import per_token

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from whet.late_torch import torch


def raw(rewards: Tensor) -> Tensor:
    """A_i = R_i: no baseline. Williams 1992."""
    return rewards


def over_batch(rewards: Tensor) -> Tensor:
    """A_i = R_i − mean of the whole batch. Williams 1992."""
    return _less(rewards.reshape(1, -1), rewards.mean()).reshape(rewards.shape)


def over_average(rewards: Tensor, history: Tensor, *, decay: float = 0.9) -> Tensor:
    """A_i = R_i − b, b = Σ_k decay^k·h_k / Σ_k decay^k over the mean rewards h_k of k+1 steps ago. Williams 1992.

    `history` is (steps,), oldest first; before the first step it is empty and b is 0.
    """
    ages = torch.arange(len(history) - 1, -1, -1, dtype=history.dtype, device=history.device)
    weights = decay**ages
    return rewards - (weights * history).sum() / weights.sum().clamp(min=1)


def over_greedy(rewards: Tensor, greedy: Tensor) -> Tensor:
    """A_i = R_i − R(greedy completion of the same prompt). Li et al. 2023 (ReMax)."""
    return rewards - greedy[:, None]


def center(rewards: Tensor) -> Tensor:
    """A_i = R_i − mean(R): the group's mean, own reward included. Liu et al. 2025 (Dr. GRPO), §3."""
    return _less(rewards, rewards.mean(dim=1, keepdim=True))


def leave_one_out(rewards: Tensor) -> Tensor:
    """A_i = R_i − mean of the other G−1 rewards of the group. Ahmadian et al. 2024, eq. 8."""
    group = rewards.shape[1]
    return center(rewards) * (group / (group - 1))


def standardize(rewards: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """A_i = (R_i − mean(R)) / (std(R) + ε), std with Bessel's correction. Shao et al. 2024 (GRPO), §4.1.2."""
    deviation = rewards.std(dim=1, keepdim=True) + epsilon
    return center(rewards) / deviation.masked_fill(deviation == 0, 1.0)


def over_length(rewards: Tensor, counts: Tensor) -> Tensor:
    """A_i = R_i − Σ_j T_j·R_j / Σ_j T_j, T_j tokens of rollout j of the group. Hao et al. 2025 (OPO)."""
    return _less(rewards, (counts * rewards).sum(dim=1, keepdim=True) / counts.sum(dim=1, keepdim=True).clamp(min=1))


def over_valid(rewards: Tensor) -> Tensor:
    """A_i = α·(R_i − mean(R)), α = groups / groups whose rewards differ. Chu et al. 2025 (GPG)."""
    differing = has_variance(rewards).sum().clamp(min=1)
    return center(rewards) * (len(rewards) / differing)


def max_likelihood(rewards: Tensor) -> Tensor:
    """A_i = (R_i − mean(R)) / mean(R), and 0 where every reward is 0. MaxRL, arXiv 2602.02710."""
    if bool((rewards < 0).any()):
        raise ValueError("max_likelihood divides by the share of right answers, so no reward may be below 0")
    mean = rewards.mean(dim=1, keepdim=True)
    return center(rewards) / mean.masked_fill(mean == 0, 1.0)


def best_over_worst(
    rewards: Tensor, logprobs_old: Tensor, logprobs_ref: Tensor, mask: Tensor, *, beta: float = 0.1
) -> Tensor:
    """A_i = ±G·β·σ(−d) for best and worst of G, 0 for others, d = β(w − l), w and l = their log π_old/π_ref.

    For the only update of a step this has the gradient of `preference.dpo`, a mean over the groups: of −log σ(β(w − l))
    each log π has the slope β·σ(−d), and `sequence_sum` divides by G rollouts where there is one pair. Of equally good
    rollouts the first is taken; a group of equal rewards has no pair. Guo et al. 2024 (online DPO).
    """
    ratios = (logprobs_old - logprobs_ref).masked_fill(~mask, 0.0).sum(dim=1).view(rewards.shape)
    best, worst = rewards.argmax(dim=1, keepdim=True), rewards.argmin(dim=1, keepdim=True)
    margin = beta * (ratios.gather(1, best) - ratios.gather(1, worst))
    slope = (rewards.shape[1] * beta * torch.sigmoid(-margin)).masked_fill(~has_variance(rewards)[:, None], 0.0)
    return torch.zeros_like(rewards).scatter(1, best, slope).scatter(1, worst, -slope)


def unscaled(advantages: Tensor) -> Tensor:
    """A: as it is."""
    return advantages


def whiten(advantages: Tensor, mask: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """(A − mean) / (std + ε) over the trained tokens of the whole batch. Hu et al. 2025 (REINFORCE++)."""
    chosen = advantages[mask]
    if chosen.numel() == 0 or bool(chosen.max() == chosen.min()):  # as in `_less`: no signal, not noise
        return torch.zeros_like(advantages)
    return ((advantages - chosen.mean()) / (chosen.std(correction=0) + epsilon)) * mask


def batch_deviation(advantages: Tensor, rewards: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """A / (std(R) + ε), the deviation of the rewards of the whole batch. Lite PPO, arXiv 2508.08221."""
    if bool(rewards.max() == rewards.min()):
        return torch.zeros_like(advantages)
    return advantages / (rewards.std() + epsilon).to(advantages.device)


def keep_all(rewards: Tensor) -> Tensor:
    """All groups are kept."""
    return torch.ones(len(rewards), dtype=torch.bool, device=rewards.device)


def drop_zero_variance(rewards: Tensor) -> Tensor:
    """Groups whose rewards differ are kept: rewards say nothing of the others. Yu et al. 2025 (DAPO), eq. 11."""
    return has_variance(rewards)


def has_variance(rewards: Tensor) -> Tensor:
    """Whether the rewards of a group differ, for each group."""
    return rewards.amax(dim=1) != rewards.amin(dim=1)


def _less(rewards: Tensor, baseline: Tensor) -> Tensor:
    """R − b, and exactly 0 in a row of equal rewards, whose mean is b.

    Rounding can leave 1e-8 there. A deviation of 1e-8, in `standardize` or in a scaling, would blow it up to one.
    """
    return (rewards - baseline).masked_fill(~has_variance(rewards)[:, None], 0.0)


# Per-token rewards: returns-to-go, generalised advantage estimation (GAE) and the value loss. All tensors are (B, T).
# `values` at t is what the critic expects of the rest of the rollout before token t is chosen. Tokens outside the
# mask (a prompt, the answer of a tool) are no choices: nothing is credited to them, and time does not pass over them.


def token_rewards(rewards: Tensor, penalties: Tensor, mask: Tensor) -> Tensor:
    """The (B,) rewards on the last trained token of each row, less (B, T) penalties. Ouyang et al. 2022."""
    backwards = mask.long().flip(dims=[1]).cumsum(dim=1).flip(dims=[1])
    last = mask & (backwards == 1)
    return rewards[:, None] * last - penalties * mask


@per_token
def gae(token_rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 0.95) -> Tensor:
    """A_t = Σ_k (gamma·lam)^k·δ_{t+k}, δ_t = r_t + gamma·V_{t+1} − V_t. Schulman et al. 2015, eq. 16."""
    advantages = torch.zeros_like(values)
    running, following = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        chosen = mask[:, t]
        delta = token_rewards[:, t] + gamma * following - values[:, t]
        running = torch.where(chosen, delta + gamma * lam * running, running)
        following = torch.where(chosen, values[:, t], following)
        advantages[:, t] = torch.where(chosen, running, 0.0)
    return advantages


@per_token
def to_go(token_rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """A_t = Σ_{s≥t} gamma^{s−t}·r_s. Hu et al. 2025 (REINFORCE++)."""
    return gae(token_rewards, torch.zeros_like(token_rewards), mask, gamma=gamma, lam=1.0)


@per_token
def to_go_leave_one_out(
    rewards: Tensor, token_rewards: Tensor, tokens: Tensor, mask: Tensor, *, gamma: float = 1.0, prefix: bool = True
) -> Tensor:
    """A_t = G_t − mean G_t of the group's others with the same tokens before t, G_t = Σ_{s≥t} gamma^{s−t}·r_s.

    Where no other has the same tokens before t, and everywhere without `prefix`, the mean is over all others that have
    a token t; where none has one, it is 0. A baseline may be any function of the other rollouts and of the own tokens
    before t: the expected gradient is that of the return in all these cases. Rollouts with the same tokens before t
    are in the same state, whose value their mean estimates. t counts sampled tokens; of `rewards` only the shape is
    used. Williams 1992, with the baseline of Ahmadian et al. 2024 for every token.
    """
    prompts, group = rewards.shape
    order = (~mask).long().argsort(dim=1, stable=True)  # sampled tokens first

    def grouped(values: Tensor) -> Tensor:
        return values.gather(1, order).view(prompts, group, -1)

    returns, ids, chosen = grouped(to_go(token_rewards, mask, gamma=gamma)), grouped(tokens), grouped(mask)
    places = torch.arange(ids.shape[2], device=ids.device)
    advantages = torch.zeros_like(returns)
    for one in range(group):
        others = chosen.clone()
        others[:, one] = False
        if prefix:
            shared = (ids == ids[:, one, None]).long().cumprod(dim=2).sum(dim=2, keepdim=True)  # tokens in common
            alike = others & (places <= shared)
            others = torch.where(alike.any(dim=1, keepdim=True), alike, others)
        own = returns[:, one]
        baseline = (returns * others).sum(dim=1) / others.sum(dim=1).clamp(min=1)
        lowest = returns.masked_fill(~others, torch.inf).amin(dim=1)
        highest = returns.masked_fill(~others, -torch.inf).amax(dim=1)
        is_flat = (lowest == own) & (highest == own)  # as in `_less`: no signal, not noise
        advantages[:, one] = (own - baseline).masked_fill(is_flat | ~chosen[:, one], 0.0)
    return torch.zeros_like(token_rewards).scatter(1, order, advantages.view(token_rewards.shape))


def value_loss(values: Tensor, values_old: Tensor, targets: Tensor, *, clip: float = 0.2) -> Tensor:
    """½·max((V − G)², (clip(V, V_old ± clip) − G)²), G = A + V_old; without clip the first alone. Baselines 2017."""
    plain = (values - targets).square()
    if clip == 0:
        return plain / 2
    near = values_old + (values - values_old).clamp(-clip, clip)
    return torch.maximum(plain, (near - targets).square()) / 2


def explained_variance(values: Tensor, targets: Tensor, mask: Tensor) -> float:
    """1 − Var(G − V) / Var(G) over the trained tokens: 1 is a perfect critic, 0 one that knows only the mean."""
    wanted, missed = targets[mask], (targets - values)[mask]
    variance = float(wanted.var(correction=0)) if wanted.numel() else 0.0
    return 1.0 - float(missed.var(correction=0)) / variance if variance > 0 else 0.0


# Reward shaping: penalties and normalisation between the score and the advantage, on (P, G) tensors of all ranks.


def overlong(counts: Tensor, *, max_tokens: int, ramp: int) -> Tensor:
    """0 down to −1 over the last `ramp` tokens before `max_tokens`. Yu et al. 2025 (DAPO), eq. 13."""
    return ((max_tokens - ramp - counts) / ramp).clamp(-1.0, 0.0)


def standard(rewards: Tensor, mean: float, deviation: float, *, epsilon: float = 1e-8) -> Tensor:
    """(R − mean) / (deviation + ε); 0 where there is no deviation."""
    return (rewards - mean) / (deviation + epsilon) if deviation > 0 else torch.zeros_like(rewards)


def moments(rewards: Tensor) -> tuple[int, float, float]:
    """Count, sum and sum of squares: they add over steps."""
    exact = rewards.double()
    return rewards.numel(), float(exact.sum()), float(exact.square().sum())


def mean_and_deviation(count: float, total: float, squares: float) -> tuple[float, float]:
    """The mean and the standard deviation of what was added up."""
    mean = total / max(1.0, count)
    return mean, max(0.0, squares / max(1.0, count) - mean * mean) ** 0.5
