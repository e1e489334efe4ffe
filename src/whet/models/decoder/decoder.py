"""One decoder that is, by configuration, any family of `families.FAMILIES`: GPT-2, Llama, Gemma-3, Qwen3-MoE, ….

Modules have the names of Hugging Face's Llama, so weight maps are the identity for all but GPT-2 and Phi-3.
Weights are fp32; callers choose bf16 compute with autocast; norms and rotary angles are always fp32. There is no
dropout: sampler and trainer must compute the same log-probs. Knows nothing about tokenisers or sampling.

The other implementations of a block's forward pass are listed in ARCHITECTURE.md ("Forward passes of a block").
Letters: B rows, T time, N packed tokens, D width, M width of the MLP, V vocabulary, Q = heads · dim,
KV = kv_heads · dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whet.errors import UserError
from whet.models.adapters.lora import LoRALinear
from whet.models.cpu.column_decode import are_few_rows, product_of_rows, quickest_reader
from whet.models.decoder.families import export_config, family_named
from whet.models.decoder.joined_weights import Joined, JoinedWeights
from whet.models.decoder.kv_cache import GrowingRows, KVCache, LatentCache
from whet.models.decoder.latent_attention import LatentAttention
from whet.models.decoder.mlp import MLP, Experts
from whet.models.decoder.norm import Norm
from whet.models.decoder.stored_weights import stored_pieces, stored_shapes
from whet.models.kernels.fused_block import BlockShape, fused_block, fused_trunk
from whet.models.layers.attention import Attend, Rotation, causal_attention, rotary_angles, rotate, soft_capped
from whet.models.layers.decoder_config import (
    DecoderConfig,
    full_precision,
    has_plain_products,
    has_usual_blocks,
    is_served,
    parameter_count,
    reaches_all,
    require_causal,
)
from whet.models.layers.layer_attention import layer_scores, packed_attentions, row_attentions
from whet.models.layers.packing import Packing
from whet.models.layers.part_shapes import RopeScaling
from whet.models.protocol import Cache
from whet.models.storage.safetensors_files import write_model
from whet.models.storage.tensor_file import Whole, as_it_is

__all__ = ["Decoder", "DecoderConfig", "KVCache", "RopeScaling", "causal_attention", "parameter_count"]


class Decoder(nn.Module):
    """A causal language model; implements `whet.models.protocol.CausalLM`."""

    def __init__(
        self, config: DecoderConfig, *, family: str, seed: int | None = 0, source: Mapping[str, Any] | None = None
    ) -> None:
        """`family`: the format of saving. Without a seed weights stay on the meta device, to be assigned.

        `source`: the config.json it came from, whose other keys (token ids, …) are saved again.
        """
        super().__init__()
        self.config, self.context, self.vocab_size = config, config.context, config.vocab_size
        self.family = family_named(family)
        self.source = dict(source or {})
        self.gradient_checkpointing = False
        with torch.device("meta"):  # default initialisation would draw from the global generator
            self.model = Trunk(config)
            self.lm_head = None if config.tied_head else nn.Linear(config.width, config.vocab_size, bias=False)
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, std=config.init_std, layers=config.layers, seed=seed, norm_offset=config.norm_offset)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids → (B, T, V) logits, all in memory at once: for short inputs only."""
        return self.head(self.hidden(tokens, lengths))

    def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids, (B,) lengths → (B, T, D), after the final norm."""
        tokens = self._checked(tokens, lengths)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        attends = row_attentions(self.config, lengths.to(tokens.device), tokens.shape[1])
        states: Tensor = self.model.norm(self.model(tokens, positions, attends, self.gradient_checkpointing))
        return states

    def hidden_packed(self, packing: Packing) -> Tensor:
        """→ (N, D): as `hidden`, without padding, shared prompts computed once."""
        require_causal(self.config)
        self._check_length(packing.longest)
        if fits_fused(self.model) and reaches_all(self.config, packing.longest):
            states = fused_trunk(self.model, packing, recompute=self.gradient_checkpointing)
        elif packing.is_even:
            rows = packing.tokens.view(len(packing.roots), -1)
            attends = row_attentions(self.config, packing.lengths, rows.shape[1])
            positions = packing.positions[: rows.shape[1]]
            states = self.model(rows, positions, attends, self.gradient_checkpointing).flatten(0, 1)
        else:
            attends = packed_attentions(self.config, packing)
            states = self.model(packing.tokens[None], packing.positions, attends, self.gradient_checkpointing)[0]
        normed: Tensor = self.model.norm(states)
        return normed

    @property
    def head_weight(self) -> Tensor | None:
        """(V, D); None if logits are capped, or if an adapter replaces the head."""
        return self.head_matrix if self.config.logit_cap is None else None

    @property
    def head_matrix(self) -> Tensor | None:
        """(V, D); None if an adapter replaces the head."""
        if self.lm_head is None:
            return self.model.embed_tokens.weight
        return self.lm_head.weight if type(self.lm_head) is nn.Linear else None

    def head(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V) logits, in fp32 also under autocast: bf16 would round them to a few hundred values."""
        with full_precision(hidden.device):
            weight = self.head_matrix
            if weight is not None:
                product = product_of_rows if are_few_rows(hidden) else F.linear
                logits: Tensor = product(hidden.float(), weight.float())
            else:
                assert self.lm_head is not None
                logits = self.lm_head(hidden.float())  # may be an adapter
            return logits if self.config.logit_cap is None else soft_capped(logits, self.config.logit_cap)

    def begin(self, tokens: Tensor, lengths: Tensor, *, room: int) -> tuple[Tensor, GrowingRows]:
        """Prefills right-padded prompts; returns the (B, D) state of each last token, and the KV cache."""
        require_causal(self.config)
        tokens = self._checked(tokens, lengths)
        size, lengths = tokens.shape[1], lengths.to(tokens.device)
        read, capacity = quickest_reader(self.model), min(size + room, self.context)
        kind = KVCache if self.config.latent is None else LatentCache
        scores = layer_scores(self.config, capacity)
        cache: GrowingRows = kind(lengths, scores=scores, columns=size, capacity=capacity, read=read)
        positions = torch.arange(size, device=tokens.device).expand_as(tokens)
        states = read(tokens, positions, cache.prompt_attends(row_attentions(self.config, lengths, size)))
        last = states[torch.arange(len(tokens), device=tokens.device), lengths - 1]
        return self.model.norm(last), cache

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Appends one (B,) token to every row of the cache; returns (B, D)."""
        assert isinstance(cache, GrowingRows)
        cache.open_column()
        states = cache.read(tokens[:, None], cache.lengths[:, None] - 1, cache.token_attends())
        last: Tensor = self.model.norm(states[:, 0])
        return last

    def save(self, directory: Path | None, dtype: torch.dtype | None = torch.float32, whole: Whole = as_it_is) -> None:
        """Writes config.json and model.safetensors as `AutoModelForCausalLM.from_pretrained` reads them.

        `whole`: of weights that are spread over processes, all of which call this; one of them names a directory.
        """
        config, weights = export_config(self.family, self.config, self.source), self.state_dict()
        pieces = stored_pieces(self.family, weights, whole)
        write_model(directory, config, stored_shapes(self.family, weights), dtype, pieces)

    def _checked(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The tokens with id 0 in the padding, which may hold any id, also an invalid one."""
        self._check_length(tokens.shape[1])
        padding = torch.arange(tokens.shape[1], device=tokens.device) >= lengths.to(tokens.device)[:, None]
        return tokens.masked_fill(padding, 0)

    def _check_length(self, length: int) -> None:
        if length > self.context:
            raise UserError(f"a sequence of {length} tokens exceeds the model's context of {self.context}: shorten it")


class Trunk(nn.Module):
    """Embeddings, blocks and the final norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = embedding(config.vocab_size, config.width)
        self.embed_positions = embedding(config.context, config.width) if config.positions == "learned" else None
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = Norm(config.width, config)
        self.joined = JoinedWeights()
        self.compiled = False  # whether `torch.compile` makes kernels of the plain blocks, on a GPU

    def forward(self, tokens: Tensor, positions: Tensor, attends: Sequence[Attend], recompute: bool = False) -> Tensor:
        """(B, T) ids at (T,) or (B, T) positions → (B, T, D), before the final norm; one of `attends` per layer."""
        states: Tensor = self.scaled(self.embed_tokens(tokens))
        if torch.is_autocast_enabled(states.device.type):  # the stream is fp32, and a frozen embedding may be bf16
            states = states.float()
        rotations: list[Rotation] = [None] * len(self.layers)
        if self.embed_positions is not None:
            states = states + self.embed_positions(positions)
        else:
            rotations = self._rotations(positions)
        is_usual = self.config.experts is None and all(attend is causal_attention for attend in attends)
        is_compiled = self.compiled and states.is_cuda and is_usual
        for block, rotation, attend in zip(self.layers, rotations, attends, strict=True):
            run = partial(_compiled_block(), block) if is_compiled else block
            if recompute and torch.is_grad_enabled():
                states = checkpoint(run, states, rotation, attend, use_reentrant=False)
            else:
                states = run(states, rotation, attend)
        return states

    def scaled(self, embedded: Tensor) -> Tensor:
        """Embeddings as the first block reads them; √width is rounded to their dtype, as in transformers."""
        if not self.config.embedding_scaled:
            return embedded
        return embedded * torch.tensor(math.sqrt(self.config.width), dtype=embedded.dtype)

    def _rotations(self, positions: Tensor) -> list[Rotation]:
        """Of every layer; those with a window may have other angles."""
        local = [self.config.has_window_angles(layer) for layer in range(self.config.layers)]
        each = {windowed: rotary_angles(self.config, positions, windowed=windowed) for windowed in set(local)}
        return [each[windowed] for windowed in local]


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream, with norms before (pre) or after them (post), or both.

    The plain block: reference for the fused ones, and used for what they do not cover (GPT-2, OLMo-2, Gemma, experts,
    latent attention, sliding windows, adapters).
    """

    def __init__(self, config: DecoderConfig, layer: int = 0) -> None:
        super().__init__()
        self.norm_place = config.norm_place
        self.self_attn = Attention(config) if config.latent is None else LatentAttention(config)
        self.mlp = Experts(config) if config.has_experts(layer) else MLP(config)
        if config.norm_place != "post":
            self.input_layernorm = Norm(config.width, config)
        self.post_attention_layernorm = Norm(config.width, config)
        if config.norm_place == "both":
            self.pre_feedforward_layernorm = Norm(config.width, config)
        if config.norm_place != "pre":
            self.post_feedforward_layernorm = Norm(config.width, config)

    def forward(self, states: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        before, after, before_mlp, after_mlp = self.norms()
        states = states + _normed(after, self.self_attn(_normed(before, states), rotation, attend))
        return states + _normed(after_mlp, self.mlp(_normed(before_mlp, states)))

    def fused(self, joined: Callable[[], Joined], states: Tensor, shape: BlockShape) -> Tensor:
        """(N, D) → (N, D): the forward pass of packed tokens. A method, because a spread block is whole only within."""
        return fused_block(self, joined, states, shape)

    def norms(self) -> Sequence[Norm | None]:
        """Before attention, after it, before the MLP, after it; None where there is none."""
        if self.norm_place == "pre":
            return self.input_layernorm, None, self.post_attention_layernorm, None
        if self.norm_place == "post":
            return None, self.post_attention_layernorm, None, self.post_feedforward_layernorm
        outer = (self.input_layernorm, self.post_attention_layernorm)
        return (*outer, self.pre_feedforward_layernorm, self.post_feedforward_layernorm)

    def matrices(self) -> Sequence[Any]:
        """The weights of q, k, v, their biases (or None), of out, gate (or None), up and down."""
        attention, mlp = self.self_attn, self.mlp
        assert isinstance(attention, Attention)
        assert isinstance(mlp, MLP)
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        return (
            *(part.weight for part in parts),
            *(part.bias for part in parts),
            attention.o_proj.weight,
            None if mlp.gate_proj is None else mlp.gate_proj.weight,
            mlp.up_proj.weight,
            mlp.down_proj.weight,
        )

    def adapters(self) -> Sequence[LoRALinear | None]:
        """The adapted ones of q, k, v, out, gate, up and down."""
        attention, mlp = self.self_attn, self.mlp
        if not isinstance(attention, Attention) or not isinstance(mlp, MLP):
            return ()
        parts = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        return [
            part if isinstance(part, LoRALinear) else None
            for part in (*parts, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        ]


def _normed(norm: Norm | None, states: Tensor) -> Tensor:
    return states if norm is None else norm(states)


@lru_cache(maxsize=1)
def _compiled_block() -> Callable[..., Tensor]:
    """The forward pass of a block, compiled once for all blocks of the same shape."""
    compiled: Callable[..., Tensor] = torch.compile(Block.forward, dynamic=False)
    return compiled


class Attention(nn.Module):
    """The projections around attention; `attend` attends, and stores keys and values in a cache."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        query, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim, self.query_factor = config.head_dim, config.query_factor
        self.qk_norm = config.qk_norm
        self.q_proj = nn.Linear(config.width, query, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.width, shared, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.width, shared, bias=config.attention_bias)
        self.o_proj = nn.Linear(query, config.width, bias=config.attention_out_bias)
        if config.qk_norm != "none":
            per_head = config.qk_norm == "head"
            self.q_norm = Norm(config.head_dim if per_head else query, config)
            self.k_norm = Norm(config.head_dim if per_head else shared, config)

    def forward(self, states: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        queries, keys, values = self.q_proj(states), self.k_proj(states), self.v_proj(states)
        if self.qk_norm == "full":
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys, values = (x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in (queries, keys, values))
        if self.qk_norm == "head":
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        if rotation is not None:
            factor = self.query_factor
            own = rotation if factor == 1.0 else (factor * rotation[0], factor * rotation[1])  # fp32: rounded once
            queries, keys = rotate(queries, *own), rotate(keys, *rotation)
        written: Tensor = self.o_proj(attend(queries, keys, values).transpose(1, 2).flatten(2))
        return written


def embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding without values: initialising one on the meta device imports torch's compiler, which takes 1 s."""
    made: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)  # type: ignore[no-untyped-call]
    return made


@torch.no_grad()
def initialise(model: nn.Module, *, std: float, layers: int, seed: int, norm_offset: bool = False) -> None:
    """Normal weights, unit norms, zero biases; projections into the residual stream are scaled by 1/√(2·layers).

    The scale makes the stream's variance independent of depth (Radford et al. 2019, §2.3). Uses its own generator.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(0.0 if norm_offset else 1.0)
        else:
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0.0, std / math.sqrt(2 * layers) if into_residual else std, generator=generator)


def fits_fused(trunk: Trunk) -> bool:
    """Whether the fused block supports it: bf16 on CUDA or fp32 on a CPU, a served shape, no adapters."""
    device = trunk.embed_tokens.weight.device
    is_cuda = device.type == "cuda"
    fits = is_served(trunk.config) if is_cuda else has_usual_blocks(trunk.config)
    if not fits or torch.is_autocast_enabled(device.type) != is_cuda:
        return False
    return has_plain_products(trunk.layers)
