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


def micro_batches(lengths: Tensor, micro_tokens: int, *, packed: bool = False) -> Iterator[Tensor]:
    """Rows of like length, at most `micro_tokens` tokens at a time, padding included unless they are packed.

    A row that is longer comes alone.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    sizes = lengths[order].tolist()
    start = 0
    while start < len(sizes):
        stop, tokens = start, 0
        while stop < len(sizes):
            tokens = tokens + sizes[stop] if packed else sizes[start] * (stop + 1 - start)
            if tokens > micro_tokens and stop > start:
                break
            stop += 1
        yield order[start:stop]
        start = stop


def take(sequences: Sequences, rows: Tensor) -> Sequences:
    """These rows, without the padding that none of them needs."""
    lengths = sequences.lengths[rows]
    width = int(lengths.max()) if len(rows) else 0
    return Sequences(tokens=sequences.tokens[rows, :width], mask=sequences.mask[rows, :width], lengths=lengths)


def take_batch(batch: Batch, rows: Tensor) -> Batch:
    """These rows of everything."""
    sequences = take(batch.sequences, rows)
    width = sequences.tokens.shape[1]

    def few(tensor: Tensor) -> Tensor:
        return tensor[rows, :width]

    return replace(
        batch,
        sequences=sequences,
        prompts=batch.prompts[rows],
        logprobs_old=few(batch.logprobs_old),
        logprobs_ref=None if batch.logprobs_ref is None else few(batch.logprobs_ref),
        advantages=few(batch.advantages),
        correction=few(batch.correction),
        values=None if batch.values is None else few(batch.values),
        targets=None if batch.targets is None else few(batch.targets),
    )


def split_prompts(prompts: int, minibatches: int, *, seed: Sequence[int]) -> list[list[int]]:
    """Prompt numbers (over all ranks) of each minibatch, shuffled by the seed: the same on every rank.

    With fewer prompts than minibatches each prompt is a minibatch.
    """
    minibatches = min(prompts, minibatches)
    generator = torch.Generator().manual_seed(stream_key(seed))
    order = torch.randperm(prompts, generator=generator).tolist()
    bounds = [round(i * prompts / minibatches) for i in range(minibatches + 1)]
    return [order[low:high] for low, high in pairwise(bounds)]
