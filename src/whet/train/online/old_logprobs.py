"""Forward passes before the first update of a step: log-probs of policy and reference, values of the critic.

`Learner.old` says where old log-probs come from. `Agreement` compares them with the sampler's (train-inference
mismatch) and ends the run above `update.mismatch_limit`; it is the only such comparison.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.algorithms.policy_loss import k3
from whet.batching import MicroBatching, packed, passes, take
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.models.layers.decoder_config import autocast, on_device
from whet.models.layers.packing import Packing
from whet.models.logprobs import read_tokens
from whet.records import Rollout, Sampling, Sequences
from whet.train.online.learner import Learner, StepSettings
from whet.train.online.reference import Reference


@dataclass(frozen=True, kw_only=True, slots=True)
class Frozen:
    """Log-probs, entropies and values of the rollouts before the first update; (B, T)."""

    old: Tensor
    entropies: Tensor
    ref: Tensor | None
    values: Tensor | None
    top: tuple[Tensor, Tensor] | None = None  # (B, T, K) ids and log-probs of the likeliest tokens, if asked for

    def sums(self, mask: Tensor) -> Tensor:
        """Number of sampled tokens, their entropy, and their KL to the reference."""
        kl = torch.zeros(()) if self.ref is None else k3(self.old, self.ref).mul(mask).sum()
        return torch.stack([some.double().cpu() for some in (mask.sum(), self.entropies.sum(), kl)])


@torch.no_grad()
def read(
    learner: Learner, sequences: Sequences, prompts: Tensor, sampled: Tensor, settings: StepSettings, *, top: int = 0
) -> Frozen:
    """One forward pass of each model over the rollouts; none of the policy if its log-probs are known.

    The reference reads all of them after the policy: the base under adapters shares memory with it, and every change
    between the two folds the adapters anew.
    """
    config, critic, reference = learner.config, learner.critic, learner.reference
    shape = sequences.mask.shape
    old, entropies = (torch.zeros(shape, device=learner.world.device) for _ in range(2))
    ids, likeliest = (torch.zeros(*shape, top, device=old.device, dtype=kind) for kind in (torch.int64, old.dtype))
    ref = torch.zeros_like(old) if reference is not None else None
    worth = torch.zeros_like(old) if critic is not None else None
    head = critic.beside(policy_learns=True) if critic is not None else None
    if learner.old != "read":
        old = sampled * sequences.mask
        if reference is None and critic is None:
            return Frozen(old=old, entropies=entropies, ref=None, values=None)
    batches = list(passes(sequences, prompts, config.update, learner.policy))
    even = learner.world.sharding.evened
    passed = [learner.policy] if learner.old == "read" else []
    if critic is not None and (head is None or not passed):
        passed.append(critic.trunk or learner.policy)
    for rows in even(batches, *passed) if passed else ():
        s, packing, place = _batch(sequences, prompts, rows, config.update)
        own = None
        with autocast(s.tokens.device):
            if learner.old == "read":
                reading = read_tokens(
                    *(learner.policy, s.tokens, s.lengths, s.mask, settings.sampling),
                    value_head=head,
                    packing=packing,
                    top=top,
                )
                old[place], entropies[place], own = reading.logprobs, reading.entropies, reading.values
                if reading.top is not None:
                    trained, columns = s.mask.nonzero(as_tuple=True)
                    ids[rows[trained], columns], likeliest[rows[trained], columns] = reading.top
            if critic is not None:
                assert worth is not None
                worth[place] = own if own is not None else critic.values(learner.policy, s, packing)
    for rows in even(batches, reference.passed) if reference is not None else ():
        assert ref is not None
        assert reference is not None
        s, packing, place = _batch(sequences, prompts, rows, config.update)
        ref[place] = read_reference(reference, s, packing, settings.sampling)
    return Frozen(old=old, entropies=entropies, ref=ref, values=worth, top=(ids, likeliest) if top else None)


def read_reference(reference: Reference, s: Sequences, packing: Packing | None, sampling: Sampling) -> Tensor:
    """(B, T) log-probs under the reference, on the device of the sequences."""
    device = s.tokens.device
    there = reference.own or device
    packing = None if packing is None else packing.to(there)
    tokens, lengths, mask = (some.to(there) for some in (s.tokens, s.lengths, s.mask))
    with on_device(there), autocast(there):
        reading = read_tokens(reference.model, tokens, lengths, mask, sampling, packing=packing)
    return reading.logprobs.to(device)


def _batch(
    sequences: Sequences, prompts: Tensor, rows: Tensor, update: MicroBatching
) -> tuple[Sequences, Packing | None, tuple[Tensor, Tensor]]:
    """These rows, their packing, and their places in a (B, T) tensor of all."""
    s = take(sequences, rows)
    return s, packed(s, prompts[rows], update), (rows[:, None], torch.arange(s.tokens.shape[1], device=rows.device))


@torch.no_grad()
def values_ahead(learner: Learner, rollouts: Sequence[Rollout], s: Sequences, prompts: Tensor) -> Tensor:
    """(B,): the critic's value after the last token of truncated rollouts, 0 for terminated ones.

    Truncation is not termination: partial-episode bootstrapping, Pardo et al. 2018, Time Limits in Reinforcement
    Learning.
    """
    ahead = torch.zeros(len(rollouts), device=s.mask.device)
    cut = torch.tensor([r.finish == "length" for r in rollouts], dtype=torch.bool, device=s.mask.device)
    if learner.critic is None or not learner.config.critic.bootstrap_truncated:
        return ahead
    rows = (cut & s.mask.any(dim=1)).nonzero()[:, 0]
    batches = passes(take(s, rows), prompts[rows], learner.config.update, learner.policy)
    for some in learner.world.sharding.evened(batches, learner.critic.trunk or learner.policy):
        with autocast(s.mask.device):
            ahead[rows[some]] = learner.critic.values_after(learner.policy, take(s, rows[some]), prompts[rows[some]])
    return ahead


class Agreement:
    """Running comparison of the sampler's and the trainer's log-probs; sums stay on the device."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # |difference|, KL(sampler ‖ trainer), tokens
        self._worst = torch.zeros((), device=device)

    def add(self, trained: Tensor, sampled: Tensor, mask: Tensor) -> None:
        """Adds (B, T) log-probs of both, from before the first update."""
        trained = trained.detach()
        apart, kl = (trained - sampled).abs().mul(mask), k3(sampled, trained).mul(mask)
        self._sums += torch.stack([some.sum().double() for some in (apart, kl, mask)])
        if apart.numel():
            self._worst = torch.maximum(self._worst, apart.max())

    def metrics(self, world: World, *, limit: float) -> dict[str, float]:
        """Mismatch over all ranks; ends the run if the mean exceeds `limit` nats."""
        total, kl, count = world.sum(self._sums.cpu()).tolist()
        mean = total / max(1.0, count)
        if math.isnan(mean):  # a loss that ignores the sampler's log-probs would not notice
            raise RunFailed("the sampler's log-probs, or the trainer's, are no numbers: look at the weights")
        if mean > limit:
            raise RunFailed(
                f"sampler and trainer disagree by {mean:.3g} nats a token on average (limit {limit:g}): "
                "the engine's weights are not those of the policy"
            )
        worst = world.max(float(self._worst))
        return {"mismatch/mean": mean, "mismatch/max": worst, "mismatch/kl": kl / max(1.0, count)}
