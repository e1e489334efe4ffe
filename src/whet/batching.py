"""Sequences to tensors, and tensors to micro-batches (gradient accumulation), which never change a result."""

from __future__ import annotations

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
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.packing import Packing, pack
from whet.models.protocol import CausalLM
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
    lengths = [len(row) for row in rows]
    padded = torch.zeros(len(rows), max(lengths, default=0), dtype=dtype)
    kind = {torch.int64: "int64", torch.float32: "float32", torch.bool: "bool"}[dtype]
    flat = np.fromiter(chain.from_iterable(rows), dtype=kind, count=sum(lengths))  # far quicker than a tensor of a list
    padded[torch.arange(padded.shape[1]) < torch.tensor(lengths, dtype=torch.int64)[:, None]] = torch.from_numpy(flat)
    return padded


def global_weights(weighting: Cell, mask: Tensor, world: World, *, max_tokens: int) -> Tensor:
    """Token weights of one optimizer step, divided by the count over all ranks."""
    weights: Tensor
    weights, count = call(weighting, {"mask": mask, "max_tokens": max_tokens})
    total = float(world.sum(count.to(torch.float64)))
    if total == 0:
        raise RunFailed("the batch is empty: no token of it is to be trained")
    return weights.float() / total


def micro_batches(lengths: Tensor, micro_batch_tokens: int) -> Iterator[Tensor]:
    """Rows of like length, at most `micro_batch_tokens` at a time, padding included; a longer row comes alone."""
    order = torch.argsort(lengths, descending=True, stable=True)
    sizes = lengths[order].tolist()
    start = 0
    while start < len(sizes):
        stop = min(len(sizes), start + max(1, micro_batch_tokens // max(1, sizes[start])))
        yield order[start:stop]
        start = stop


def packed_batches(sequences: Sequences, groups: Tensor, micro_batch_tokens: int) -> Iterator[Tensor]:
    """Rows, at most `micro_batch_tokens` that trained ones depend on at a time, what a group shares counted once.

    Long groups come first and stay together where they fit.
    """
    trained = sequences.mask.cpu()
    if not trained.numel():
        return
    columns = torch.arange(trained.shape[1])
    wholes = torch.where(trained, columns, 0).amax(dim=1)
    prompts = trained.int().argmax(dim=1).tolist()
    names, owners = torch.unique(groups.cpu(), return_inverse=True)
    longest = torch.zeros(len(names), dtype=torch.int64).scatter_reduce(0, owners, wholes, "amax")
    sizes, owner, reach = wholes.tolist(), owners.tolist(), longest[owners].tolist()
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
        logprobs_old=None if batch.logprobs_old is None else few(batch.logprobs_old),
        logprobs_sampled=None if batch.logprobs_sampled is None else few(batch.logprobs_sampled),
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


FEW, MANY = 4096, 32_768  # tokens a pass: enough for a CPU, and enough for any GPU
MEMORY_SHARE = 0.2  # of a GPU, for what a pass keeps for its gradient


class MicroBatching(Protocol):
    """How many tokens a forward pass reads, and whether as a packing: `update` of a recipe."""

    @property
    def micro_batch_tokens(self) -> int | None: ...

    @property
    def padding_free(self) -> bool: ...


def passes(sequences: Sequences, groups: Tensor, settings: MicroBatching, policy: CausalLM) -> Iterator[Tensor]:
    """Rows of one forward pass after the other; rows of the same (B,) group have the same prompt."""
    tokens = settings.micro_batch_tokens or tokens_that_fit(policy)
    if settings.padding_free:
        return packed_batches(sequences, groups, tokens)
    return micro_batches(sequences.lengths, tokens)


def packed(s: Sequences, groups: Tensor | None, settings: MicroBatching) -> Packing | None:
    """The packing of rows that are read together, unless they are to be padded."""
    return pack(s.tokens, s.mask, groups) if settings.padding_free else None


def tokens_that_fit(policy: CausalLM) -> int:
    """As many as a share of the GPU's memory holds the activations of."""
    device = next(policy.parameters()).device
    if device.type != "cuda" or not isinstance(policy, Decoder):
        return FEW
    total = torch.cuda.get_device_properties(device).total_memory
    return min(MANY, max(FEW, int(MEMORY_SHARE * total / kept_bytes(policy.config))))


def kept_bytes(c: DecoderConfig) -> int:
    """What a fused pass keeps of one token for its gradient."""
    streams = 8 * c.width  # fp32, before each half of a block; and around the final norm
    attention = 4 * (c.heads + c.kv_heads) * c.head_dim  # bf16: queries, keys, values and what they gave
    raw = 2 * (c.heads + 2 * c.kv_heads) * c.head_dim if c.qk_norm == "head" else 0
    return c.layers * (streams + attention + raw + 4 * c.mlp_width) + streams
