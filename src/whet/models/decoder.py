"""One decoder that is, by configuration, GPT-2, Llama, Qwen2, Qwen3 or OLMo-2.

Modules carry the names of Hugging Face's Llama, so weight maps are the identity for all but GPT-2 and adapters fit.
Weights are fp32; callers choose bf16 compute with autocast; norms and rotary angles are always fp32. There is no
dropout: the log-probs of a sequence must not depend on who asks. Knows nothing about tokenisers or sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from whet.errors import UserError
from whet.models.attention import causal_attention, packed_attention, packed_places, rotary_angles, rotate
from whet.models.checkpoint import write_model
from whet.models.decoder_config import DecoderConfig, RopeScaling, parameter_count
from whet.models.families import export_config, family_named
from whet.models.precision import full_precision
from whet.models.protocol import Cache

__all__ = ["Decoder", "DecoderConfig", "KVCache", "RopeScaling", "causal_attention", "parameter_count"]

# Not cuDNN's: it compiles a plan for every new shape (45 ms on an H200), and the cache grows with every token.
STEP_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Queries, keys and values (B, heads, T, head_dim) → what each query attended to, shaped as the queries.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Decoder(nn.Module):
    """A causal language model; implements `whet.models.protocol.CausalLM`."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        family: str,
        seed: int | None = 0,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        """`family` is what it is saved as; without a seed the weights stay on the meta device, to be assigned.

        `source` is the Hugging Face config it came from: what the decoder does not use survives a save.
        """
        super().__init__()
        self.config = config
        self.family = family_named(family)
        self.source = dict(source or {})
        self.gradient_checkpointing = False
        with torch.device("meta"):  # default initialisation would draw from the global generator
            self.model = Trunk(config)
            self.lm_head = None if config.tied_head else nn.Linear(config.width, config.vocab_size, bias=False)
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, std=config.init_std, layers=config.layers, seed=seed)

    @property
    def context(self) -> int:
        """The most tokens a sequence may have."""
        return self.config.context

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self.config.vocab_size

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids → (B, T, V) logits: all of them at once, so for short inputs only."""
        return self.head(self.hidden(tokens, lengths))

    def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids, (B,) lengths → (B, T, D), after the final norm."""
        tokens = self._checked(tokens, lengths)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        attends = [causal_attention] * self.config.layers
        states: Tensor = self.model.norm(self.model(tokens, positions, attends, self.gradient_checkpointing))
        return states

    def hidden_packed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(N,) ids of sequences one behind the other, (B,) lengths → (N, D); no sequence sees another."""
        positions, owners = packed_places(lengths)
        if len(lengths) and int(lengths.max()) > self.context:
            raise UserError(
                f"a sequence of {int(lengths.max())} tokens exceeds the model's context of {self.context}: shorten it"
            )
        attends = [partial(packed_attention, owners=owners)] * self.config.layers
        states: Tensor = self.model(tokens[None], positions, attends, self.gradient_checkpointing)
        normed: Tensor = self.model.norm(states)[0]
        return normed

    def head(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V) logits, in fp32 also under autocast: bf16 would round them to a few hundred values."""
        with full_precision(hidden.device):
            if self.lm_head is None:
                return F.linear(hidden.float(), self.model.embed_tokens.weight)
            logits: Tensor = self.lm_head(hidden.float())  # called, not read: an adapter may stand in its place
            return logits

    def begin(self, tokens: Tensor, lengths: Tensor, *, room: int) -> tuple[Tensor, KVCache]:
        """Reads right-padded prompts; returns the (B, D) state of each last token, and a cache."""
        tokens = self._checked(tokens, lengths)
        cache = KVCache(lengths.to(tokens.device), capacity=min(tokens.shape[1] + room, self.context))
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.model(tokens, positions, [cache.fill] * self.config.layers)
        rows = torch.arange(len(tokens), device=tokens.device)
        return self.model.norm(states[rows, cache.lengths - 1]), cache

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Appends one (B,) token to every row of the cache; returns (B, D)."""
        assert isinstance(cache, KVCache)
        cache.open_slot()
        attends = [partial(cache.append, layer) for layer in range(self.config.layers)]
        with sdpa_kernel(STEP_KERNELS):
            states = self.model(tokens[:, None], cache.lengths[:, None] - 1, attends)
        last: Tensor = self.model.norm(states[:, 0])
        return last

    def save(self, directory: Path) -> None:
        """Writes config.json and model.safetensors as `AutoModelForCausalLM.from_pretrained` reads them."""
        config = export_config(self.family, self.config, self.source)
        write_model(directory, config, self.family.export_weights(self.state_dict()))

    def _checked(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The tokens with a fixed id in the padding, so that any id (also an invalid one) may stand there."""
        if tokens.shape[1] > self.context:
            raise UserError(
                f"a sequence of {tokens.shape[1]} tokens exceeds the model's context of {self.context}: shorten it"
            )
        padding = torch.arange(tokens.shape[1], device=tokens.device) >= lengths.to(tokens.device)[:, None]
        return tokens.masked_fill(padding, 0)


class KVCache:
    """Keys and values (rows, kv_heads, capacity, head_dim) of every layer; each row has its own length."""

    def __init__(self, lengths: Tensor, *, capacity: int) -> None:
        """An empty cache for prompts of these (rows,) lengths."""
        self.capacity = capacity
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.lengths = lengths
        self._host_lengths = lengths.cpu()  # known without waiting for the device
        if not bool((self._host_lengths > 0).all()):
            raise UserError("a prompt has no tokens: give it at least one, such as the beginning-of-sequence token")

    def fill(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Stores the prompts' keys and values of the next layer and attends causally."""
        for stored, new in ((self.keys, keys), (self.values, values)):
            rows, heads, length, dim = new.shape
            slab = new.new_zeros(rows, heads, self.capacity, dim)  # not empty(): 0 × NaN would reach the output
            slab[:, :, :length] = new
            stored.append(slab)
        return causal_attention(queries, keys, values)

    def open_slot(self) -> None:
        """Makes every row one token longer; `append` then fills the new place layer by layer."""
        longest = int(self._host_lengths.max()) + 1
        if longest > self.capacity:
            raise UserError(
                f"a sequence of {longest} tokens exceeds the cache of {self.capacity}: begin with more room"
            )
        self._rows = torch.arange(len(self.lengths), device=self.lengths.device)
        self._visible = (torch.arange(longest, device=self.lengths.device) <= self.lengths[:, None])[:, None, None]
        self.lengths = self.lengths + 1
        self._host_lengths = self._host_lengths + 1

    def append(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Writes one token's keys and values at each row's own end and attends to what stands up to there."""
        self.keys[layer][self._rows, :, self.lengths - 1] = keys[:, :, 0]
        self.values[layer][self._rows, :, self.lengths - 1] = values[:, :, 0]
        longest = self._visible.shape[-1]
        # The query heads that share a key head stand side by side where a kernel expects time: nothing is repeated.
        grouped = queries.view(len(queries), keys.shape[1], -1, queries.shape[-1])
        attended = F.scaled_dot_product_attention(
            grouped, self.keys[layer][:, :, :longest], self.values[layer][:, :, :longest], attn_mask=self._visible
        )
        return attended.reshape(queries.shape)

    def select(self, rows: Tensor) -> None:
        """Row i becomes the old row rows[i]."""
        rows = rows.to(self.lengths.device)
        for layer in range(len(self.keys)):
            self.keys[layer] = self.keys[layer].index_select(0, rows)
            self.values[layer] = self.values[layer].index_select(0, rows)
        self.lengths = self.lengths.index_select(0, rows)
        self._host_lengths = self._host_lengths.index_select(0, rows.cpu())


def embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding without values: drawing them on the meta device would import the compiler, which takes a second."""
    made: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)  # type: ignore[no-untyped-call]
    return made


class Trunk(nn.Module):
    """Embeddings, blocks and the final norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = embedding(config.vocab_size, config.width)
        self.embed_positions = embedding(config.context, config.width) if config.positions == "learned" else None
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = Norm(config.width, config)

    def forward(self, tokens: Tensor, positions: Tensor, attends: Sequence[Attend], recompute: bool = False) -> Tensor:
        """(B, T) ids at (T,) or (B, T) positions → (B, T, D), before the final norm; `attends` has one per layer."""
        states: Tensor = self.embed_tokens(tokens)
        rotation = None
        if self.embed_positions is not None:
            states = states + self.embed_positions(positions)
        else:
            rotation = rotary_angles(self.config, positions)
        for block, attend in zip(self.layers, attends, strict=True):
            if recompute and torch.is_grad_enabled():
                states = checkpoint(block, states, rotation, attend, use_reentrant=False)
            else:
                states = block(states, rotation, attend)
        return states


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream, with norms before or after them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.norm_place = config.norm_place
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        if config.norm_place == "pre":
            self.input_layernorm = Norm(config.width, config)
        self.post_attention_layernorm = Norm(config.width, config)
        if config.norm_place == "post":
            self.post_feedforward_layernorm = Norm(config.width, config)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor] | None, attend: Attend) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        if self.norm_place == "pre":
            states = states + self.self_attn(self.input_layernorm(states), rotation, attend)
            states = states + self.mlp(self.post_attention_layernorm(states))
        else:
            states = states + self.post_attention_layernorm(self.self_attn(states, rotation, attend))
            states = states + self.post_feedforward_layernorm(self.mlp(states))
        return states


class Attention(nn.Module):
    """Projections around `attend`, which decides where keys and values are kept and looked up."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        query, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.qk_norm = config.qk_norm
        self.q_proj = nn.Linear(config.width, query, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.width, shared, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.width, shared, bias=config.attention_bias)
        self.o_proj = nn.Linear(query, config.width, bias=config.attention_out_bias)
        if config.qk_norm != "none":
            per_head = config.qk_norm == "head"
            self.q_norm = Norm(config.head_dim if per_head else query, config)
            self.k_norm = Norm(config.head_dim if per_head else shared, config)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor] | None, attend: Attend) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        queries, keys, values = self.q_proj(states), self.k_proj(states), self.v_proj(states)
        if self.qk_norm == "full":
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys, values = (x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in (queries, keys, values))
        if self.qk_norm == "head":
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        if rotation is not None:
            queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
        attended: Tensor = self.o_proj(attend(queries, keys, values).transpose(1, 2).flatten(2))
        return attended


class MLP(nn.Module):
    """down(gelu(up(x))), or down(silu(gate(x)) · up(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = None
        if config.mlp == "swiglu":
            self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=config.mlp_bias)

    def forward(self, states: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        inner: Tensor = self.up_proj(states)
        inner = F.gelu(inner, approximate="tanh") if self.gate_proj is None else F.silu(self.gate_proj(states)) * inner
        written: Tensor = self.down_proj(inner)
        return written


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last dimension, computed in fp32."""

    def __init__(self, width: int, config: DecoderConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if config.norm == "layer" else None

    def forward(self, states: Tensor) -> Tensor:
        """Keeps shape and dtype."""
        shape, weight = self.weight.shape, self.weight.float()
        if self.bias is None:
            return F.rms_norm(states.float(), shape, weight, self.eps).to(states.dtype)
        return F.layer_norm(states.float(), shape, weight, self.bias.float(), self.eps).to(states.dtype)


@torch.no_grad()
def initialise(model: Decoder, *, std: float, layers: int, seed: int) -> None:
    """Normal weights, unit norms, zero biases; what writes to the residual stream is scaled by 1/√(2·layers).

    The scale keeps the stream's variance independent of depth (Radford et al. 2019, §2.3). Uses its own generator.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0.0, std / math.sqrt(2 * layers) if into_residual else std, generator=generator)
