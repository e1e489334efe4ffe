"""Advantages, and the optimizer steps on one step's rollouts. Knows the table's cells, not their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from whet.algorithms.cells import call
from whet.algorithms.table import Algorithm, token_loss
from whet.batching import collate, global_weights, micro_batches, pad, split_prompts, take, take_batch
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.models.logprobs import token_logprobs
from whet.models.precision import autocast
from whet.models.protocol import CausalLM
from whet.records import Batch, Sampling, Sequences
from whet.rollout import Group
from whet.train.optim import descend, finite

# Sums over tokens; `kl` is KL(policy ‖ reference), `policy_kl` is KL(policy at the start of the step ‖ policy now).
STATISTICS = ("tokens", "entropy", "kl", "policy_kl", "clip_fraction")


def annotate(
    groups: Sequence[Group],
    policy: CausalLM,
    reference: CausalLM | None,
    algorithm: Algorithm,
    config: OnlineConfig,
    world: World,
) -> tuple[Batch, dict[str, float]]:
    """Old and reference log-probs and the advantages of a step's rollouts; and how far sampler and trainer agree."""
    rollouts = [rollout for group in groups for rollout in group]
    sequences = collate([r.tokens for r in rollouts], [r.mask for r in rollouts], world.device)
    sampling, micro_tokens = config.rollout.sampling, config.update.micro_tokens
    old = _frozen_logprobs(policy, sequences, sampling, micro_tokens)
    ref = None if reference is None else _frozen_logprobs(reference, sequences, sampling, micro_tokens)
    agreement = _agreement(old, pad([r.logprobs for r in rollouts], torch.float32).to(world.device), sequences, world)
    if agreement["mismatch/mean"] > config.update.mismatch_limit:  # nan passes: the loss says that better
        raise RunFailed(
            f"sampler and trainer disagree by {agreement['mismatch/mean']:.3g} nats a token on average (limit "
            f"{config.update.mismatch_limit:g}): the engine's weights are not version {rollouts[0].version}"
        )
    rewards = torch.tensor([[r.score.reward for r in group] for group in groups], dtype=torch.float32)
    if algorithm.kl_in_reward and ref is not None:
        penalty = algorithm.kl(old, ref).mul(sequences.mask).sum(dim=1).cpu().view_as(rewards)
        rewards = rewards - algorithm.kl_in_reward * penalty
    advantages = call(algorithm.advantage, {"rewards": rewards}).reshape(-1, 1).to(world.device)
    batch = Batch(
        sequences=sequences,
        logprobs_old=old,
        logprobs_ref=ref,
        advantages=advantages.expand(-1, sequences.mask.shape[1]) * sequences.mask,
    )
    return batch, agreement


def update(
    policy: CausalLM,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    algorithm: Algorithm,
    config: OnlineConfig,
    world: World,
    *,
    step: int,
) -> dict[str, float]:
    """Epochs × minibatches optimizer steps on one batch; returns what to log."""
    sums: defaultdict[str, float] = defaultdict(float)
    descents = []
    for epoch in range(config.update.epochs):
        shuffle = (config.seed, step, epoch)
        for prompts in split_prompts(config.rollout.prompts, config.update.minibatches, seed=shuffle):
            minibatch = take_batch(batch, _rows(prompts, config.rollout.group, world, batch.advantages.device))
            losses = _losses(policy, minibatch, algorithm, config, world, sums)
            descents.append(descend(losses, optimizer, world, clip_norm=config.update.clip_norm))
    keys = sorted(STATISTICS)
    totals = world.sum(torch.tensor([sums[key] for key in keys], dtype=torch.float64)).tolist()
    totals_by_key = dict(zip(keys, totals, strict=True))
    tokens = max(1.0, totals_by_key.pop("tokens"))
    if batch.logprobs_ref is None:
        totals_by_key.pop("kl")
    return {
        "loss": sum(d.loss for d in descents) / len(descents),
        "grad_norm": max(d.grad_norm for d in descents),
        **{key: total / tokens for key, total in totals_by_key.items()},
    }


def _losses(
    policy: CausalLM,
    batch: Batch,
    algorithm: Algorithm,
    config: OnlineConfig,
    world: World,
    sums: defaultdict[str, float],
) -> Iterator[Tensor]:
    """The loss of each micro-batch; they add up to the loss of the minibatch over all ranks."""
    mask = batch.sequences.mask
    weights = global_weights(algorithm.weighting, mask, world, max_tokens=config.rollout.max_tokens)
    for rows in micro_batches(batch.sequences.lengths, config.update.micro_tokens):
        micro = take_batch(batch, rows)
        s = micro.sequences
        with autocast(world.device):
            logprobs, entropies = token_logprobs(policy, s.tokens, s.lengths, s.mask, config.rollout.sampling)
        supply = {
            "logprobs": logprobs,
            "logprobs_old": micro.logprobs_old,
            "logprobs_ref": micro.logprobs_ref,
            "advantages": micro.advantages,
            "mask": s.mask,
        }
        _count(sums, supply, entropies, algorithm)
        loss = (token_loss(algorithm, supply) * weights[rows, : s.mask.shape[1]]).sum()
        yield finite(loss, tokens=s.tokens, logprobs=logprobs, advantages=micro.advantages)


def _count(
    sums: defaultdict[str, float], supply: dict[str, Tensor | None], entropies: Tensor, algorithm: Algorithm
) -> None:
    """Adds one micro-batch to the statistics; everything is 0 where the mask is False."""
    logprobs, old, mask, advantages = (supply[k] for k in ("logprobs", "logprobs_old", "mask", "advantages"))
    assert logprobs is not None
    assert old is not None
    assert mask is not None
    assert advantages is not None
    log_ratio = logprobs.detach() - old
    sums["tokens"] += float(mask.sum())
    sums["entropy"] += float(entropies.sum())
    sums["policy_kl"] += float((torch.expm1(log_ratio) - log_ratio).sum())
    if supply["logprobs_ref"] is not None:
        sums["kl"] += float(algorithm.kl(logprobs.detach(), supply["logprobs_ref"]).mul(mask).sum())
    # A token is clipped when its advantage no longer reaches its log-prob: asked of the gradient, so it holds for any
    # surrogate.
    leaf = logprobs.detach().requires_grad_()
    (pull,) = torch.autograd.grad(call(algorithm.surrogate, {**supply, "logprobs": leaf}).sum(), leaf)
    sums["clip_fraction"] += float(((pull == 0) & (advantages != 0)).mul(mask).sum())


@torch.no_grad()
def _frozen_logprobs(model: CausalLM, sequences: Sequences, sampling: Sampling, micro_tokens: int) -> Tensor:
    logprobs = torch.zeros(sequences.mask.shape, device=sequences.mask.device)
    for rows in micro_batches(sequences.lengths, micro_tokens):
        s = take(sequences, rows)
        with autocast(s.tokens.device):
            logprobs[rows, : s.tokens.shape[1]], _ = token_logprobs(model, s.tokens, s.lengths, s.mask, sampling)
    return logprobs


def _agreement(old: Tensor, sampled: Tensor, sequences: Sequences, world: World) -> dict[str, float]:
    """How far the trainer's log-probs are from the sampler's, over all ranks."""
    difference = (old - sampled).abs()[sequences.mask]
    totals = world.sum(torch.stack([difference.sum(), torch.tensor(difference.numel(), device=old.device)]).double())
    worst = world.max(float(difference.max()) if difference.numel() else 0.0)
    return {"mismatch/mean": float(totals[0] / totals[1].clamp(min=1)), "mismatch/max": worst}


def _rows(prompts: Sequence[int], group: int, world: World, device: torch.device) -> Tensor:
    """The local rows of these prompts, which are numbered over all ranks."""
    local = [prompt // world.size for prompt in prompts if world.owns(prompt)]
    return torch.tensor([p * group + i for p in local for i in range(group)], dtype=torch.int64, device=device)
