"""Sequences to tensors, and tensors to micro-batches. Splitting bounds memory and never changes a result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, call
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.records import Batch, Sequences
from whet.streams import stream_key


def collate(tokens: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]], device: torch.device) -> Sequences:
    """Right-padded tensors."""
    return Sequences(
        tokens=pad(tokens, torch.int64).to(device),
        mask=pad(masks, torch.bool).to(device),
        lengths=torch.tensor([len(row) for row in tokens], dtype=torch.int64).to(device),
    )


def pad(rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> Tensor:
    """(B, T) with zeros after the end of each row."""
    padded = torch.zeros(len(rows), max((len(row) for row in rows), default=0), dtype=dtype)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row, dtype=dtype)
    return padded


def global_weights(weighting: Cell, mask: Tensor, world: World, *, max_tokens: int) -> Tensor:
    """Token weights of one optimizer step, divided by the count over all ranks."""
    weights: Tensor
    weights, count = call(weighting, {"mask": mask, "max_tokens": max_tokens})
    total = float(world.sum(count.to(torch.float64)))
    if total == 0:
        raise RunFailed("the batch is empty: no token of it is to be trained")
    return weights.float() / total


def micro_batches(lengths: Tensor, micro_tokens: int) -> Iterator[Tensor]:
    """Rows of like length, at most `micro_tokens` padded tokens at a time (or one row, if it is longer)."""
    order = torch.argsort(lengths, descending=True, stable=True)
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        size = max(1, micro_tokens // longest)
        yield order[start : start + size]
        start += size


def take(sequences: Sequences, rows: Tensor) -> Sequences:
    """These rows, without the padding that none of them needs."""
    lengths = sequences.lengths[rows]
    width = int(lengths.max()) if len(rows) else 0
    return Sequences(tokens=sequences.tokens[rows, :width], mask=sequences.mask[rows, :width], lengths=lengths)


def take_batch(batch: Batch, rows: Tensor) -> Batch:
    """These rows of everything."""
    sequences = take(batch.sequences, rows)
    width = sequences.tokens.shape[1]
    reference = None if batch.logprobs_ref is None else batch.logprobs_ref[rows, :width]
    return replace(
        batch,
        sequences=sequences,
        logprobs_old=batch.logprobs_old[rows, :width],
        logprobs_ref=reference,
        advantages=batch.advantages[rows, :width],
    )


def split_prompts(prompts: int, minibatches: int, *, seed: Sequence[int]) -> list[list[int]]:
    """Prompt indices (over all ranks) of each minibatch, shuffled by the seed: the same on every rank."""
    generator = torch.Generator().manual_seed(stream_key(seed))
    order = torch.randperm(prompts, generator=generator).tolist()
    bounds = [round(i * prompts / minibatches) for i in range(minibatches + 1)]
    return [order[low:high] for low, high in pairwise(bounds)]
