"""Per-token rewards: returns-to-go, generalised advantage estimation (GAE) and the value loss. All tensors are (B, T).

`values` at t is what the critic expects of the rest of the rollout before token t is chosen. Tokens outside the mask
(a prompt, the answer of a tool) are no choices: nothing is credited to them, and time does not pass over them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whet.algorithms.cells import per_token


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
