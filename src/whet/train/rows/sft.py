"""Supervised fine-tuning: rows, one optimizer step on them, and the loss on held-out rows."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from whet.algorithms.cells import call
from whet.algorithms.table import OBJECTIVES, Objective
from whet.batching import global_weights, packed, passes, take
from whet.config import OfflineConfig, TrainConfig
from whet.distributed.world import World
from whet.errors import UserError
from whet.evaluate.calibration import clustered, share_of_sums
from whet.evaluate.statistics import flat_metrics
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import read_tokens, token_likelihoods
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Dialogue, Example, Pair, Row, Sequences, Text
from whet.rollout import draw
from whet.train.optimizers.optimizer import descend, finite
from whet.train.rows.examples import Note, completion_rows, dialogue_rows, ended, text_rows
from whet.train.rows.trainer import OfflineTrainer, parted
from whet.train.rows.units import PLAIN, Unit, stacked
from whet.train.setup.build import build_parts

SFT_DATA = ("dialogues", "texts", "pairs")  # of a pair, the chosen completion


def supervised_row(tokenizer: Tokenizer, example: Example, context: int) -> Row:
    """Prompt and answer; only the answer and the end of the sequence are trained."""
    if not example.answer:
        columns = ", ".join(example.columns) or "none"
        raise UserError(f"example {example.id!r} has no answer to learn (other columns: {columns}): name it 'answer'")
    prompt = tokenizer.prompt(example.prompt)
    answer = ended(tokenizer, example.prompt, example.answer)
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
    """One optimizer step; returns metrics and the number of trained tokens, over all ranks."""
    return fit_sequences(policy, optimizer, stacked(rows, world), objective, config, world)


def fit_sequences(
    policy: CausalLM,
    optimizer: torch.optim.Optimizer,
    sequences: Sequences,
    objective: Objective,
    config: TrainConfig,
    world: World,
) -> tuple[dict[str, float], int]:
    """`fit` on tensors."""
    entropies: list[Tensor] = []
    losses = _losses(policy, sequences, objective, config, world, entropies)
    descent = descend(losses, [optimizer], world, max_grad_norm=config.update.max_grad_norm)
    assert descent is not None
    counts = torch.tensor([float(sequences.mask.sum()), len(sequences.mask)], dtype=torch.float64)
    entropy = sum(entropies, torch.zeros(())).double()
    tokens, rows, spread = world.sum(torch.cat([counts, entropy[None]])).tolist()
    statistics = {"loss": descent.loss, "grad_norm": descent.grad_norms[0], "entropy": spread / max(1.0, tokens)}
    return {**statistics, "length/mean": tokens / max(1.0, rows)}, int(tokens)


class SFTTrainer(OfflineTrainer[Unit]):
    """Supervised fine-tuning on dialogues, or on the answers of the task itself."""

    def __init__(self, config: OfflineConfig, world: World, note: Note) -> None:
        super().__init__(config, build_parts(config, world), world, SFT_DATA, note)
        self.objective = OBJECTIVES[config.objective.name]
        if config.data is None:
            for name, task in self.parts.evaluation.items():
                self.evaluation[name] = self._answers(task.held_out(config.eval.examples))

    def encode(self, rows: Sequence[Dialogue | Text | Pair]) -> list[Unit | None]:
        assert self.config.data is not None
        turns = self.config.data.turns
        found = [(row, _rows(self.parts.tokenizer, row, turns, self.limit)) for row in rows]
        return [None if some is None else Unit(rows=tuple(some), cluster=self.cluster(row)) for row, some in found]

    def rows(self, step: int) -> list[Row]:
        if self.config.data is None:
            answers = draw(self.parts.task, self.config.batch_size, seed=(self.config.seed, step))
            units: Sequence[Unit] = self.world.shard(self._answers(answers))
        else:
            units = super().rows(step)
        return [row for unit in units for row in unit.rows]

    def lengths(self) -> Sequence[tuple[int, int]]:
        return [parted(row) for row in self.rows(1)]

    def fit(self, rows: Sequence[Row]) -> tuple[dict[str, float], int]:
        return fit(self.parts.policy, self.parts.optimizer, rows, self.objective, self.config, self.world)

    def measure_rows(self, held_out: Sequence[Unit]) -> dict[str, float]:
        """The loss, and the share of tokens that are the policy's most likely ones."""
        mine = self.world.shard(held_out)
        sequences = stacked([row for unit in mine for row in unit.rows], self.world)
        found = {
            "eval/loss": self.total(_losses(self.parts.policy, sequences, self.objective, self.config, self.world, []))
        }
        # Tokens of one conversation, and conversations of one cluster, are correlated: intervals count clusters.
        right = iter(self._hits(sequences))
        own = [[sum(next(right) for _ in unit.rows), sum(sum(row.mask) for row in unit.rows)] for unit in mine]
        clusters, sums = [unit.cluster for unit in held_out], self.world.interleave(own)
        hits, counts = (clustered(clusters, [pair[side] for pair in sums]).values() for side in (0, 1))
        share = share_of_sums([(sum(some), int(sum(of))) for some, of in zip(hits, counts, strict=True)])
        return found | flat_metrics({"token_accuracy": share})

    def _hits(self, sequences: Sequences) -> list[int]:
        """For each row, how many of its trained tokens are the policy's most likely ones."""
        hits = torch.zeros(len(sequences.lengths), dtype=torch.float64, device=self.world.device)
        alone = torch.arange(len(hits), device=self.world.device)
        batches = passes(sequences, alone, self.config.update, self.parts.policy)
        for rows in self.world.sharding.evened(batches, self.parts.policy):
            s = take(sequences, rows)
            with autocast(self.world.device):
                _, hits[rows] = token_likelihoods(self.parts.policy, s.tokens, s.lengths, s.mask)
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
    for rows in world.sharding.evened(passes(sequences, alone, config.update, policy), policy):
        s = take(sequences, rows)
        packing = packed(s, None, config.update)
        with autocast(world.device):
            reading = read_tokens(policy, s.tokens, s.lengths, s.mask, PLAIN, packing=packing)
        logprobs = reading.logprobs
        entropies.append(reading.entropies.sum().cpu())
        loss = (call(objective.loss, {"logprobs": logprobs}) * weights[rows, : s.mask.shape[1]]).sum()
        yield finite(loss, tokens=s.tokens, logprobs=logprobs)


def _rows(tokenizer: Tokenizer, one: Dialogue | Text | Pair, turns: str, limit: int) -> list[Row] | None:
    """The trained turns of a dialogue, a whole text, or the chosen completion of a pair."""
    if isinstance(one, Text):
        return text_rows(tokenizer, one.prompt_text, limit)
    if isinstance(one, Pair):
        return completion_rows(tokenizer, one.prompt, one.answers[:1], limit)
    return dialogue_rows(tokenizer, one, turns=turns, limit=limit)
