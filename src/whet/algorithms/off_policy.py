"""Targets and losses of SAC and TD3, as functions of what networks compute. Twin values are (2, N), all else (N,)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def soft_target(
    rewards: Tensor, terminated: Tensor, next_values: Tensor, next_logprobs: Tensor, alpha: Tensor, *, gamma: float
) -> Tensor:
    """y = r + γ(1 − d)(min_i Q̄_i(s′, a′) − α log π(a′|s′)), d: terminated, a′ ~ π. Haarnoja et al. 2018b, eq. 3.

    A truncated state is worth what follows it: only `terminated` ends a return.
    """
    return clipped_target(rewards, terminated, next_values - alpha * next_logprobs, gamma=gamma)


def clipped_target(rewards: Tensor, terminated: Tensor, next_values: Tensor, *, gamma: float) -> Tensor:
    """y = r + γ(1 − d) min_i Q̄_i(s′, a′), d: terminated. Fujimoto et al. 2018, algorithm 1."""
    return rewards + gamma * (1 - terminated) * next_values.min(dim=0).values


def smoothed_actions(actions: Tensor, noise: Tensor, *, deviation: float, clip: float) -> Tensor:
    """a′ = clip(π̄(s′) + clip(ε, ±c), ±1), ε ~ N(0, σ): actions of targets in [−1, 1]. Fujimoto et al. 2018, §5.3."""
    return (actions + (deviation * noise).clamp(-clip, clip)).clamp(-1, 1)


def twin_loss(values: Tensor, targets: Tensor) -> Tensor:
    """½ Σ_i mean (Q_i(s, a) − y)². Haarnoja et al. 2018b, eq. 5; TD3 has no ½, to which Adam is blind."""
    return (values - targets).square().mean(dim=1).sum() / 2


def soft_policy_loss(alpha: Tensor, logprobs: Tensor, values: Tensor) -> Tensor:
    """mean α log π(a|s) − min_i Q_i(s, a), a ~ π, differentiated through a. Haarnoja et al. 2018b, eq. 9."""
    return (alpha * logprobs - values.min(dim=0).values).mean()


def deterministic_policy_loss(values: Tensor) -> Tensor:
    """−mean Q_1(s, π(s)). Fujimoto et al. 2018, algorithm 1."""
    return -values[0].mean()


def temperature_loss(log_alpha: Tensor, logprobs: Tensor, *, target: float) -> Tensor:
    """−log α · mean (log π + H̄): α rises while the entropy is below H̄. Haarnoja et al. 2018b, eq. 18, in log α."""
    return -log_alpha * (logprobs + target).mean().detach()


def move_towards(targets: Iterable[Tensor], trained: Iterable[Tensor], *, tau: float) -> None:
    """θ̄ ← θ̄ + τ(θ − θ̄), in place. Lillicrap et al. 2016."""
    for target, one in zip(targets, trained, strict=True):
        target.lerp_(one, tau)
