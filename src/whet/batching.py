"""Padding, and micro-batches for gradient accumulation, which never change a result."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from whet.algorithms.cells import Cell, call
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.models.decoder.decoder import Decoder
from whet.models.layers.packing import Packing, pack
from whet.models.protocol import CausalLM
from whet.models.sizes.pass_bytes import FEW, usual_tokens
from whet.records import Batch, Sequences
from whet.streams import stream_key

# Tensors of a `Batch` with shape (B, T).
PER_TOKEN = ("logprobs_old", "logprobs_sampled", "logprobs_ref", "advantages", "correction", "values", "targets")


def collate(tokens: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]], device: torch.device) -> Sequences:
    return Sequences(
        tokens=pad(tokens, torch.int64).to(device),
        mask=pad(masks, torch.bool).to(device),
        lengths=torch.tensor([len(row) for row in tokens], dtype=torch.int64).to(device),
    )


def pad(rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> Tensor:
    """(B, T) with zeros after the end of each row."""
    lengths = [len(row) for row in rows]
    padded = torch.zeros(len(rows), max(lengths, default=0), dtype=dtype)
    kind = {torch.int64: "int64", torch.float32: "float32", torch.bool: "bool"}[dtype]
    flat = np.fromiter(chain.from_iterable(rows), dtype=kind, count=sum(lengths))  # much faster than torch.tensor(list)
    padded[torch.arange(padded.shape[1]) < torch.tensor(lengths, dtype=torch.int64)[:, None]] = torch.from_numpy(flat)
    return padded


def global_weights(weighting: Cell, mask: Tensor, world: World, *, max_tokens: int) -> Tensor:
    """Token weights of one optimizer step, normalised over all ranks."""
    weights: Tensor
    weights, count = call(weighting, {"mask": mask, "max_tokens": max_tokens})
    total = float(world.sum(count.to(torch.float64)))
    if total == 0:
        raise RunFailed("the batch has no trained tokens")
    return weights.float() / total


def micro_batches(lengths: Tensor, micro_batch_tokens: int) -> Iterator[Tensor]:
    """Rows of similar length, at most `micro_batch_tokens` per batch with padding; a longer row is alone."""
    order = torch.argsort(lengths, descending=True, stable=True)
    sizes = lengths[order].tolist()
    start = 0
    while start < len(sizes):
        stop = min(len(sizes), start + max(1, micro_batch_tokens // max(1, sizes[start])))
        yield order[start:stop]
        start = stop


def packed_batches(sequences: Sequences, groups: Tensor, micro_batch_tokens: int) -> Iterator[Tensor]:
    """Rows, at most `micro_batch_tokens` per batch, counting a group's shared prompt once and no unneeded tokens.

    Long groups come first, and groups stay together where they fit.
    """
    trained = sequences.mask.cpu()
    if not trained.numel():
        return
    columns = torch.arange(trained.shape[1])
    ends = torch.where(trained, columns, 0).amax(dim=1)
    prompts = trained.int().argmax(dim=1).tolist()
    names, owners = torch.unique(groups.cpu(), return_inverse=True)
    longest = torch.zeros(len(names), dtype=torch.int64).scatter_reduce(0, owners, ends, "amax")
    sizes, owner, reach = ends.tolist(), owners.tolist(), longest[owners].tolist()
    order = sorted(range(len(sizes)), key=lambda row: (reach[row], owner[row], sizes[row]), reverse=True)
    some: list[int] = []
    tokens = 0
    for row in order:
        repeats = bool(some) and owner[some[-1]] == owner[row]
        cost = sizes[row] - (prompts[row] if repeats else 0)
        if some and tokens + cost > micro_batch_tokens:
            yield torch.tensor(some, device=groups.device)
            some, tokens, cost = [], 0, sizes[row]
        some.append(row)
        tokens += cost
    if some:
        yield torch.tensor(some, device=groups.device)


def take(sequences: Sequences, rows: Tensor) -> Sequences:
    """These rows, without superfluous padding."""
    lengths = sequences.lengths[rows]
    width = int(lengths.max()) if len(rows) else 0
    return Sequences(tokens=sequences.tokens[rows, :width], mask=sequences.mask[rows, :width], lengths=lengths)


def take_batch(batch: Batch, rows: Tensor) -> Batch:
    sequences = take(batch.sequences, rows)
    width = sequences.tokens.shape[1]
    taken: dict[str, Any] = {
        name: None if (tensor := getattr(batch, name)) is None else tensor[rows, :width] for name in PER_TOKEN
    }
    return replace(batch, sequences=sequences, prompts=batch.prompts[rows], rows=batch.rows[rows], **taken)


def split_prompts(prompts: int, minibatches: int, *, seed: Sequence[int]) -> list[list[int]]:
    """Prompt numbers (over all ranks) of each minibatch, shuffled by the seed; at least one prompt each."""
    minibatches = min(prompts, minibatches)
    generator = torch.Generator().manual_seed(stream_key(seed))
    order = torch.randperm(prompts, generator=generator).tolist()
    bounds = [round(i * prompts / minibatches) for i in range(minibatches + 1)]
    return [order[low:high] for low, high in pairwise(bounds)]


class MicroBatching(Protocol):
    """The keys of a recipe's `update` that shape a forward pass."""

    @property
    def micro_batch_tokens(self) -> int | None: ...

    @property
    def padding_free(self) -> bool: ...


def passes(sequences: Sequences, groups: Tensor, settings: MicroBatching, policy: CausalLM) -> Iterator[Tensor]:
    """The rows of each forward pass; rows of the same (B,) group share a prompt."""
    tokens = settings.micro_batch_tokens or tokens_that_fit(policy)
    if settings.padding_free:
        return packed_batches(sequences, groups, tokens)
    return micro_batches(sequences.lengths, tokens)


def packed(s: Sequences, groups: Tensor | None, settings: MicroBatching) -> Packing | None:
    """The rows packed without padding; None if they are padded."""
    return pack(s.tokens, s.mask, groups) if settings.padding_free else None


def tokens_that_fit(policy: CausalLM) -> int:
    """Tokens per pass whose activations fit into a share of the GPU's memory."""
    device = next(policy.parameters()).device
    if device.type != "cuda" or not isinstance(policy, Decoder):
        return FEW
    return usual_tokens(policy.config, torch.cuda.get_device_properties(device).total_memory)
