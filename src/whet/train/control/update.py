"""The optimizer steps on the batch of a rollout. Calls the cells of an algorithm without knowing which they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from whet.algorithms.advantages import value_loss
from whet.algorithms.cells import bind, options, plain
from whet.algorithms.policy_loss import clip, entropy_bonus
from whet.algorithms.table import Algorithm, token_loss
from whet.config.control import ControlConfig
from whet.control.policies import Policy
from whet.streams import stream_key
from whet.train.control.annotate import Batch
from whet.train.optimizers.optimizer import NotFinite

SHUFFLE = 2  # of the streams of random numbers


class Tally:
    """What the updates of a rollout measured, as tensors until the end."""

    def __init__(self) -> None:
        self.measured: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor) -> None:
        """One minibatch; __ in a keyword means / in a metric."""
        for key, value in values.items():
            self.measured.setdefault(key.replace("__", "/"), []).append(value.detach())

    def metrics(self) -> dict[str, float]:
        """Means over minibatches; of the gradient's norm the largest."""
        joined = {key: torch.stack(some) for key, some in self.measured.items()}
        return {key: float(some.max() if key == "grad_norm" else some.mean()) for key, some in joined.items()}


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
    tally, updates = Tally(), 0
    algorithm, bonus = annealed_clip(config, algorithm, step), entropy_coefficient(config, policy, batch)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for part in minibatches(config, batch, step):
        optimizer.zero_grad(set_to_none=True)
        parameters, values = policy.both(part.rows)
        logprobs = policy.distribution.logprobs(parameters, part.actions)
        logprobs.retain_grad()
        log_ratios = logprobs.detach() - part.logprobs_old
        kl = (torch.expm1(log_ratios) - log_ratios).mean()
        tally.add(approx_kl=kl)
        if config.update.target_kl is not None and float(kl) > config.update.target_kl:
            break
        loss = _loss(algorithm, policy, part, parameters, logprobs, bonus, tally)
        if values is not None:
            assert part.values is not None
            assert part.targets is not None
            missed = value_loss(values, part.values, part.targets, clip=config.critic.clip).mean()
            tally.add(critic__loss=missed)
            loss = loss + config.critic.coefficient * missed
        loss.backward()  # type: ignore[no-untyped-call]
        # A step is clipped if its advantage has no gradient in its log-prob, whichever the surrogate is.
        assert logprobs.grad is not None
        is_clipped = (logprobs.grad == 0) & (part.advantages != 0)
        norm = torch.nn.utils.clip_grad_norm_(weights, config.update.max_grad_norm)
        tally.add(loss=loss, grad_norm=norm, clip_fraction=is_clipped.float().mean())
        optimizer.step()
        updates += 1
    metrics = tally.metrics()
    if not all(map(math.isfinite, metrics.values())):
        raise NotFinite(f"the loss is {metrics['loss']} and the norm of its gradient {metrics['grad_norm']}")
    return {"updates": float(updates), **metrics}


def _loss(
    algorithm: Algorithm,
    policy: Policy,
    part: Batch,
    parameters: Tensor,
    logprobs: Tensor,
    bonus: float,
    tally: Tally,
) -> Tensor:
    """The policy's loss of a minibatch: one row of actions, as the table's cells read them."""
    supply = {
        "logprobs": logprobs[None],
        "logprobs_old": part.logprobs_old[None],
        "advantages": part.advantages[None],
        "mask": torch.ones_like(part.advantages, dtype=torch.bool)[None],
    }
    loss = (token_loss(algorithm, supply)[0] * part.weights).sum()
    entropy = policy.distribution.entropies(parameters).mean()
    tally.add(entropy=entropy)
    return loss - bonus * entropy if bonus else loss


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
    return Batch(
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


@torch.no_grad()
def entropy_coefficient(config: ControlConfig, policy: Policy, batch: Batch) -> float:
    """Of the bonus at this step; the entropy is measured only where a floor depends on it."""
    settings = config.algorithm.entropy
    entropy = 0.0
    if settings.floor:
        entropy = float(policy.distribution.entropies(policy.action_parameters(batch.rows)).mean())
    return entropy_bonus(
        settings.coefficient, entropy, floor=settings.floor, floor_coefficient=settings.floor_coefficient
    )
