"""A decode step as one CUDA graph: embedding, layers, head, draw, all without the host.

The weights are a bf16 copy of the policy's that `refresh` brings up to date in place; the residual stream stays fp32 as
in the trainer. Every row of the cache is a slot of its own length. Serves decoders with RMS norms before their blocks,
rotary positions and gated MLPs; others sample on the plain path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.engines import kernels
from whet.engines.kernels import Rows
from whet.models.attention import rotary_frequencies
from whet.models.decoder import Decoder
from whet.models.decoder_config import DecoderConfig


@dataclass
class Layer:
    """One block's weights in bf16, products that share their input joined; norms stay fp32."""

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

    def __init__(self, policy: Decoder) -> None:
        self.layers = [_layer(block, policy.config) for block in _blocks(policy)]
        self.embedding = policy.model.embed_tokens.weight.detach()
        self.norm = policy.model.norm.weight.detach()
        self.head = _joined(*_head(policy))

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


def _layer(block: Any, config: DecoderConfig) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = None
    if config.qk_norm == "head":
        norms = (attention.q_norm.weight.detach(), attention.k_norm.weight.detach())
    return Layer(
        norm=block.input_layernorm.weight.detach(),
        qkv=_joined(*(part.weight for part in parts)),
        qkv_bias=None if parts[0].bias is None else _joined(*(part.bias for part in parts)),
        heads_norm=norms,
        out=_joined(attention.o_proj.weight),
        mlp_norm=block.post_attention_layernorm.weight.detach(),
        gate_up=_joined(mlp.gate_proj.weight, mlp.up_proj.weight),
        down=_joined(mlp.down_proj.weight),
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


def _joined(*weights: Tensor) -> Tensor:
    return torch.cat([weight.detach() for weight in weights]).to(torch.bfloat16)


class DecodeLoop:
    """A cache of `slots` sequences, and graphs that make the first 2ⁿ of them a token longer."""

    def __init__(self, policy: Decoder, *, slots: int, capacity: int, room: int, stops: Tensor) -> None:
        config, device = policy.config, next(policy.parameters()).device
        self.config, self.slots, self.capacity, self.room, self.stops = config, slots, capacity, room, stops
        self.greedy, self.coldness = False, torch.ones(1, device=device)
        self.weights = Weights(policy)
        shape = (config.layers, slots, config.kv_heads, capacity, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
        angles = torch.arange(capacity, device=device)[:, None].float() * rotary_frequencies(config, device)
        self.angles = (angles.cos().contiguous(), angles.sin().contiguous())
        self.rows = Rows.empty(slots, room, device)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._scratch = self._buffers(slots, device)
        self._pool = torch.cuda.graph_pool_handle()  # one for all graphs: they never run at the same time

    def _buffers(self, slots: int, device: torch.device) -> dict[str, Tensor]:
        c = self.config
        shapes = {"normed": c.width, "queries": c.heads * c.head_dim, "attended": c.heads * c.head_dim}
        half = {
            name: torch.empty(slots, width, dtype=torch.bfloat16, device=device)
            for name, width in {**shapes, "gated": c.mlp_width}.items()
        }
        return {**half, "residual": torch.empty(slots, c.width, device=device)}

    def set_temperature(self, temperature: float) -> None:
        """How tokens are drawn from now on; 0 takes the likeliest."""
        self.greedy = temperature == 0
        self.coldness.fill_(1.0 / (temperature or 1.0))

    def admit(self, slots: Tensor, states: Tensor, lengths: Tensor, streams: Tensor, limits: Tensor) -> None:
        """Draws the first token of these slots, whose caches hold prompts of these lengths, from their last states."""
        new = Rows.empty(len(slots), self.room, slots.device)
        new.positions.copy_(lengths - 1)
        new.streams.copy_(streams)
        new.ended.copy_(limits)
        self._choose(states.to(torch.bfloat16), new)
        for live, tensor in zip(self.rows.each(), new.each(), strict=True):
            live[slots] = tensor

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """The sequences of some slots go to others."""
        for tensor in (*self.rows.each(),):
            tensor[targets] = tensor[sources]
        self.keys[:, targets] = self.keys[:, sources]
        self.values[:, targets] = self.values[:, sources]

    def run(self, steps: int, *, slots: int) -> None:
        """So many tokens more in each of the first slots."""
        key = (slots, self.greedy)
        if key not in self._graphs:
            self._graphs[key] = self._captured(slots)
        for _ in range(steps):
            self._graphs[key].replay()

    def _captured(self, slots: int) -> torch.cuda.CUDAGraph:
        saved = [tensor.clone() for tensor in self.rows.each()]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(slots)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(slots)
        for live, old in zip(self.rows.each(), saved, strict=True):
            live.copy_(old)
        return graph

    def _step(self, slots: int) -> None:
        c, eps, rows = self.config, self.config.norm_eps, self.rows.first(slots)
        s = {name: buffer[:slots] for name, buffer in self._scratch.items()}
        queries, attended = (s[name].view(slots, c.heads, c.head_dim) for name in ("queries", "attended"))
        s["residual"].copy_(self.weights.embedding[rows.tokens])
        added = None
        for index, layer in enumerate(self.weights.layers):
            keys, values = self.keys[index], self.values[index]
            kernels.add_norm(s["residual"], added, layer.norm, s["normed"], eps)
            qkv = torch.nn.functional.linear(s["normed"], layer.qkv, layer.qkv_bias)
            kernels.rope_cache(qkv, self.angles, rows.positions, layer.heads_norm, queries, keys, values, eps)
            kernels.attend(queries, keys, values, rows.positions, attended)
            added = s["attended"] @ layer.out.T
            kernels.add_norm(s["residual"], added, layer.mlp_norm, s["normed"], eps)
            kernels.gate(s["normed"] @ layer.gate_up.T, s["gated"])
            added = s["gated"] @ layer.down.T
        kernels.add_norm(s["residual"], added, self.weights.norm, s["normed"], eps)
        self._choose(s["normed"], rows)

    def _choose(self, states: Tensor, rows: Rows) -> None:
        logits = torch.mm(states, self.weights.head.T, out_dtype=torch.float32)
        kernels.draw(logits, rows, self.stops, self.coldness, greedy=self.greedy, capacity=self.capacity)
