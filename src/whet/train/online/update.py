"""The optimizer steps on one step's rollouts. Knows the table's cells, not their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from whet.algorithms.cells import name
from whet.algorithms.table import Algorithm, token_loss
from whet.algorithms.values import value_loss
from whet.algorithms.weightings import token_mean
from whet.batching import global_weights, packed, passes, split_prompts, take_batch
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import TokenReading, read_tokens
from whet.records import Batch
from whet.train.online.learner import Learner, ask
from whet.train.online.old_logprobs import Agreement
from whet.train.setup.optimizer import Descent, descend, finite

# Sums over tokens; `approx_kl` is KL(policy at the start of the step ‖ policy now).
STATISTICS = ("clip_fraction", "entropy", "approx_kl", "tokens")
CRITIC_STATISTICS = ("critic/clip_fraction", "critic/loss")


class Tally:
    """Sums over tokens, kept on the device until they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self.sums = {key: torch.zeros((), dtype=torch.float64, device=device) for key in STATISTICS + CRITIC_STATISTICS}
        self.agreement: Agreement | None = None  # where the sampler is still to be compared with the policy

    def add(self, **sums: Tensor) -> None:
        """Adds one micro-batch; a double underscore stands for a slash."""
        for key, value in sums.items():
            self.sums[key.replace("__", "/")] += value.detach()

    def totals(self, world: World) -> dict[str, float]:
        """The sums over all ranks."""
        totals = world.sum(torch.stack(list(self.sums.values()))).tolist()
        return dict(zip(self.sums, totals, strict=True))


def update(learner: Learner, batch: Batch, *, step: int) -> dict[str, float]:
    """Epochs × minibatches optimizer steps on one batch, fewer where the policy has moved far; returns what to log."""
    config, world = learner.config, learner.world
    settings = config.update
    gathered = int(world.max(float(batch.prompts.max()) if len(batch.prompts) else -1.0)) + 1
    if learner.critic is not None:
        learner.critic.set_rate(step)
    tally = Tally(world.device)
    agreement = Agreement(world.device) if batch.logprobs_sampled is not None else None
    descents: list[Descent] = []
    for epoch in range(settings.epochs):
        for prompts in split_prompts(gathered, settings.minibatches, seed=(config.seed, step, epoch)):
            wanted = torch.tensor(prompts, device=batch.prompts.device)
            minibatch = take_batch(batch, torch.isin(batch.prompts, wanted).nonzero()[:, 0])
            if world.max(float(minibatch.sequences.mask.any())) == 0:  # all of it was cut off, and is left out
                continue
            tally.agreement = None if descents else agreement  # after the first step the policy is another
            descent = _descend(learner, minibatch, tally, step)
            if descent is None:  # too far from where the rollouts were sampled
                break
            descents.append(descent)
        else:
            continue
        break
    measured = {} if agreement is None else agreement.metrics(world, limit=settings.mismatch_limit)
    return {**measured, **_report(learner, descents, tally, step)}


def _descend(learner: Learner, batch: Batch, tally: Tally, step: int) -> Descent | None:
    """One optimizer step, unless the minibatch shows that the policy has moved further than the limit."""
    limit, world = learner.config.update.target_kl, learner.world
    before = {key: tally.sums[key].clone() for key in ("approx_kl", "tokens")}

    def is_near() -> bool:
        if tally.agreement is not None:
            tally.agreement.metrics(world, limit=learner.config.update.mismatch_limit)
        if limit is None:
            return True
        kl, tokens = world.sum(torch.stack([tally.sums[key] - before[key] for key in before])).tolist()
        return bool(kl <= limit * max(1.0, tokens))

    losses = _losses(learner, batch, tally, step)
    return descend(
        losses, learner.optimizers(step), world, max_grad_norm=learner.config.update.max_grad_norm, proceed=is_near
    )


def _losses(learner: Learner, batch: Batch, tally: Tally, step: int) -> Iterator[Tensor]:
    """The loss of each micro-batch; they add up to the loss of the minibatch over all ranks."""
    config, world, algorithm, critic = learner.config, learner.world, learner.algorithm, learner.critic
    mask = batch.sequences.mask
    weights = global_weights(algorithm.weighting, mask, world, max_tokens=config.rollout.max_tokens)
    even = global_weights(token_mean, mask, world, max_tokens=config.rollout.max_tokens)
    policy_learns = critic is None or not critic.is_warming_up(step)
    head = None if critic is None else critic.beside(policy_learns)
    for rows in passes(batch.sequences, batch.prompts, config.update, learner.policy):
        micro = take_batch(batch, rows)
        s = micro.sequences
        packing = packed(s, micro.prompts, config.update)
        width = s.mask.shape[1]
        with autocast(world.device), torch.set_grad_enabled(policy_learns):
            reading = read_tokens(
                learner.policy,
                s.tokens,
                s.lengths,
                s.mask,
                batch.sampling,
                value_head=head,
                entropy_gradient=batch.entropy_coefficient > 0,
                packing=packing,
            )
        values = reading.values
        if critic is not None and values is None:
            with autocast(world.device):
                values = critic.values(learner.policy, s, packing)
        loss = torch.zeros((), device=world.device)
        if micro.logprobs_old is None:
            micro = replace(micro, logprobs_old=reading.logprobs.detach())
        if tally.agreement is not None:
            assert micro.logprobs_sampled is not None  # or there would be nothing to compare
            tally.agreement.add(reading.logprobs, micro.logprobs_sampled, s.mask)
        supply = _supply(micro, reading)
        _count(tally, algorithm, micro, reading, supply)
        if policy_learns:
            per_token = token_loss(algorithm, supply, kl_coefficient=batch.kl_coefficient)
            loss = (per_token * weights[rows, :width]).sum()
            if batch.entropy_coefficient:
                loss = loss - batch.entropy_coefficient * (reading.entropies * even[rows, :width]).sum()
        if critic is not None:
            assert values is not None
            missed = _critic_loss(micro, values, critic.config.critic.clip, tally) * even[rows, :width]
            loss = loss + critic.config.critic.coefficient * missed.sum()
        yield finite(loss, tokens=s.tokens, logprobs=reading.logprobs, advantages=micro.advantages)


def _supply(micro: Batch, reading: TokenReading) -> dict[str, Tensor | None]:
    """What surrogates and KL estimators may ask for."""
    return {
        "logprobs": reading.logprobs,
        "logprobs_old": micro.logprobs_old,
        "logprobs_ref": micro.logprobs_ref,
        "advantages": micro.advantages,
        "mask": micro.sequences.mask,
        "correction": micro.correction,
    }


def _critic_loss(micro: Batch, values: Tensor, clip: float, tally: Tally) -> Tensor:
    assert micro.values is not None
    assert micro.targets is not None
    mask = micro.sequences.mask
    per_token = value_loss(values, micro.values, micro.targets, clip=clip)
    moved = ((values - micro.values).abs() > clip) & mask if clip else torch.zeros_like(mask)
    tally.add(critic__loss=(per_token * mask).sum(), critic__clip_fraction=moved.sum())
    return per_token


@torch.enable_grad()
def _count(
    tally: Tally, algorithm: Algorithm, micro: Batch, reading: TokenReading, supply: dict[str, Tensor | None]
) -> None:
    """Adds one micro-batch to the statistics; everything is 0 where the mask is False."""
    mask, leaf = micro.sequences.mask, reading.logprobs.detach().requires_grad_()
    # A token is clipped when its advantage no longer reaches its log-prob: asked of the gradient, so it holds for any
    # surrogate.
    loss = ask(algorithm.surrogate, {**supply, "logprobs": leaf}, shapes=(leaf.shape,)).sum()
    if not loss.requires_grad:
        raise RunFailed(
            f"surrogate {name(algorithm.surrogate)!r} has no gradient in the log-probs, so it trains nothing"
        )
    (pull,) = torch.autograd.grad(loss, leaf)
    assert micro.logprobs_old is not None
    log_ratio = leaf.detach() - micro.logprobs_old
    tally.add(
        tokens=mask.sum(),
        entropy=reading.entropies.sum(),
        approx_kl=(torch.expm1(log_ratio) - log_ratio).mul(mask).sum(),
        clip_fraction=((pull == 0) & (micro.advantages != 0)).mul(mask).sum(),
    )


def _report(learner: Learner, descents: list[Descent], tally: Tally, step: int) -> dict[str, float]:
    """What to log of one step's updates."""
    totals = tally.totals(learner.world)
    wanted = STATISTICS if learner.critic is None else STATISTICS + CRITIC_STATISTICS
    tokens = max(1.0, totals["tokens"])
    report = {key: totals[key] / tokens for key in wanted if key != "tokens"}
    for index, optimizer in enumerate(learner.optimizers(step)):
        key = "grad_norm" if optimizer is learner.optimizer else "critic/grad_norm"
        report[key] = max((descent.grad_norms[index] for descent in descents), default=0.0)
    loss = sum(descent.loss for descent in descents) / max(1, len(descents))
    return {"loss": loss, "updates": float(len(descents)), **report}
