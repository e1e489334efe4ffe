"""Prefill and decode steps of the native engine on CUDA; one decode step is one CUDA graph.

A graph replays embedding, blocks, head, draw and stop test without the host, which would otherwise launch some ten
kernels per layer and token. Serves decoders with pre-norm RMS norms, rotary positions and gated MLPs
(`decoder_config.is_served`); every other model is sampled by the plain loop of `native_engine`.

The matrices are the joined copies that the fused training block uses too (`joined_weights.JoinedWeights`), so
trainer and sampler hold one bf16 copy between them. The residual stream is fp32, as in the trainer.

Letters: n rows of a pass, D width, S slots, V vocabulary; dim is the width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.engines.native.slots import SlotCache, SlotRows, Turn, Where
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.joined_weights import Joined
from whet.models.layers.attention import causal_attention, dense_attention, rotary_frequencies
from whet.models.sizes.sampling_bytes import BUCKET

PROGRAMS = 528  # of an attention kernel: four for each of an H100's multiprocessors
MOST_SPLITS = 16
LEAST_SPLIT = 128  # positions of a context


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors that a step reads: the policy's own, its joined matrices, and its head in the dtype of products."""

    embedding: Tensor  # (V, D) fp32; bf16 if it is frozen under adapters or trained in bf16
    blocks: list[Joined]  # qkv, out, gate_up, down in the dtype of products
    norms: list[tuple[Tensor, Tensor]]  # (D,) fp32: before attention, before the MLP
    head_norms: list[tuple[Tensor, Tensor] | None]  # (dim,) fp32: of query and key heads (Qwen3)
    norm: Tensor  # (D,) fp32: the final one
    head: Tensor  # (V, D) in the dtype of products

    @classmethod
    @torch.no_grad()
    def of(cls, policy: Decoder, dtype: torch.dtype, head: Tensor | None = None) -> Weights:
        """The policy's weights as they are now, products in `dtype`; `head`, a copy made before, is filled again."""
        trunk = policy.model
        layers: list[Any] = list(trunk.layers)  # torch types the members of a module as tensors or modules
        own = (trunk.embed_tokens if policy.lm_head is None else policy.lm_head).weight.detach()
        is_copied = head is not None and own.dtype is not dtype
        head = head.copy_(own) if is_copied and head is not None else own.to(dtype)
        has_norms = policy.config.qk_norm == "head"
        return cls(
            embedding=trunk.embed_tokens.weight.detach(),
            blocks=trunk.joined.refreshed(layers, dtype),
            norms=[(b.input_layernorm.weight.detach(), b.post_attention_layernorm.weight.detach()) for b in layers],
            head_norms=[
                (b.self_attn.q_norm.weight.detach(), b.self_attn.k_norm.weight.detach()) if has_norms else None
                for b in layers
            ],
            norm=trunk.norm.weight.detach(),
            head=head,
        )

    def addresses(self) -> list[int]:
        """Where the tensors lie: a graph reads these addresses at every replay."""
        joined = [t for b in self.blocks for t in (b.qkv, b.qkv_bias, b.out, b.gate_up, b.down) if t is not None]
        norms = [t for pair in (*self.norms, *self.head_norms) if pair is not None for t in pair]
        return [t.data_ptr() for t in (self.embedding, *joined, *norms, self.norm, self.head)]


class DecodeLoop:
    """Slots with their KV cache, prefill into them, and decode steps that add one token to each active slot."""

    def __init__(
        self, policy: Decoder, *, slots: int, capacity: int, room: int, stops: Tensor, dtype: torch.dtype, ops: Any
    ) -> None:
        """`ops` is the module of the steps: `decode_kernels`, or in tests the same in plain torch."""
        config, device = policy.config, next(policy.parameters()).device
        self.config, self.slots, self.capacity, self.room, self.stops = config, slots, capacity, room, stops
        self.greedy, self.coldness = False, torch.ones(1, device=device)
        self.ops, self.dtype = ops, dtype
        self.weights = Weights.of(policy, dtype)
        self._addresses = self.weights.addresses()  # that captured graphs read
        self.cache = SlotCache(config, slots=slots, capacity=capacity, dtype=dtype, device=device)
        angles = torch.arange(capacity, device=device)[:, None].float() * rotary_frequencies(config, device)
        self.angles = (angles.cos().contiguous(), angles.sin().contiguous())
        self.rows = SlotRows.empty(slots + 1, room, device)
        self.active = torch.zeros(slots + BUCKET, dtype=torch.int32, device=device)
        self._drop_graphs()

    def _drop_graphs(self) -> None:
        """Graphs share one pool of scratch memory, because two of them never run at once. On a CPU there are none."""
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.active.is_cuda else None

    def refresh(self, policy: Decoder) -> None:
        """Samples from the policy's weights as they are now; captured graphs are kept unless a tensor has moved."""
        self.weights = Weights.of(policy, self.dtype, self.weights.head)
        before, self._addresses = self._addresses, self.weights.addresses()
        if self._addresses != before:
            self._drop_graphs()

    def release(self, policy: Decoder) -> None:
        """Frees the matrices of a quantised policy until the next `refresh`; graphs stay in case it finds them again.

        The allocator often returns the same addresses, which is all that a graph knows of a tensor.
        """
        if policy.model.joined.release(list(policy.model.layers)):
            self.weights = replace(self.weights, blocks=[])

    def set_temperature(self, temperature: float) -> None:
        """0 is greedy decoding. Kept on the device, so that a graph serves every temperature above 0."""
        self.greedy = temperature == 0
        self.coldness.fill_(1.0 / (temperature or 1.0))

    def read(self, texts: Sequence[Sequence[int]], slots: Sequence[int]) -> Tensor:
        """Prefill: fills the KV cache of each slot with a prompt, all packed into one pass; returns (prompts, D).

        The states are those of each prompt's last token, after the final norm.
        """
        tokens, where, bounds = self._packed(texts, slots, [0] * len(texts))
        shape = (len(tokens), self.config.kv_heads, self.config.head_dim)
        keys, values = (torch.empty(shape, dtype=self.dtype, device=tokens.device) for _ in range(2))

        def attend(layer: int, qkv: Tensor) -> Tensor:  # prompts attend to their own new keys, not to the cache
            queries = self.ops.place(qkv, self._turn(layer), where, (keys, values), self.cache, layer)
            return _attend_causally(queries, keys, values, bounds, bounds)

        return self._blocks(tokens, attend)[(bounds[1:] - 1).to(tokens.device)]

    def read_on(self, texts: Sequence[Sequence[int]], slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Reads on in slots whose cache holds the first `starts` tokens of their sequences; as `read` returns (n, D).

        Each layer attends to a packed copy of what the slots hold, a shared beginning included.
        """
        tokens, where, bounds = self._packed(texts, slots, starts)
        whole = torch.tensor(starts) + bounds.diff()  # tokens of every sequence, those of `texts` included
        ends = F.pad(whole.cumsum(0), (1, 0)).int()
        owners = torch.tensor(slots).repeat_interleave(whole).to(tokens.device)
        places = (torch.arange(int(whole.sum())) - ends[:-1].repeat_interleave(whole)).to(tokens.device)
        owners = torch.where(places < self.rows.shared[owners], self.rows.prefixes[owners].long(), owners)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            queries = self.ops.place(qkv, self._turn(layer), where, None, self.cache, layer)
            keys, values = (held[owners, :, places] for held in self.cache.layer(layer))
            return _attend_causally(queries, keys, values, bounds, ends)

        return self._blocks(tokens, attend)[(bounds[1:] - 1).to(tokens.device)]

    def _packed(
        self, texts: Sequence[Sequence[int]], slots: Sequence[int], starts: Sequence[int]
    ) -> tuple[Tensor, Where, Tensor]:
        """(n,) ids of all texts, where each writes its keys and values, and the (texts + 1,) bounds of each text."""
        device = self.active.device
        lengths = torch.tensor([len(text) for text in texts])
        bounds = F.pad(lengths.cumsum(0), (1, 0)).int()  # text i is tokens[bounds[i] : bounds[i + 1]]
        tokens = torch.tensor([token for text in texts for token in text]).to(device)  # (n,), n = Σ lengths
        at = torch.tensor(slots, dtype=torch.int32).repeat_interleave(lengths).to(device)  # (n,)
        first = (bounds[:-1] - torch.tensor(starts)).repeat_interleave(lengths)
        positions = (torch.arange(len(at)) - first).int().to(device)  # (n,)
        return tokens, Where(slots=at, positions=positions, by_slot=False), bounds

    def admit(
        self, slots: Tensor, states: Tensor, lengths: Tensor, streams: Tensor, limits: Tensor, prefixes: Tensor
    ) -> None:
        """Starts sequences: draws the first token of each slot from the (n, D) last state of its prompt.

        `prefixes` names the slot whose cache holds the prompt; the samples of a group share one.
        """
        rows = self.rows
        rows.prefixes[slots] = prefixes.int()
        rows.shared[slots] = torch.where(prefixes == slots, 0, lengths).int()
        self.resume(slots, states, lengths, streams, limits)

    def resume(self, slots: Tensor, states: Tensor, lengths: Tensor, streams: Tensor, limits: Tensor) -> None:
        """Starts a completion in each slot after the `lengths` tokens that it has read; draws its first token."""
        rows = self.rows
        rows.positions[slots] = (lengths - 1).int()
        rows.steps[slots] = 0
        rows.streams[slots], rows.ended[slots] = streams, limits
        self._choose(states, slots.int())

    def activate(self, slots: Sequence[int]) -> int:
        """Sets the slots that `run` extends; returns the number of rows, padded to a multiple of BUCKET.

        Padding rows write to the spare slot behind the last one.
        """
        count = max(BUCKET, -(-len(slots) // BUCKET) * BUCKET)
        padded = [*slots, *[self.slots] * (count - len(slots))]
        self.active[:count].copy_(torch.tensor(padded, dtype=torch.int32))
        self.rows.positions[self.slots] = 0
        return count

    def run(self, steps: int, *, count: int) -> None:
        """Adds `steps` tokens to each of the first `count` active slots."""
        if self._pool is None:
            for _ in range(steps):
                self._grow(self.active[:count])
            return
        key = (count, self.greedy)
        if key not in self._graphs:
            self._graphs[key] = self._captured(count)
        for _ in range(steps):
            self._graphs[key].replay()

    def _captured(self, count: int) -> torch.cuda.CUDAGraph:
        """A graph of one step on `count` rows; the slots are left as they were before the warm-up that it needs."""
        saved = [tensor.clone() for tensor in self.rows.each()]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._grow(self.active[:count])
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._grow(self.active[:count])
        for live, old in zip(self.rows.each(), saved, strict=True):
            live.copy_(old)
        return graph

    def _grow(self, slots: Tensor) -> None:
        """One decode step: adds a token to each of these (n,) slots."""
        # The number of splits changes rounding. In fp32 it must not depend on the batch, so it comes from the context.
        longest = self.capacity if self.dtype is torch.bfloat16 else self.config.context
        splits = _splits(len(slots) * self.config.kv_heads, longest)
        where = Where(slots=slots, positions=self.rows.positions, by_slot=True)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            queries = self.ops.place(qkv, self._turn(layer), where, None, self.cache, layer)
            attended: Tensor = self.ops.attend(queries, self.cache, layer, slots, self.rows, splits)
            return attended

        self._choose(self._blocks(self.rows.tokens[slots], attend), slots)

    def _blocks(self, tokens: Tensor, attend: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Runs all blocks on (n,) tokens; returns their (n, D) states after the final norm.

        `attend(layer, qkv)` stores keys and values and returns the (n, heads, dim) output of attention.
        """
        residual, added = self.weights.embedding[tokens].float(), None  # (n, D) fp32, (n, D)
        norm = partial(self.ops.add_norm, residual, eps=self.config.norm_eps, dtype=self.dtype)
        for index, (block, norms) in enumerate(zip(self.weights.blocks, self.weights.norms, strict=True)):
            qkv = F.linear(norm(added, norms[0]), block.qkv, block.qkv_bias)  # (n, (heads + 2 · kv_heads) · dim)
            added = attend(index, qkv).flatten(1) @ block.out.T  # the next norm adds it to the residual stream
            both = norm(added, norms[1]) @ block.gate_up.T  # (n, 2 · M)
            added = self.ops.gate(both) @ block.down.T
        states: Tensor = norm(added, self.weights.norm)
        return states

    def _choose(self, states: Tensor, slots: Tensor) -> None:
        """Draws a token for each row of (n, D) states and advances its slot."""
        head = self.weights.head
        if head.dtype is torch.bfloat16:
            logits = torch.mm(states, head.T, out_dtype=torch.float32)
        else:  # in pieces of a fixed size: a product's rounding depends on its shape, and no row's on the batch may
            pieces = torch.split(F.pad(states, (0, 0, 0, -len(states) % BUCKET)), BUCKET)
            logits = torch.cat([piece @ head.T for piece in pieces])[: len(states)]
        self.ops.draw(logits, slots, self.rows, self.stops, self.coldness, greedy=self.greedy, capacity=self.capacity)

    def _turn(self, layer: int) -> Turn:
        return Turn(angles=self.angles, norms=self.weights.head_norms[layer], eps=self.config.norm_eps)


def _splits(programs: int, longest: int) -> int:
    """Split-K of attention: parts of a context that run in parallel, so that few sequences still fill the GPU."""
    wanted = -(-PROGRAMS // programs)
    return 1 << (max(1, min(wanted, MOST_SPLITS, longest // LEAST_SPLIT)).bit_length() - 1)


def _attend_causally(queries: Tensor, keys: Tensor, values: Tensor, bounds: Tensor, ends: Tensor) -> Tensor:
    """Causal attention within each packed text: queries (n, heads, dim), keys and values (m, kv_heads, dim).

    Text i has the queries bounds[i] … bounds[i + 1] and the keys ends[i] … ends[i + 1], whose last ones are its own.
    """
    if queries.dtype is torch.bfloat16:
        places = (bounds.to(queries.device), ends.to(queries.device), int(bounds.diff().max()), int(ends.diff().max()))
        found: Tensor = torch.ops.aten._flash_attention_forward(queries, keys, values, *places, 0.0, True, False)[0]
        return found
    alone = []
    for (start, end), (first, last) in zip(pairwise(bounds.tolist()), pairwise(ends.tolist()), strict=True):
        q, k, v = (x.transpose(0, 1)[None] for x in (queries[start:end], keys[first:last], values[first:last]))
        if last - first == end - start:
            alone.append(causal_attention(q, k, v)[0].transpose(0, 1))
        else:
            sees = torch.ones(end - start, last - first, dtype=torch.bool, device=q.device).tril(
                last - first - end + start
            )
            alone.append(dense_attention(q, k, v, sees=sees)[0].transpose(0, 1))
    return torch.cat(alone)
