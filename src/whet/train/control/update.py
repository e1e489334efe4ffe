"""The optimizer steps on the batch of a rollout. Calls the cells of an algorithm without knowing which they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whet.algorithms.advantages import value_loss
from whet.algorithms.cells import bind, options, plain, terms
from whet.algorithms.policy_loss import clip, entropy_bonus
from whet.algorithms.table import Algorithm, token_loss
from whet.config.control import ControlConfig
from whet.control.policies import Policy
from whet.streams import stream_key
from whet.train.control.annotate import Batch
from whet.train.optimizers.flat_adamw import FlatAdamW
from whet.train.optimizers.optimizer import NotFinite

SHUFFLE = 2  # of the streams of random numbers


@dataclass(slots=True)
class Tally:
    """What the updates of a rollout measured, as tensors until the end: one sum over all is cheaper than many."""

    losses: list[Tensor] = field(default_factory=list)
    missed: list[Tensor] = field(default_factory=list)  # losses of the critic
    norms: list[Tensor] = field(default_factory=list)
    log_ratios: list[Tensor] = field(default_factory=list)
    slopes: list[Tensor] = field(default_factory=list)  # ∂loss/∂log π of every action
    advantages: list[Tensor] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        """Means over actions and minibatches; of the gradient's norm the largest."""
        found = {"updates": float(len(self.losses)), "approx_kl": float(divergence(torch.cat(self.log_ratios)))}
        if not self.losses:
            return found
        # An action is clipped if its advantage has no gradient in its log-prob, whichever the surrogate is.
        is_clipped = (torch.cat(self.slopes) == 0) & (torch.cat(self.advantages) != 0)
        found |= {
            "loss": float(torch.stack(self.losses).mean()),
            "grad_norm": float(torch.stack(self.norms).max()),
            "clip_fraction": float(is_clipped.float().mean()),
        }
        return found | ({"critic/loss": float(torch.stack(self.missed).mean())} if self.missed else {})


def update(
    config: ControlConfig,
    algorithm: Algorithm,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    step: int,
) -> dict[str, float]:
    """Epochs × minibatches, fewer if `update.target_kl` is exceeded; returns metrics."""
    tally, settings = Tally(), config.update
    algorithm, bonus = annealed_clip(config, algorithm, step), entropy_coefficient(config, batch)
    asked = terms(algorithm.surrogate)
    for part in minibatches(config, batch, step):
        optimizer.zero_grad(set_to_none=True)
        seen = policy.pass_over(part.rows)
        parameters, values = seen.parameters, seen.values
        logprobs = policy.distribution.logprobs(parameters, part.actions)
        logprobs.retain_grad()
        log_ratios = logprobs.detach() - part.logprobs_old
        tally.log_ratios.append(log_ratios)
        if settings.target_kl is not None and float(divergence(log_ratios)) > settings.target_kl:
            break
        supply = part.row(logprobs)  # one row of actions, as the table's cells read them
        surrogate = algorithm.surrogate(*(supply[name] for name in asked))
        loss = token_loss(algorithm, supply, surrogate=surrogate).squeeze(0) @ part.weights
        if bonus:
            loss = loss - bonus * policy.distribution.entropies(parameters).mean()
        if values is not None:
            assert part.values is not None
            assert part.targets is not None
            missed = value_loss(values, part.values, part.targets, clip=config.critic.clip).mean()
            tally.missed.append(missed.detach())
            loss = loss + config.critic.coefficient * missed
        seen.back(loss)
        assert logprobs.grad is not None
        tally.norms.append(_descend(optimizer, settings.max_grad_norm))
        tally.losses.append(loss.detach())
        tally.slopes.append(logprobs.grad)
        tally.advantages.append(part.advantages)
    metrics = tally.metrics()
    if not all(map(math.isfinite, metrics.values())):
        raise NotFinite(f"the loss is {metrics['loss']} and the norm of its gradient {metrics['grad_norm']}")
    return metrics


def _descend(optimizer: torch.optim.Optimizer, most: float) -> Tensor:
    """A step on the gradient, scaled down to a norm; returns the norm that it had."""
    if isinstance(optimizer, FlatAdamW):
        return optimizer.descend(most)
    norm = torch.nn.utils.clip_grad_norm_(
        [weight for group in optimizer.param_groups for weight in group["params"]], most
    )
    optimizer.step()
    return norm


def divergence(log_ratios: Tensor) -> Tensor:
    """The mean of ρ − 1 − log ρ, an estimate of KL(policy at the start of the step ‖ policy now)."""
    return (torch.expm1(log_ratios) - log_ratios).mean()


def minibatches(config: ControlConfig, batch: Batch, step: int) -> Iterator[Batch]:
    """The parts of every epoch, in an order that the seed, the step and the epoch determine.

    The weights of a part are scaled up to those of the whole, so that its loss estimates that of the whole.
    """
    size, count = config.update.minibatch or batch.count, batch.count
    for epoch in range(config.update.epochs):
        if size >= count:
            yield batch
            continue
        generator = torch.Generator().manual_seed(stream_key((config.seed, SHUFFLE, step, epoch)) % 2**63)
        shuffled = _taken(batch, torch.randperm(count, generator=generator).to(batch.rows.device))
        for start in range(0, count, size):
            part = _taken(shuffled, slice(start, start + size))
            yield replace(part, weights=part.weights * (count / part.count))


def _taken(batch: Batch, places: Tensor | slice) -> Batch:
    values, targets = (None if one is None else one[places] for one in (batch.values, batch.targets))
    return replace(
        batch,
        rows=batch.rows[places],
        actions=batch.actions[places],
        logprobs_old=batch.logprobs_old[places],
        advantages=batch.advantages[places],
        weights=batch.weights[places],
        values=values,
        targets=targets,
    )


def annealed_clip(config: ControlConfig, algorithm: Algorithm, step: int) -> Algorithm:
    """The algorithm with the range of `clip` that this step has."""
    if not config.update.anneal_clip or plain(algorithm.surrogate) is not clip:
        return algorithm
    left = 1 - (step - 1) / config.steps
    narrow = {name: value * left for name, value in options(algorithm.surrogate).items()}
    return replace(algorithm, surrogate=bind(algorithm.surrogate, narrow))


def entropy_coefficient(config: ControlConfig, batch: Batch) -> float:
    """Of the bonus at this step, by the entropy at its start."""
    settings = config.algorithm.entropy
    return entropy_bonus(
        settings.coefficient, batch.entropy, floor=settings.floor, floor_coefficient=settings.floor_coefficient
    )
