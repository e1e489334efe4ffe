"""From graded rollouts to a batch: old and reference log-probs, values, importance weights, shaped rewards, advantages.

Statistics over the batch (baselines, whitening) are computed on the rollouts of all ranks, by every rank; each rank
then takes its own rows. They are exact, and equal for any number of ranks.

There are two masks. `sampled` is True on every token that the policy sampled: rewards, KL penalties and returns are
those of the full rollout. `trained` excludes the rollouts that `rollout.mask_truncated` drops from the loss. Masking
does not change the advantages of other rollouts, except through scaling: `whiten` uses trained tokens only. Rollouts
without a reward are in neither mask (`missing`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress

import torch
from torch import Tensor

from whet.algorithms import advantages as shaping
from whet.algorithms import policy_loss
from whet.algorithms.cells import call, is_per_sequence, options, terms
from whet.algorithms.policy_loss import entropy_bonus
from whet.batching import collate, pad
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.records import Batch, Rollout, Sequences
from whet.tasks.reward_library import repeated_share
from whet.train.online.learner import Learner, StepOutcome, StepSettings
from whet.train.online.missing import ask_present
from whet.train.online.old_logprobs import Agreement, Frozen, read, values_ahead
from whet.train.online.sampling import SampledGroups
from whet.train.online.token_record import TokenRecord
from whet.train.optimizers.optimizer import ask


def annotate(
    learner: Learner, groups: SampledGroups, settings: StepSettings, record: TokenRecord | None = None
) -> tuple[Batch, StepOutcome, dict[str, float]]:
    """The batch of a step, measurements for the controllers, and metrics."""
    config, world = learner.config, learner.world
    places = list(groups.numbers)
    rollouts = [rollout for place in places for rollout in groups.drawn[place]]
    masks = [(False,) * len(r.mask) if r.score.is_missing else r.mask for r in rollouts]
    everything = collate([r.tokens for r in rollouts], masks, world.device)
    dropped = torch.tensor([config.rollout.mask_truncated and r.finish == "length" for r in rollouts], dtype=torch.bool)
    sequences = replace(everything, mask=everything.mask & ~dropped.to(world.device)[:, None])
    everyone = Everyone(world, list(groups.numbers.values()), config.rollout.group)
    prompts = everyone.own_numbers.to(world.device).repeat_interleave(config.rollout.group)
    sampled = pad([r.logprobs for r in rollouts], torch.float32).to(world.device)
    frozen = read(learner, everything, prompts, sampled, settings, top=0 if record is None else record.top)
    metrics: dict[str, float] = {}
    if learner.old == "read":
        agreement = Agreement(world.device)
        agreement.add(frozen.old, sampled, sequences.mask)
        metrics |= agreement.metrics(world, limit=learner.mismatch_limit)
    corrections, measured = _corrected(learner, frozen, sampled, sequences.mask)
    metrics |= measured
    ahead = values_ahead(learner, rollouts, everything, prompts)
    paid = _pay(learner, groups, settings, everyone, frozen, everything.mask, ahead)
    advantages, targets = _advantages(learner, settings, everyone, paid, frozen, everything, sequences.mask)
    if frozen.values is not None:
        assert targets is not None
        wanted = (everyone.rows(frozen.values), everyone.rows(targets), everyone.rows(sequences.mask))
        metrics["critic/explained_variance"] = shaping.explained_variance(*wanted)
    tokens, entropy, kl = world.sum(frozen.sums(everything.mask)).tolist()
    tokens = max(1.0, tokens)
    if frozen.ref is not None:
        of_rollout = kl / paid.seen.numel()
        metrics |= {"kl": kl / tokens, "kl_rollout": of_rollout, "kl_coefficient": settings.kl_coefficient}
    bonus = config.algorithm.entropy
    batch = Batch(
        sequences=sequences,
        prompts=prompts,
        rows=torch.arange(len(rollouts), device=world.device),
        sampling=settings.sampling,
        logprobs_old=None if learner.old == "own" else frozen.old.masked_fill(~sequences.mask, 0.0),
        logprobs_sampled=None if learner.old == "read" else sampled,
        logprobs_ref=None if frozen.ref is None else frozen.ref.masked_fill(~sequences.mask, 0.0),
        advantages=advantages,
        correction=corrections,
        values=frozen.values,
        targets=targets,
        kl_coefficient=settings.kl_coefficient,
        entropy_coefficient=entropy_bonus(
            bonus.coefficient, entropy / tokens, floor=bonus.floor, floor_coefficient=bonus.floor_coefficient
        ),
    )
    if record is not None:
        record.begin(batch, frozen if learner.old == "read" else None)
    if config.rollout.adaptive_temperature is not None:
        metrics["temperature"] = settings.sampling.temperature
    mean, rollouts_seen = float(paid.seen.mean()), paid.seen.numel()
    outcome = StepOutcome(paid=mean, moments=paid.moments, kl=kl / tokens, rollouts=rollouts_seen)
    return batch, outcome, metrics


class Everyone:
    """Groups of all ranks in the order of their numbers, and back to the rows of this rank."""

    def __init__(self, world: World, numbers: Sequence[int], group: int) -> None:
        """`numbers` are those of this rank's groups."""
        self.world, self.group = world, group
        self.own_numbers = torch.tensor(numbers, dtype=torch.int64)  # (p,)
        self.order = torch.argsort(world.concat(self.own_numbers))  # (P,)

    def groups(self, local: Tensor) -> Tensor:
        """(p, …) of this rank → (P, …) of all."""
        return self.world.concat(local)[self.order.to(local.device)]

    def rows(self, local: Tensor) -> Tensor:
        """(p·G, T) of this rank → (B, T) of all, padded to the longest T."""
        whole = self.world.concat(local.to(torch.uint8) if local.dtype is torch.bool else local)
        return whole[self._rows(self.order).to(local.device)].to(local.dtype)

    def own_rows(self, whole: Tensor, width: int) -> Tensor:
        """(B, T) of all → (p·G, width) of this rank."""
        return whole[self._rows(self.own_numbers).to(whole.device), :width]

    def _rows(self, groups: Tensor) -> Tensor:
        return (groups[:, None] * self.group + torch.arange(self.group)).flatten()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pay:
    """Rewards after shaping and KL penalty."""

    rewards: Tensor  # (P, G) of all ranks
    token_rewards: Tensor  # (B, T) of this rank: on the last token or on every one, less KL penalties
    greedy: Tensor  # (P,) of the greedy baselines; empty without
    counts: Tensor  # (P, G) sampled tokens
    present: Tensor  # (P, G) whether a rollout has a reward; the rewards of others are 0
    moments: tuple[float, float, float]

    @property
    def seen(self) -> Tensor:
        """The rewards of the rollouts that have one."""
        return self.rewards if bool(self.present.all()) else self.rewards[self.present]


def _pay(
    learner: Learner,
    groups: SampledGroups,
    settings: StepSettings,
    everyone: Everyone,
    frozen: Frozen,
    mask: Tensor,
    ahead: Tensor,
) -> _Pay:
    """Shapes rewards and subtracts the KL penalty. Greedy baselines are shaped too, but pay no KL penalty."""
    places = list(groups.numbers)
    mine = [groups.drawn[place] for place in places]
    likeliest = [[groups.greedy[place]] for place in places] if learner.algorithm.needs_greedy else [[] for _ in mine]
    ngram = learner.config.reward.repetition_ngram if learner.config.reward.repetition_penalty else 0
    given = _judged(mine, everyone, ngram)
    shape, moments = _shaping(given, learner.config, settings.moments)
    penalties = torch.zeros_like(frozen.old)
    if frozen.ref is not None and learner.algorithm.kl_place == "reward" and settings.kl_coefficient > 0:
        estimate = call(learner.algorithm.kl, {"logprobs": frozen.old, "logprobs_ref": frozen.ref})
        penalties = settings.kl_coefficient * estimate * mask
    present = ~given.rewards.isnan()
    shaped = shape(given).masked_fill(~present, 0.0)
    own = shaped[everyone.own_numbers].flatten().to(mask.device)
    dense, paid = _dense([rollout for group in mine for rollout in group], mask)
    gamma = options(learner.algorithm.advantage).get("gamma", 1.0)
    return _Pay(
        rewards=shaped - everyone.groups(penalties.sum(dim=1).cpu().view(len(mine), shaped.shape[1])),
        token_rewards=dense + shaping.token_rewards(own - paid + gamma * ahead, penalties, mask),
        greedy=shape(_judged(likeliest, everyone, ngram)).flatten(),
        counts=given.counts,
        present=present,
        moments=moments,
    )


def _dense(rollouts: Sequence[Rollout], mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) rewards of the single tokens where a score has them, 0 elsewhere; and (B,) how much they are of each.

    What shaping adds to that, or takes away, stands on the last token.
    """
    rewards = [() if r.score.is_missing else r.score.token_rewards for r in rollouts]
    is_dense = torch.tensor([bool(some) for some in rewards], dtype=torch.bool).to(mask.device)
    placed = torch.zeros(mask.shape, device=mask.device)
    if bool(is_dense.any()):
        chosen = mask & is_dense[:, None]
        placed[chosen] = torch.tensor(list(chain.from_iterable(rewards)), device=mask.device)
    paid = [r.score.reward if some else 0.0 for r, some in zip(rollouts, rewards, strict=True)]
    return placed, torch.tensor(paid, device=mask.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """(P, n) of all ranks, for n rollouts per prompt."""

    rewards: Tensor  # unshaped; NaN: missing
    counts: Tensor  # tokens
    repeated: Tensor  # shares of repeated n-grams


def _judged(groups: Sequence[Sequence[Rollout]], everyone: Everyone, ngram: int) -> _Judged:
    """`ngram`: tokens of the n-grams; 0: nobody asks for repetition."""
    size = everyone.world.max(float(len(groups[0]) if groups else 0))
    facts = [
        [(r.score.reward, float(sum(r.mask)), repeated_share(_completion(r), ngram) if ngram else 0.0) for r in group]
        for group in groups
    ]
    rewards, counts, repeated = everyone.groups(torch.tensor(facts).view(len(groups), int(size), 3)).unbind(dim=-1)
    return _Judged(rewards=rewards, counts=counts, repeated=repeated)


def _completion(rollout: Rollout) -> list[int]:
    return list(compress(rollout.tokens, rollout.mask))


def _shaping(
    given: _Judged, config: OnlineConfig, so_far: tuple[float, float, float]
) -> tuple[Callable[[_Judged], Tensor], tuple[float, float, float]]:
    """The reward shaping of this step as a function of what was judged; and updated running moments."""
    settings = config.reward

    def penalised(judged: _Judged) -> Tensor:
        rewards, counts = judged.rewards, judged.counts
        if settings.overlong_tokens:
            ramp = shaping.overlong(counts, max_tokens=config.rollout.max_tokens, ramp=settings.overlong_tokens)
            rewards = rewards + settings.overlong_penalty * ramp
        rewards = rewards - settings.length_penalty * counts
        if settings.repetition_penalty:
            rewards = rewards - settings.repetition_penalty * judged.repeated
        return rewards if settings.clip is None else rewards.clamp(*settings.clip)

    first = penalised(given)
    new = shaping.moments(first[~first.isnan()] if bool(first.isnan().any()) else first)
    moments = (so_far[0] + new[0], so_far[1] + new[1], so_far[2] + new[2])
    if settings.normalize == "none":
        return penalised, moments
    mean, deviation = shaping.mean_and_deviation(*(moments if settings.normalize == "running" else new))
    return lambda judged: shaping.standard(penalised(judged), mean, deviation), moments


def _advantages(
    learner: Learner,
    settings: StepSettings,
    everyone: Everyone,
    paid: _Pay,
    frozen: Frozen,
    sampled: Sequences,
    kept: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """(B, T) advantages of this rank and, with a critic, its targets; `kept` is the mask of trained tokens."""
    algorithm, needed, mask = learner.algorithm, terms(learner.algorithm.advantage), sampled.mask
    supply = {
        "rewards": paid.rewards,
        "counts": paid.counts,
        "greedy": paid.greedy,
        "history": settings.history.to(paid.rewards.dtype),
        "mask": everyone.rows(mask),
    }
    if "tokens" in needed:
        supply["tokens"] = everyone.rows(sampled.tokens)
    if "token_rewards" in needed:
        supply["token_rewards"] = everyone.rows(paid.token_rewards)
    if "logprobs_old" in needed:
        supply["logprobs_old"] = everyone.rows(frozen.old)
    if "logprobs_ref" in needed and frozen.ref is not None:
        supply["logprobs_ref"] = everyone.rows(frozen.ref)
    if frozen.values is not None:
        supply["values"] = everyone.rows(frozen.values)
    supply = {term: tensor.to(mask.device) for term, tensor in supply.items()}
    shape = supply["mask"].shape
    shapes = (paid.rewards.shape,) if is_per_sequence(algorithm.surrogate) else (paid.rewards.shape, shape)
    present = paid.present.to(mask.device)
    is_whole = bool(present.all())
    if is_whole:
        raw = ask(algorithm.advantage, supply, shapes=shapes)
    else:
        raw = ask_present(algorithm.advantage, supply, present, shapes=shapes)
    everywhere = raw if raw.shape == shape else raw.reshape(-1, 1) * supply["mask"]
    trained = everyone.rows(kept)
    scaling = {**supply, "advantages": everywhere.masked_fill(~trained, 0.0), "mask": trained}
    if not is_whole:
        scaling["rewards"] = supply["rewards"][present][:, None]
    scaled = ask(algorithm.scaling, scaling, shapes=(shape,))
    targets = None if frozen.values is None else everyone.own_rows(everywhere, mask.shape[1]) + frozen.values
    return everyone.own_rows(scaled, mask.shape[1]), targets


def _corrected(learner: Learner, frozen: Frozen, sampled: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, float]]:
    """(B, T) importance weights, and metrics of them if there is a correction."""
    cell = learner.algorithm.importance_correction
    supply = {"logprobs_old": frozen.old, "logprobs_sampled": sampled, "mask": mask}
    weights = ask(cell, supply, shapes=(mask.shape,))
    return weights, {} if cell is policy_loss.uncorrected else _corrections(weights, supply, learner.world)


def _corrections(weights: Tensor, supply: dict[str, Tensor], world: World) -> dict[str, float]:
    """Effective sample size and largest importance weight before truncation, and the share of dropped tokens."""
    mask = supply["mask"]
    tokens = world.concat(call(policy_loss.token_weights, supply)[mask])
    trained = mask.any(dim=1)
    whole = call(policy_loss.sequence_weights, supply)[trained].amax(dim=1) if bool(trained.any()) else tokens[:0]
    counts = torch.stack([(weights[mask] == 0).sum(), mask.sum()]).cpu()
    dropped, count = world.sum(counts).tolist()
    return {
        "importance_correction/effective_tokens": policy_loss.effective_share(tokens),
        "importance_correction/effective_sequences": policy_loss.effective_share(world.concat(whole)),
        "importance_correction/largest": float(tokens.max()) if tokens.numel() else 1.0,
        "importance_correction/dropped": dropped / max(1.0, count),
    }
