"""Rows for supervised learning, one optimizer step on them, and their held-out loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.cells import call
from whet.algorithms.table import OBJECTIVES, Objective
from whet.batching import collate, global_weights, packed, passes, take
from whet.config import OfflineConfig, TrainConfig
from whet.data.split import clustering
from whet.distributed.world import World
from whet.errors import UserError
from whet.evaluate.calibration import clustered, share_of_sums
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import likeliest_hits, read_tokens
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Dialogue, Example, Pair, Row, Sequences
from whet.rollout import draw
from whet.train.rows.examples import Material, Note, completion_rows, dialogue_rows, encoded, ended
from whet.train.rows.units import PLAIN, Unit
from whet.train.setup.build import Parts
from whet.train.setup.epochs import EpochSampler
from whet.train.setup.optimizer import descend, finite


def supervised_row(tokenizer: Tokenizer, example: Example, context: int) -> Row:
    """Prompt and answer; the answer and the end of the sequence are learned, the prompt is not."""
    if not example.answer:
        columns = ", ".join(example.columns) or "none"
        raise UserError(f"example {example.id!r} has no answer to learn (other columns: {columns}): name it 'answer'")
    prompt = tokenizer.prompt(example.prompt)
    answer = ended(tokenizer, example.answer)
    if not prompt or len(prompt) + len(answer) > context:
        raise UserError(
            f"example {example.id!r} has {len(prompt)} prompt and {len(answer)} answer tokens; it needs at least one "
            f"prompt token and at most {context} in all (the model's context)"
        )
    return Row(tokens=(*prompt, *answer), mask=(False,) * len(prompt) + (True,) * len(answer))


def fit(
    policy: CausalLM,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    objective: Objective,
    config: TrainConfig,
    world: World,
) -> tuple[dict[str, float], int]:
    """One optimizer step; returns what to log and how many tokens were learned, over all ranks."""
    sequences = _collate(rows, world)
    entropies: list[Tensor] = []
    losses = _losses(policy, sequences, objective, config, world, entropies)
    descent = descend(losses, [optimizer], world, max_grad_norm=config.update.max_grad_norm)
    assert descent is not None
    sums = torch.stack([sequences.mask.sum(), sum(entropies, torch.zeros(())).double().to(world.device)])
    tokens, entropy = world.sum(sums).tolist()
    statistics = {"loss": descent.loss, "grad_norm": descent.grad_norms[0], "entropy": entropy / max(1.0, tokens)}
    return statistics, int(tokens)


class Imitation:
    """Supervised learning of the task's own answers, or of dialogues."""

    kept: Mapping[str, Any] = {}

    def __init__(
        self, config: OfflineConfig, parts: Parts, material: Material | None, world: World, note: Note
    ) -> None:
        self.config, self.parts, self.world = config, parts, world
        self.objective = OBJECTIVES[config.objective.name]
        self.epoch_sampler: EpochSampler[Unit] | None = None
        if material is None:
            self.held_out = self._answers(parts.task.held_out(config.eval.examples))
            return
        assert config.data is not None  # where the rows come from
        turns = config.data.turns
        cluster = clustering([*material.training, *material.held_out])

        def encode(some: Sequence[Dialogue | Pair]) -> list[Unit | None]:
            found = [_rows(parts.tokenizer, one, turns, material.limit) for one in some]
            return [
                None if rows is None else Unit(rows=tuple(rows), cluster=cluster(one))
                for one, rows in zip(some, found, strict=True)
            ]

        self.epoch_sampler = EpochSampler(encoded(material.training, encode, note), seed=config.seed)
        self.held_out = encoded(material.held_out, encode, note)[: config.eval.examples]

    def rows(self, step: int) -> list[Row]:
        """The rows of this rank."""
        if self.epoch_sampler is None:
            drawn = self._answers(draw(self.parts.task, self.config.batch_size, seed=(self.config.seed, step)))
        else:
            drawn = self.epoch_sampler.draw(self.config.batch_size, step=step)
        return [row for unit in self.world.shard(drawn) for row in unit.rows]

    def fit(self, rows: Sequence[Row]) -> tuple[dict[str, float], int]:
        """One optimizer step; returns what to log and how many tokens were learned."""
        return fit(self.parts.policy, self.parts.optimizer, rows, self.objective, self.config, self.world)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """The held-out loss; where nothing else says what is right, the share of tokens that are the likeliest."""
        mine = self.world.shard(self.held_out)
        sequences = _collate([row for unit in mine for row in unit.rows], self.world)
        losses = _losses(self.parts.policy, sequences, self.objective, self.config, self.world, [])
        total = sum((loss.cpu() for loss in losses), torch.zeros((), dtype=torch.float64))
        found = {"eval/loss": float(self.world.sum(total))}
        if self.config.task.name != "data":
            return found
        # Tokens of one conversation are alike, and so are conversations of one cluster: intervals count clusters.
        right = iter(self._hits(sequences))
        own = [[sum(next(right) for _ in unit.rows), sum(sum(row.mask) for row in unit.rows)] for unit in mine]
        clusters, sums = [unit.cluster for unit in self.held_out], self.world.interleave(own)
        hits, counts = (clustered(clusters, [pair[side] for pair in sums]).values() for side in (0, 1))
        share = share_of_sums([(sum(some), int(sum(of))) for some, of in zip(hits, counts, strict=True)])
        return found | {"eval/accuracy": share.mean, "eval/accuracy_low": share.low, "eval/accuracy_high": share.high}

    def _hits(self, sequences: Sequences) -> list[int]:
        """How many tokens of each row the policy thinks likeliest."""
        hits = torch.zeros(len(sequences.lengths), dtype=torch.int64, device=self.world.device)
        alone = torch.arange(len(hits), device=self.world.device)
        for rows in passes(sequences, alone, self.config.update, self.parts.policy):
            s = take(sequences, rows)
            with autocast(self.world.device):
                hits[rows] = likeliest_hits(self.parts.policy, s.tokens, s.lengths, s.mask)
        return [int(count) for count in hits.tolist()]

    def _answers(self, examples: Sequence[Example]) -> list[Unit]:
        rows = [supervised_row(self.parts.tokenizer, example, self.parts.policy.context) for example in examples]
        return [
            Unit(rows=(row,), cluster=example.twin or example.id) for row, example in zip(rows, examples, strict=True)
        ]


def _losses(
    policy: CausalLM,
    sequences: Sequences,
    objective: Objective,
    config: TrainConfig,
    world: World,
    entropies: list[Tensor],
) -> Iterator[Tensor]:
    """The loss of each micro-batch; they add up to the loss of the step over all ranks."""
    weights = global_weights(objective.weighting, sequences.mask, world, max_tokens=policy.context)
    alone = torch.arange(len(sequences.lengths), device=world.device)
    for rows in passes(sequences, alone, config.update, policy):
        s = take(sequences, rows)
        packing = packed(s, None, config.update)
        with autocast(world.device):
            reading = read_tokens(policy, s.tokens, s.lengths, s.mask, PLAIN, packing=packing)
        logprobs = reading.logprobs
        entropies.append(reading.entropies.sum().cpu())
        loss = (call(objective.loss, {"logprobs": logprobs}) * weights[rows, : s.mask.shape[1]]).sum()
        yield finite(loss, tokens=s.tokens, logprobs=logprobs)


def _rows(tokenizer: Tokenizer, one: Dialogue | Pair, turns: str, limit: int) -> list[Row] | None:
    """What is imitated of a dialogue, or the better completion of a pair."""
    if isinstance(one, Pair):
        return completion_rows(tokenizer, one.prompt, [one.chosen], limit)
    return dialogue_rows(tokenizer, one, turns=turns, limit=limit)


def _collate(rows: Sequence[Row], world: World) -> Sequences:
    return collate([row.tokens for row in rows], [row.mask for row in rows], world.device)
