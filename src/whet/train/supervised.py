"""Rows for supervised learning, one optimizer step on them, and their held-out loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from whet.algorithms.cells import call
from whet.algorithms.table import Objective
from whet.batching import collate, global_weights, take
from whet.config import OfflineConfig, TrainConfig
from whet.distributed.world import World
from whet.errors import UserError
from whet.models.logprobs import read_tokens
from whet.models.precision import autocast
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Example, Row, Sampling, Sequences
from whet.train.optim import descend, finite
from whet.train.parts import Parts
from whet.train.passes import packed, passes

PLAIN = Sampling(max_tokens=1)  # temperature 1, nothing cut off: the model's own distribution


def supervised_row(tokenizer: Tokenizer, example: Example, context: int) -> Row:
    """Prompt and answer; the answer and the end of the sequence are learned, the prompt is not."""
    if not example.answer:
        columns = ", ".join(example.columns) or "none"
        raise UserError(f"example {example.id!r} has no answer to learn (other columns: {columns}): name it 'answer'")
    prompt = tokenizer.prompt(example.prompt)
    answer = [*tokenizer.encode(example.answer), tokenizer.eos]
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
    descent = descend(losses, [optimizer], world, clip_norm=config.update.clip_norm)
    assert descent is not None
    sums = torch.stack([sequences.mask.sum().double(), sum(entropies, torch.zeros(())).double().to(world.device)])
    tokens, entropy = world.sum(sums).tolist()
    statistics = {"loss": descent.loss, "grad_norm": descent.grad_norms[0], "entropy": entropy / max(1.0, tokens)}
    return statistics, int(tokens)


@torch.no_grad()
def held_out_loss(parts: Parts, objective: Objective, config: OfflineConfig, world: World) -> dict[str, float]:
    """The loss on the held-out examples."""
    examples = world.shard(parts.task.held_out(config.eval.examples))
    rows = [supervised_row(parts.tokenizer, example, parts.policy.context) for example in examples]
    losses = _losses(parts.policy, _collate(rows, world), objective, config, world, [])
    total = sum((loss.double().cpu() for loss in losses), torch.zeros((), dtype=torch.float64))
    return {"eval/loss": float(world.sum(total))}


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


def _collate(rows: Sequence[Row], world: World) -> Sequences:
    return collate([row.tokens for row in rows], [row.mask for row in rows], world.device)
