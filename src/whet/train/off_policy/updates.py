"""One update of SAC or TD3: the critics towards their targets, the policy towards higher values, then the targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whet.algorithms.off_policy import (
    clipped_target,
    deterministic_policy_loss,
    move_towards,
    smoothed_actions,
    soft_policy_loss,
    soft_target,
    temperature_loss,
    twin_loss,
)
from whet.control.distributions import Gaussian
from whet.control.off_policy.replay import Transitions
from whet.control.policies import Policy
from whet.train.off_policy.trained_critics import TrainedCritics
from whet.train.optimizers.optimizer import NotFinite


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Transitions as tensors; rows as the networks read them."""

    rows: Tensor  # (n, D)
    actions: Tensor  # (n, K)
    rewards: Tensor  # (n,)
    next_rows: Tensor  # (n, D)
    terminated: Tensor  # (n,) 0 or 1

    @classmethod
    def of(cls, transitions: Transitions, policy: Policy) -> Batch:
        """On the device of the policy, observations normalised by the statistics of now."""
        device = next(policy.parameters()).device
        tensors = {name: torch.from_numpy(getattr(transitions, name)).to(device) for name in Transitions.__slots__}
        return cls(
            rows=policy.seen(tensors["observations"]),
            actions=tensors["actions"],
            rewards=tensors["rewards"],
            next_rows=policy.seen(tensors["next_observations"]),
            terminated=tensors["terminated"].float(),
        )


@dataclass(slots=True)
class Tally:
    """What the updates of a step measured, as tensors until the end."""

    found: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, **measured: Tensor) -> None:
        for name, value in measured.items():
            self.found.setdefault(name, []).append(value.detach())

    def metrics(self) -> dict[str, float]:
        """Means over the updates; none without one."""
        means = {name: float(torch.stack(values).mean()) for name, values in self.found.items()}
        if not all(map(math.isfinite, means.values())):
            what = ", ".join(f"{name} {value:g}" for name, value in means.items())
            raise NotFinite(f"the updates of the step had numbers that are not finite: {what}")
        renamed = {NAMES[name]: value for name, value in means.items()}
        return {"updates": float(len(self.found["missed"])), **renamed} if means else {}


NAMES = {
    "missed": "q/loss",
    "values": "q/mean",
    "policy_loss": "policy_loss",
    "entropy": "action_entropy",
    "alpha": "entropy_coefficient",
}
Update = Callable[[Policy, torch.optim.Optimizer, TrainedCritics, Batch, torch.Generator, Tally], None]


def soft_update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    learned: TrainedCritics,
    batch: Batch,
    generator: torch.Generator,
    tally: Tally,
) -> None:
    """SAC (Haarnoja et al. 2018b), its entropy coefficient learned or fixed."""
    settings, unit, alpha = learned.config.algorithm, in_unit_bounds(policy), learned.alpha
    noise = unit.draw_noise((2, len(batch.rows)), generator).to(batch.rows.device)
    parameters = policy.action_parameters(batch.rows)
    chosen = unit.sample(parameters, noise[0])
    logprobs = unit.logprobs(parameters, chosen)
    with torch.no_grad():
        next_parameters = policy.action_parameters(batch.next_rows)
        next_chosen = unit.sample(next_parameters, noise[1])
        target = soft_target(
            batch.rewards,
            batch.terminated,
            learned.targets(batch.next_rows, next_chosen.tanh()),
            unit.logprobs(next_parameters, next_chosen),
            alpha,
            gamma=settings.gamma,
        )
    values = learned.critics(batch.rows, batch.actions)
    missed = twin_loss(values, target)
    loss = missed
    if learned.log_alpha is not None:
        loss = missed + temperature_loss(learned.log_alpha, logprobs, target=learned.target_entropy)
    descend(learned.optimizer, loss)
    policy_loss = soft_policy_loss(alpha, logprobs, learned.critics(batch.rows, chosen.tanh()))
    descend(optimizer, policy_loss)
    move_towards(learned.targets.parameters(), learned.critics.parameters(), tau=settings.tau)
    learned.updates += 1
    tally.add(missed=missed, values=values.mean(), policy_loss=policy_loss, entropy=-logprobs.mean(), alpha=alpha)


def deterministic_update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    learned: TrainedCritics,
    batch: Batch,
    generator: torch.Generator,
    tally: Tally,
) -> None:
    """TD3 (Fujimoto et al. 2018): the policy and the targets move at every `policy_delay`-th update."""
    settings, actions = learned.config.algorithm, policy.distribution
    assert learned.target_policy is not None
    with torch.no_grad():
        noise = actions.draw_noise((len(batch.rows),), generator).to(batch.rows.device)
        next_actions = smoothed_actions(
            actions.mode(learned.target_policy.action_parameters(batch.next_rows)),
            noise,
            deviation=settings.target_noise,
            clip=settings.target_noise_clip,
        )
        next_values = learned.targets(batch.next_rows, next_actions)
        target = clipped_target(batch.rewards, batch.terminated, next_values, gamma=settings.gamma)
    values = learned.critics(batch.rows, batch.actions)
    missed = twin_loss(values, target)
    descend(learned.optimizer, missed)
    learned.updates += 1
    tally.add(missed=missed, values=values.mean())
    if learned.updates % settings.policy_delay:
        return
    chosen = actions.mode(policy.action_parameters(batch.rows))
    policy_loss = deterministic_policy_loss(learned.critics(batch.rows, chosen))
    descend(optimizer, policy_loss)
    move_towards(learned.targets.parameters(), learned.critics.parameters(), tau=settings.tau)
    move_towards(learned.target_policy.parameters(), policy.parameters(), tau=settings.tau)
    tally.add(policy_loss=policy_loss)


UPDATES: dict[str, Update] = {"sac": soft_update, "td3": deterministic_update}


def in_unit_bounds(policy: Policy) -> Gaussian:
    """The distribution of a stochastic policy for actions in [−1, 1], as the critics read them."""
    assert isinstance(policy.distribution, Gaussian)
    ones = tuple(1.0 for _ in policy.distribution.low)
    return replace(policy.distribution, low=tuple(-one for one in ones), high=ones)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step on the weights of this optimizer; others that the loss depends on get no gradient."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=weights_of(optimizer))  # type: ignore[no-untyped-call]
    optimizer.step()


def weights_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
