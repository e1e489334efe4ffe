"""A decode step as one CUDA graph: embedding, layers, head, draw, all without the host.

The weights are a copy of the policy's that `refresh` brings up to date in place; the residual stream stays fp32 as in
the trainer. A step works on the slots that `active` names. Serves decoders with RMS norms before their blocks, rotary
positions and gated MLPs; others sample on the plain path. On a device without Triton the same steps run in plain torch,
without graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.engines.native import decode_plain as plain
from whet.engines.native.slots import Cache, Rows, Turn, Where
from whet.models.decoder.decoder import Decoder
from whet.models.layers.attention import causal_attention, rotary_frequencies
from whet.models.layers.decoder_config import DecoderConfig

BUCKET = 32  # graphs are for multiples of so many rows
PROGRAMS = 264  # of an attention kernel: two for each of an H100's multiprocessors
MOST_SPLITS = 16
LEAST_SPLIT = 128  # positions of a context


@dataclass
class Layer:
    """One block's weights, products that share their input joined; norms stay fp32."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    heads_norm: tuple[Tensor, Tensor] | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Weights:
    """The policy's weights as the decode step wants them; norms are the policy's own tensors."""

    def __init__(self, policy: Decoder, dtype: torch.dtype) -> None:
        self.layers = [_layer(block, policy.config, dtype) for block in _blocks(policy)]
        self.embedding = policy.model.embed_tokens.weight.detach()
        self.norm = policy.model.norm.weight.detach()
        self.head = _joined(*_head(policy), dtype=dtype)

    @torch.no_grad()
    def refresh(self, policy: Decoder) -> None:
        """The policy's weights as they are now, in place: graphs hold the addresses."""
        for layer, block in zip(self.layers, _blocks(policy), strict=True):
            attention, mlp = block.self_attn, block.mlp
            parts = (attention.q_proj, attention.k_proj, attention.v_proj)
            _refill(layer.qkv, *(part.weight for part in parts))
            if layer.qkv_bias is not None:
                _refill(layer.qkv_bias, *(part.bias for part in parts))
            _refill(layer.out, attention.o_proj.weight)
            _refill(layer.gate_up, mlp.gate_proj.weight, mlp.up_proj.weight)
            _refill(layer.down, mlp.down_proj.weight)
        _refill(self.head, *_head(policy))


def _layer(block: Any, config: DecoderConfig, dtype: torch.dtype) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = None
    if config.qk_norm == "head":
        norms = (attention.q_norm.weight.detach(), attention.k_norm.weight.detach())
    return Layer(
        norm=block.input_layernorm.weight.detach(),
        qkv=_joined(*(part.weight for part in parts), dtype=dtype),
        qkv_bias=None if parts[0].bias is None else _joined(*(part.bias for part in parts), dtype=dtype),
        heads_norm=norms,
        out=_joined(attention.o_proj.weight, dtype=dtype),
        mlp_norm=block.post_attention_layernorm.weight.detach(),
        gate_up=_joined(mlp.gate_proj.weight, mlp.up_proj.weight, dtype=dtype),
        down=_joined(mlp.down_proj.weight, dtype=dtype),
    )


def _blocks(policy: Decoder) -> list[Any]:
    """The blocks; torch types what a module holds as a tensor or a module."""
    return list(policy.model.layers)


def _head(policy: Decoder) -> list[Tensor]:
    return [policy.model.embed_tokens.weight if policy.lm_head is None else policy.lm_head.weight]


def _refill(joined: Tensor, *weights: Tensor) -> None:
    start = 0
    for weight in weights:
        joined[start : start + len(weight)].copy_(weight)
        start += len(weight)


def _joined(*weights: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.cat([weight.detach() for weight in weights]).to(dtype)


class DecodeLoop:
    """Slots, their cache, and graphs that make some of the slots a token longer."""

    def __init__(
        self, policy: Decoder, *, slots: int, capacity: int, room: int, stops: Tensor, dtype: torch.dtype
    ) -> None:
        config, device = policy.config, next(policy.parameters()).device
        self.config, self.slots, self.capacity, self.room, self.stops = config, slots, capacity, room, stops
        self.greedy, self.coldness = False, torch.ones(1, device=device)
        self.ops = _operations(device)
        self.weights = Weights(policy, dtype)
        self.cache = Cache(config, slots=slots, capacity=capacity, dtype=dtype, device=device)
        angles = torch.arange(capacity, device=device)[:, None].float() * rotary_frequencies(config, device)
        self.angles = (angles.cos().contiguous(), angles.sin().contiguous())
        self.rows = Rows.empty(slots + 1, room, device)
        self.active = torch.zeros(slots + BUCKET, dtype=torch.int32, device=device)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None  # they never run at once

    def set_temperature(self, temperature: float) -> None:
        """How tokens are drawn from now on; 0 takes the likeliest."""
        self.greedy = temperature == 0
        self.coldness.fill_(1.0 / (temperature or 1.0))

    def read(self, texts: Sequence[Sequence[int]], slots: Sequence[int]) -> Tensor:
        """Reads prompts into the caches of these slots, without padding; returns the (n, D) states of their ends."""
        device, dim = self.active.device, self.config.head_dim
        lengths = torch.tensor([len(text) for text in texts])
        ends = lengths.cumsum(0)
        tokens = torch.tensor([token for text in texts for token in text]).to(device)
        at = torch.tensor(slots, dtype=torch.int32).repeat_interleave(lengths).to(device)
        positions = (torch.arange(len(at)) - (ends - lengths).repeat_interleave(lengths)).int().to(device)
        bounds = F.pad(ends, (1, 0)).int()
        keys, values = (self._new(len(tokens), self.config.kv_heads, dim) for _ in range(2))
        scratch = _Scratch.of(self.config, len(tokens), self.weights.head.dtype, device)
        scratch.residual.copy_(self.weights.embedding[tokens])

        where = Where(slots=at, positions=positions, by_slot=False)

        def put(layer: int, qkv: Tensor) -> None:
            self.ops.place(qkv, self._turn(layer), where, scratch.queries, (keys, values), self.cache, layer)

        def attend(layer: int) -> None:  # noqa: ARG001 - every prompt is complete: its own keys are all there is
            _attend_causally(scratch.queries, keys, values, bounds, scratch.attended)

        self._blocks(scratch, put, attend)
        return scratch.normed[(ends - 1).to(device)]

    def admit(
        self, slots: Tensor, states: Tensor, lengths: Tensor, streams: Tensor, limits: Tensor, prefixes: Tensor
    ) -> None:
        """Draws the first token of these slots from the last states of their prompts, which other slots may hold."""
        rows = self.rows
        rows.positions[slots] = (lengths - 1).int()
        rows.steps[slots] = 0
        rows.streams[slots], rows.ended[slots] = streams, limits
        rows.prefixes[slots] = prefixes.int()
        rows.shared[slots] = torch.where(prefixes == slots, 0, lengths).int()
        self._choose(states, slots.int())

    def activate(self, slots: Sequence[int]) -> int:
        """From now on these slots grow; returns how many rows a step has, padding included."""
        count = max(BUCKET, -(-len(slots) // BUCKET) * BUCKET)
        padded = [*slots, *[self.slots] * (count - len(slots))]
        self.active[:count].copy_(torch.tensor(padded, dtype=torch.int32))
        self.rows.positions[self.slots] = 0
        return count

    def run(self, steps: int, *, count: int) -> None:
        """So many tokens more in each of the first `count` active slots."""
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
        """One token more in each of these slots."""
        scratch = _Scratch.of(self.config, len(slots), self.weights.head.dtype, slots.device)
        scratch.residual.copy_(self.weights.embedding[self.rows.tokens[slots]])
        # Where rounding must not depend on other sequences, neither may the number of parts.
        longest = self.capacity if self.weights.head.dtype is torch.bfloat16 else self.config.context
        splits = _splits(len(slots) * self.config.kv_heads, longest)

        where = Where(slots=slots, positions=self.rows.positions, by_slot=True)

        def put(layer: int, qkv: Tensor) -> None:
            self.ops.place(qkv, self._turn(layer), where, scratch.queries, None, self.cache, layer)

        def attend(layer: int) -> None:
            self.ops.attend(scratch.queries, self.cache, layer, slots, self.rows, scratch.attended, splits)

        self._blocks(scratch, put, attend)
        self._choose(scratch.normed, slots)

    def _blocks(self, s: _Scratch, put: Callable[[int, Tensor], None], attend: Callable[[int], None]) -> None:
        """All layers on the rows of `s`, whose residual stream holds their embeddings; leaves the normed states."""
        eps, added = self.config.norm_eps, None
        for index, layer in enumerate(self.weights.layers):
            self.ops.add_norm(s.residual, added, layer.norm, s.normed, eps)
            put(index, F.linear(s.normed, layer.qkv, layer.qkv_bias))
            attend(index)
            added = s.attended.flatten(1) @ layer.out.T
            self.ops.add_norm(s.residual, added, layer.mlp_norm, s.normed, eps)
            self.ops.gate(s.normed @ layer.gate_up.T, s.gated)
            added = s.gated @ layer.down.T
        self.ops.add_norm(s.residual, added, self.weights.norm, s.normed, eps)

    def _choose(self, states: Tensor, slots: Tensor) -> None:
        head = self.weights.head
        if head.dtype is torch.bfloat16:
            logits = torch.mm(states, head.T, out_dtype=torch.float32)
        else:  # in pieces of one size: a product rounds by its shape, and no row's may depend on how many there are
            pieces = torch.split(F.pad(states, (0, 0, 0, -len(states) % BUCKET)), BUCKET)
            logits = torch.cat([piece @ head.T for piece in pieces])[: len(states)]
        self.ops.draw(logits, slots, self.rows, self.stops, self.coldness, greedy=self.greedy, capacity=self.capacity)

    def _turn(self, layer: int) -> Turn:
        return Turn(angles=self.angles, norms=self.weights.layers[layer].heads_norm, eps=self.config.norm_eps)

    def _new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.weights.head.dtype, device=self.active.device)


@dataclass(frozen=True)
class _Scratch:
    """What a pass over n rows writes on."""

    residual: Tensor  # (n, D) fp32
    normed: Tensor  # (n, D)
    queries: Tensor  # (n, heads, dim)
    attended: Tensor  # (n, heads, dim)
    gated: Tensor  # (n, mlp_width)

    @classmethod
    def of(cls, c: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> _Scratch:
        queries, attended = (torch.empty(rows, c.heads, c.head_dim, dtype=dtype, device=device) for _ in range(2))
        return cls(
            residual=torch.empty(rows, c.width, device=device),
            normed=torch.empty(rows, c.width, dtype=dtype, device=device),
            queries=queries,
            attended=attended,
            gated=torch.empty(rows, c.mlp_width, dtype=dtype, device=device),
        )


def _operations(device: torch.device) -> Any:
    """The module whose functions a step is made of: Triton's, or the same in torch."""
    if device.type == "cuda":
        from whet.engines.native import decode_kernels as kernels  # triton comes with CUDA builds of torch only

        return kernels
    return plain


def _splits(programs: int, longest: int) -> int:
    """Parts of a context that are looked at side by side, so that few sequences still fill the device."""
    wanted = -(-PROGRAMS // programs)
    return 1 << (max(1, min(wanted, MOST_SPLITS, longest // LEAST_SPLIT)).bit_length() - 1)


def _attend_causally(queries: Tensor, keys: Tensor, values: Tensor, bounds: Tensor, out: Tensor) -> None:
    """Packed (N, heads, dim) prompts between the bounds, each by itself."""
    longest = int((bounds[1:] - bounds[:-1]).max())
    if queries.dtype is torch.bfloat16:
        at = bounds.to(queries.device)
        found = torch.ops.aten._flash_attention_forward(
            queries, keys, values, at, at, longest, longest, 0.0, True, False
        )
        out.copy_(found[0])
        return
    for start, end in pairwise(bounds.tolist()):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (queries, keys, values))
        out[start:end] = causal_attention(q, k, v)[0].transpose(0, 1)
