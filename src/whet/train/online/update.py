"""The optimizer steps on the rollouts of one step. Calls the cells of an algorithm without knowing which they are."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.advantages import value_loss
from whet.algorithms.policy_loss import token_mean
from whet.algorithms.table import Algorithm, token_loss
from whet.batching import global_weights, packed, passes, split_prompts, take_batch
from whet.distributed.world import World
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import TokenReading, read_tokens
from whet.records import Batch
from whet.train.online.learner import Learner
from whet.train.online.old_logprobs import Agreement
from whet.train.online.token_record import TokenRecord
from whet.train.optimizers.optimizer import Descent, ask_loss, descend, finite

# Sums over tokens; `approx_kl` is KL(policy at the start of the step ‖ policy now).
STATISTICS = ("clip_fraction", "surrogate/wrong_sign", "entropy", "approx_kl", "tokens")
CRITIC_STATISTICS = ("critic/clip_fraction", "critic/loss")


class TokenSums:
    """Sums over tokens, kept on the device until the end of the step."""

    def __init__(self, device: torch.device, record: TokenRecord | None = None) -> None:
        self.record, self.epoch = record, 0
        self.sums = {key: torch.zeros((), dtype=torch.float64, device=device) for key in STATISTICS + CRITIC_STATISTICS}
        self.agreement: Agreement | None = None  # set while the sampler is to be compared with the policy
        # The largest of log π/π_old and of its negative, over trained tokens.
        self._farthest = torch.full((2,), -math.inf, device=device)

    def add(self, **sums: Tensor) -> None:
        """Adds one micro-batch; __ in a keyword means / in a metric."""
        for key, value in sums.items():
            self.sums[key.replace("__", "/")] += value.detach()

    def add_ratios(self, log_ratios: Tensor, mask: Tensor) -> None:
        """Adds (B, T) log π/π_old of one micro-batch."""
        if log_ratios.numel():
            both = [sign.masked_fill(~mask, -math.inf).amax() for sign in (log_ratios, -log_ratios)]
            self._farthest = torch.maximum(self._farthest, torch.stack(both))

    def farthest(self) -> list[float]:
        """The largest ratio π/π_old of this rank, and the largest π_old/π; 0 without a trained token."""
        return [float(ratio) for ratio in self._farthest.double().exp().tolist()]

    def totals(self, world: World) -> dict[str, float]:
        totals = world.sum(torch.stack(list(self.sums.values()))).tolist()
        return dict(zip(self.sums, totals, strict=True))


def update(learner: Learner, batch: Batch, *, step: int, record: TokenRecord | None = None) -> dict[str, float]:
    """Epochs × minibatches optimizer steps, fewer if `update.target_kl` is exceeded; returns metrics."""
    config, world = learner.config, learner.world
    settings = config.update
    gathered = int(world.max(float(batch.prompts.max()) if len(batch.prompts) else -1.0)) + 1
    if learner.critic is not None:
        learner.critic.set_rate(step)
    tally = TokenSums(world.device, record)
    agreement = Agreement(world.device) if batch.logprobs_sampled is not None else None
    descents: list[Descent] = []
    for epoch in range(settings.epochs):
        tally.epoch = epoch
        for prompts in split_prompts(gathered, settings.minibatches, seed=(config.seed, step, epoch)):
            wanted = torch.tensor(prompts, device=batch.prompts.device)
            minibatch = take_batch(batch, torch.isin(batch.prompts, wanted).nonzero()[:, 0])
            if world.max(float(minibatch.sequences.mask.any())) == 0:  # only truncated rollouts, which are masked
                continue
            tally.agreement = None if descents else agreement  # only before the first optimizer step
            descent = _descend(learner, minibatch, tally, step)
            if descent is None:  # KL above target_kl
                break
            descents.append(descent)
        else:
            continue
        break
    measured = {} if agreement is None else agreement.metrics(world, limit=learner.mismatch_limit)
    return {**measured, **_report(learner, descents, tally, step), **_extremes(batch, tally, world)}


def _descend(learner: Learner, batch: Batch, tally: TokenSums, step: int) -> Descent | None:
    """One optimizer step, unless the minibatch shows a KL above `update.target_kl`."""
    limit, world = learner.config.update.target_kl, learner.world
    before = {key: tally.sums[key].clone() for key in ("approx_kl", "tokens")}

    def is_near() -> bool:
        if tally.agreement is not None:
            tally.agreement.metrics(world, limit=learner.mismatch_limit)
        if limit is None:
            return True
        kl, tokens = world.sum(torch.stack([tally.sums[key] - before[key] for key in before])).tolist()
        return bool(kl <= limit * max(1.0, tokens))

    losses = _losses(learner, batch, tally, step)
    return descend(
        losses, learner.optimizers(step), world, max_grad_norm=learner.config.update.max_grad_norm, proceed=is_near
    )


def _losses(learner: Learner, batch: Batch, tally: TokenSums, step: int) -> Iterator[Tensor]:
    """The loss of each micro-batch; they add up to the loss of the minibatch over all ranks."""
    config, world, algorithm, critic = learner.config, learner.world, learner.algorithm, learner.critic
    mask = batch.sequences.mask
    weights = global_weights(algorithm.weighting, mask, world, max_tokens=config.rollout.max_tokens)
    even = global_weights(token_mean, mask, world, max_tokens=config.rollout.max_tokens)
    policy_learns = critic is None or not critic.is_warming_up(step)
    head = None if critic is None else critic.beside(policy_learns)
    batches = passes(batch.sequences, batch.prompts, config.update, learner.policy)
    learning, frozen = _passed(learner, policy_learns)
    for rows in world.sharding.evened(batches, *learning, frozen=frozen):
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
                top=0 if tally.record is None else tally.record.top_in(tally.epoch),
            )
        values = reading.values
        if critic is not None and values is None:
            with autocast(world.device):
                values = critic.values(learner.policy, s, packing)
        loss = torch.zeros((), device=world.device)
        if micro.logprobs_old is None:
            micro = replace(micro, logprobs_old=reading.logprobs.detach())
        if tally.agreement is not None:
            assert micro.logprobs_sampled is not None
            tally.agreement.add(reading.logprobs, micro.logprobs_sampled, s.mask)
        supply = _supply(micro, reading)
        surrogate = _count(tally, algorithm, micro, reading, supply)
        if policy_learns:
            per_token = token_loss(algorithm, supply, surrogate=surrogate, kl_coefficient=batch.kl_coefficient)
            loss = (per_token * weights[rows, :width]).sum()
            if batch.entropy_coefficient:
                loss = loss - batch.entropy_coefficient * (reading.entropies * even[rows, :width]).sum()
        if critic is not None:
            assert values is not None
            missed = _critic_loss(micro, values, critic.config.critic.clip, tally) * even[rows, :width]
            loss = loss + critic.config.critic.coefficient * missed.sum()
        yield finite(loss, tokens=s.tokens, logprobs=reading.logprobs, advantages=micro.advantages)


def _passed(learner: Learner, policy_learns: bool) -> tuple[list[Any], list[Any]]:
    """The models that a micro-batch passes through, once for each time: with gradients, and without."""
    policy, critic = learner.policy, learner.critic
    if critic is None or (critic.trunk is None and policy_learns):
        return [policy], []
    if critic.trunk is None:  # its log-probs are read, and the states for the head, which alone learns
        return [], [policy, policy]
    return ([policy, critic.trunk], []) if policy_learns else ([critic.trunk], [policy])


def _supply(micro: Batch, reading: TokenReading) -> dict[str, Tensor | None]:
    """Terms that surrogates and KL estimators may ask for."""
    return {
        "logprobs": reading.logprobs,
        "logprobs_old": micro.logprobs_old,
        "logprobs_ref": micro.logprobs_ref,
        "advantages": micro.advantages,
        "mask": micro.sequences.mask,
        "correction": micro.correction,
    }


def _critic_loss(micro: Batch, values: Tensor, clip: float, tally: TokenSums) -> Tensor:
    assert micro.values is not None
    assert micro.targets is not None
    mask = micro.sequences.mask
    per_token = value_loss(values, micro.values, micro.targets, clip=clip)
    moved = ((values - micro.values).abs() > clip) & mask if clip else torch.zeros_like(mask)
    tally.add(critic__loss=(per_token * mask).sum(), critic__clip_fraction=moved.sum())
    return per_token


def _count(
    tally: TokenSums, algorithm: Algorithm, micro: Batch, reading: TokenReading, supply: dict[str, Tensor | None]
) -> Tensor:
    """The surrogate of one micro-batch, which is added to the statistics; all terms are 0 where the mask is False."""
    mask, logprobs = micro.sequences.mask, reading.logprobs
    if not logprobs.requires_grad:  # only the critic learns in this step
        logprobs = logprobs.detach().requires_grad_()
    losses = ask_loss(algorithm.surrogate, {**supply, "logprobs": logprobs}, shapes=(logprobs.shape,))
    # A token is clipped if its advantage has no gradient in its log-prob; computed with autograd, so it holds for any
    # surrogate. The gradient stops at the log-probs, and the graph is kept for the backward pass.
    (pull,) = torch.autograd.grad(losses.sum(), logprobs, retain_graph=True)
    assert micro.logprobs_old is not None
    log_ratio = logprobs.detach() - micro.logprobs_old
    clipped = (pull == 0) & (micro.advantages != 0) & mask
    if tally.record is not None:
        is_old = tally.agreement is not None
        tally.record.see(micro, reading, log_ratio, clipped, epoch=tally.epoch, is_old=is_old)
    tally.add_ratios(log_ratio, mask)
    tally.add(
        tokens=mask.sum(),
        entropy=reading.entropies.sum(),
        approx_kl=(torch.expm1(log_ratio) - log_ratio).mul(mask).sum(),
        clip_fraction=clipped.sum(),
        surrogate__wrong_sign=(pull * micro.advantages > 0).mul(mask).sum(),
    )
    return losses


def _report(learner: Learner, descents: list[Descent], tally: TokenSums, step: int) -> dict[str, float]:
    totals = tally.totals(learner.world)
    wanted = STATISTICS if learner.critic is None else STATISTICS + CRITIC_STATISTICS
    tokens = max(1.0, totals["tokens"])
    report = {key: totals[key] / tokens for key in wanted if key != "tokens"}
    for index, optimizer in enumerate(learner.optimizers(step)):
        key = "grad_norm" if optimizer is learner.optimizer else "critic/grad_norm"
        report[key] = max((descent.grad_norms[index] for descent in descents), default=0.0)
    loss = sum(descent.loss for descent in descents) / max(1, len(descents))
    return {"loss": loss, "updates": float(len(descents)), **report}


def _extremes(batch: Batch, tally: TokenSums, world: World) -> dict[str, float]:
    """Of the trained tokens of all ranks: largest advantage, share of positive ones, largest and smallest ratio."""
    mask, advantages = batch.sequences.mask, batch.advantages
    counts = torch.stack([mask.sum(), (mask & (advantages > 0)).sum()])
    largest = float(advantages[mask].abs().amax()) if bool(mask.any()) else 0.0
    gathered = world.gather([*counts.tolist(), largest, *tally.farthest()])
    tokens, positive, largest_ones, above, below = zip(*gathered, strict=True)
    if not sum(tokens):
        return {}
    found = {"advantage/max": max(largest_ones), "advantage/positive": sum(positive) / sum(tokens)}
    return found | ({"ratio/max": max(above), "ratio/min": 1 / max(below)} if max(below) else {})
