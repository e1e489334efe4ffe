"""From a rollout to a batch: rewards as the algorithm sees them, advantages by its row of the table, value targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.advantages import explained_variance
from whet.algorithms.cells import call, is_per_token, options, terms
from whet.algorithms.table import Algorithm
from whet.control.normalization import RewardScale, discounted
from whet.control.policies import Policy
from whet.train.control.collector import Rollout
from whet.train.optimizers.optimizer import ask
from whet.train.session.checkpointed import Checkpointed


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """(n, …) of every step of a rollout."""

    rows: Tensor  # (n, D) observations as the networks read them
    actions: Tensor
    logprobs_old: Tensor
    advantages: Tensor
    weights: Tensor  # of each step in the policy loss: they add up to it
    values: Tensor | None  # before the updates
    targets: Tensor | None
    entropy: float  # mean of the distributions that the actions were drawn from

    def row(self, logprobs: Tensor) -> dict[str, Tensor | None]:
        """The terms of surrogates, as one row of actions."""
        return {
            "logprobs": logprobs[None],
            "logprobs_old": self.logprobs_old[None],
            "advantages": self.advantages[None],
            "mask": torch.ones_like(self.advantages, dtype=torch.bool)[None],
        }

    @property
    def count(self) -> int:
        return len(self.actions)


class RewardNormalization(Checkpointed):
    """The scale of rewards, and the discounted return of every episode under way."""

    def __init__(self, copies: int, gamma: float, clip: float) -> None:
        self.scale, self.gamma = RewardScale(clip), gamma
        self.running = torch.zeros(copies, dtype=torch.float64)
        self._saved = self._state()

    def __call__(self, rollout: Rollout) -> Tensor:
        """(n,) scaled rewards, by statistics that include them."""
        copies = len(self.running)
        steps = rollout.rewards.cpu().view(copies, -1).T  # (T, N)
        returns, self.running = discounted(steps, rollout.ended.cpu(), self.running, self.gamma)
        self.scale.moments.add(returns.reshape(-1, 1))
        self._saved = self._state()
        scaled: Tensor = self.scale(rollout.rewards.cpu())
        return scaled

    def _state(self) -> dict[str, Tensor]:
        return {"running": self.running, **{name: one.clone() for name, one in self.scale.state_dict().items()}}

    def tensors(self) -> dict[str, Tensor]:
        return self._saved

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        self.running = tensors["running"]
        self.scale.load_state_dict({name: one for name, one in tensors.items() if name != "running"})
        self._saved = self._state()


def gamma_of(algorithm: Algorithm) -> float:
    """The discount of the algorithm's advantage; 1 if it has none."""
    return float(options(algorithm.advantage).get("gamma", 1.0))


@torch.no_grad()
def annotate(
    algorithm: Algorithm, policy: Policy, rollout: Rollout, group: int, scale: RewardNormalization | None
) -> tuple[Batch, dict[str, float]]:
    """The batch of a rollout, and metrics."""
    fragments, distribution = rollout.fragments, policy.distribution
    mask, rows = fragments.mask, policy.seen(rollout.observations)
    rewards = (rollout.rewards if scale is None else scale(rollout)).to(mask.device, torch.float32)
    values = None
    supply: dict[str, Tensor | None] = {"mask": mask, "counts": fragments.lengths.view(-1, group).float()}
    if "values" in terms(algorithm.advantage):
        values = policy.values(rows)
        beyond = policy.values(policy.seen(rollout.beyond)).to(mask.device)
        rewards = rewards.index_add(0, fragments.last[rollout.cut], gamma_of(algorithm) * beyond)
        supply["values"] = fragments.rows(values.to(mask.device))
    token_rewards = fragments.rows(rewards)
    totals = token_rewards.sum(dim=1).view(-1, group)
    logprobs = distribution.logprobs(rollout.parameters, rollout.actions)
    supply |= {
        "token_rewards": token_rewards,
        "rewards": totals,
        "logprobs_old": fragments.rows(logprobs.to(mask.device)),
    }
    found = ask(algorithm.advantage, supply, shapes=[mask.shape, totals.shape])
    advantages = found if is_per_token(algorithm.advantage) else found.reshape(-1, 1) * mask
    targets = None if values is None else fragments.flat(advantages).to(values.device) + values
    scaled = call(algorithm.scaling, {"advantages": advantages, "rewards": totals, "mask": mask})
    weights, count = call(algorithm.weighting, {"mask": mask, "max_tokens": mask.shape[1]})
    device = rows.device
    batch = Batch(
        rows=rows,
        actions=rollout.actions,
        logprobs_old=logprobs,
        advantages=fragments.flat(scaled).to(device),
        weights=fragments.flat(weights / count).to(device),
        values=values,
        targets=targets,
        entropy=float(distribution.entropies(rollout.parameters).mean()),
    )
    metrics = {
        "entropy": batch.entropy,
        "advantage/max": float(batch.advantages.abs().max()),
        "advantage/positive": float((batch.advantages > 0).float().mean()),
    }
    if values is not None and targets is not None:
        everywhere = torch.ones(batch.count, dtype=torch.bool, device=device)
        metrics["critic/explained_variance"] = explained_variance(values, targets, everywhere)
    return batch, metrics
