"""The shape of a decoder, its cache and its kernels' limits, and the precision of arithmetic."""

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from whet.errors import UserError
from whet.models.adapters.lora import LoRALinear

HEAD_WIDTHS = (16, 32, 64, 128)  # head dims that the CUDA attention kernel has tiles for

# Far above every published model: a larger number in a config.json is a mistake or an attack on memory.
LARGEST = {
    "vocab_size": 2**24,
    "layers": 2**14,
    "heads": 2**16,
    "kv_heads": 2**16,
    "width": 2**20,  # checked before fields whose default derives from it
    "head_dim": 2**16,
    "mlp_width": 2**22,
    "context": 2**31,
}
LARGEST_LATENT = 2**16  # ranks and head widths of latent attention


class WrongField(UserError):
    """An impossible value of a field of DecoderConfig; `field` lets a caller name the key of its file instead."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field, self.problem = field, problem


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """Scaling of rotary frequencies, which extends the context of a trained model."""

    kind: Literal["linear", "llama3"]
    factor: float  # frequencies are divided by it
    low_frequency_factor: float = 1.0  # llama3: wavelengths above original_context / this get the full factor
    high_frequency_factor: float = 4.0  # llama3: wavelengths below original_context / this are unchanged
    original_context: int = 8192  # llama3: the context before scaling

    def __post_init__(self) -> None:
        """Refuses kinds that the decoder does not implement."""
        if self.kind not in ("linear", "llama3"):
            raise UserError(f"rope scaling {self.kind!r} is not supported: use 'linear' or 'llama3'")
        factors = (self.factor, self.low_frequency_factor, self.high_frequency_factor)
        is_ordered = self.factor > 0 and self.high_frequency_factor > self.low_frequency_factor
        if not (all(map(math.isfinite, factors)) and is_ordered and self.original_context >= 1):
            raise UserError(
                f"{self} is impossible: it needs finite factors, the first above 0 and the high above the low one, "
                "and an original context above 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentShape:
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434 §2.1): the widths of a head and of the latents.

    Keys and values of all heads are products of one latent vector per token; positions are in a separate rotary part of
    queries and keys, whose key is shared by the heads.
    """

    q_rank: int | None  # of the queries' latent; None: queries are projected from the hidden state directly
    kv_rank: int  # of the latent of keys and values, which is cached
    nope_dim: int  # of a head's queries and keys without positions
    rope_dim: int  # of a head's rotary queries, and of the shared rotary key, which is cached
    value_dim: int  # of a head's values
    interleaved: bool = True  # rotary pairs are (2i, 2i + 1); else (i, i + rope_dim / 2)

    def __post_init__(self) -> None:
        """Refuses widths that cannot be built."""
        for name in ("kv_rank", "nope_dim", "rope_dim", "value_dim", *(() if self.q_rank is None else ("q_rank",))):
            _check_count(name, getattr(self, name), LARGEST_LATENT)
        if self.rope_dim % 2:
            raise WrongField("rope_dim", f"is {self.rope_dim}: rotary positions need an even one")

    @property
    def head_dim(self) -> int:
        """The width of a head's queries and keys."""
        return self.nope_dim + self.rope_dim

    @property
    def cached(self) -> int:
        """Numbers per token and layer in the cache."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """The shape of a decoder of the kinds of `families.FAMILIES`."""

    vocab_size: int
    layers: int
    heads: int
    kv_heads: int  # fewer than heads: grouped-query attention
    head_dim: int  # of queries and keys; with latent attention, both parts together
    width: int  # of the residual stream
    mlp_width: int
    context: int  # the most tokens in a sequence
    window: int | None = None  # sliding window: the last tokens that a token attends to; None: all
    norm: Literal["layer", "rms"]
    norm_eps: float
    positions: Literal["learned", "rope"]
    rope_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    mlp: Literal["gelu", "swiglu"]  # gelu is the tanh approximation, as in GPT-2
    attention_bias: bool  # on the query, key and value projections
    attention_out_bias: bool
    mlp_bias: bool
    qk_norm: Literal["none", "head", "full"] = "none"  # per head (Qwen3) or over the whole projection (OLMo-2)
    norm_place: Literal["pre", "post"] = "pre"  # post: on the outputs of attention and MLP (OLMo-2)
    latent: LatentShape | None = None  # multi-head latent attention; attention_bias is then on its down projections
    tied_head: bool
    init_std: float = 0.02
    causal: bool = True  # False: tokens see later ones too, and the last id is the mask token

    def __post_init__(self) -> None:
        """Refuses shapes that cannot be built."""
        numbers = asdict(self)
        for name, most in LARGEST.items():
            _check_count(name, numbers[name], most)
        for name in ("norm_eps", "rope_base", "init_std"):
            if not (math.isfinite(numbers[name]) and numbers[name] >= 0):
                raise WrongField(name, f"is {numbers[name]!r}: expected a finite number, 0 or more")
        if self.rope_base == 0:
            raise WrongField("rope_base", "is 0: expected a number above 0")
        if self.norm_eps > 1:
            raise WrongField("norm_eps", f"is {self.norm_eps!r}: expected at most 1")
        if self.window is not None:
            _check_count("window", self.window, LARGEST["context"])
        if self.heads % self.kv_heads:
            raise WrongField("kv_heads", f"is {self.kv_heads}: expected a divisor of the {self.heads} heads")
        if self.latent is not None:
            self._check_latent(self.latent)
        elif self.positions == "rope" and self.head_dim % 2:
            raise WrongField("head_dim", f"is {self.head_dim}: rotary positions need an even one")

    def _check_latent(self, latent: LatentShape) -> None:
        """Refuses what latent attention is not implemented with."""
        if self.head_dim != latent.head_dim:
            raise WrongField(
                "head_dim", f"is {self.head_dim}: expected nope_dim + rope_dim, which is {latent.head_dim}"
            )
        if self.kv_heads != self.heads:
            raise WrongField(
                "kv_heads", f"is {self.kv_heads}: latent attention has keys for each of {self.heads} heads"
            )
        wanted = {"positions": "rope", "norm": "rms", "qk_norm": "none", "norm_place": "pre"}
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise WrongField(name, f"is {getattr(self, name)!r}: latent attention is implemented for {value!r}")

    @property
    def longest(self) -> int:
        """The most tokens that the decoder reads: it has no sliding window, and up to that length needs none."""
        return self.context if self.window is None else min(self.context, self.window)

    @property
    def rotary_dim(self) -> int:
        """The width of a head's rotary part: all of it, except in latent attention."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def value_dim(self) -> int:
        """The width of a head's values."""
        return self.head_dim if self.latent is None else self.latent.value_dim


def parameter_count(config: DecoderConfig) -> int:
    """The number of parameters; a tied head counts once."""
    per_norm = 2 if config.norm == "layer" else 1
    matrices = 3 if config.mlp == "swiglu" else 2

    mlp = matrices * config.width * config.mlp_width
    mlp += config.mlp_bias * ((matrices - 1) * config.mlp_width + config.width)
    norms = 2 * config.width * per_norm

    embeddings = config.vocab_size * config.width * (1 if config.tied_head else 2)
    embeddings += config.context * config.width if config.positions == "learned" else 0
    return embeddings + config.layers * (_attention_parameters(config) + mlp + norms) + config.width * per_norm


def _attention_parameters(config: DecoderConfig) -> int:
    """The parameters of one layer's attention, without the norm of the block."""
    query, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
    out = config.heads * config.value_dim * config.width + config.attention_out_bias * config.width
    latent = config.latent
    if latent is None:
        per_norm = 2 if config.norm == "layer" else 1
        norms = {"none": 0, "head": 2 * config.head_dim, "full": query + shared}[config.qk_norm] * per_norm
        return (config.width + config.attention_bias) * (query + 2 * shared) + norms + out
    into = config.width + config.attention_bias  # parameters for each number of a down projection
    queries = config.width * query
    if latent.q_rank is not None:
        queries = latent.q_rank * (into + 1 + query)  # down, norm, up
    keys_and_values = into * latent.cached + latent.kv_rank * (1 + config.heads * (latent.nope_dim + latent.value_dim))
    return queries + keys_and_values + out


def kv_bytes_per_token(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes that the KV cache holds for one token: keys and values of each KV head, or latents."""
    numbers = 2 * config.kv_heads * config.head_dim if config.latent is None else config.latent.cached
    return dtype.itemsize * config.layers * numbers


def all_heads_bytes_per_token(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes of a token's keys and values of every query head: a cache that neither shares nor compresses them."""
    return dtype.itemsize * config.layers * config.heads * (config.head_dim + config.value_dim)


def _check_count(name: str, value: object, most: int) -> None:
    if type(value) is not int or value < 1:
        raise WrongField(name, f"is {_short(value)}: expected a whole number above 0")
    if value > most:
        raise WrongField(name, f"is {_short(value)}: expected at most {most}")


def _short(value: object) -> str:
    """repr for a message, shortened: a number of a file may have thousands of digits."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"


def is_served(config: DecoderConfig) -> bool:
    """Whether the CUDA kernels support this shape."""
    return has_usual_blocks(config) and config.head_dim in HEAD_WIDTHS


def has_usual_blocks(config: DecoderConfig) -> bool:
    """The block of Llama, Qwen2 and Qwen3: pre-norm RMS, RoPE, SwiGLU, biases at most on queries, keys and values.

    Attention is the plain one, not latent.
    """
    plain = (
        config.norm == "rms" and config.positions == "rope" and config.mlp == "swiglu" and config.norm_place == "pre"
    )
    biases = config.attention_out_bias or config.mlp_bias
    return plain and not biases and config.qk_norm != "full" and config.latent is None and config.causal


def require_causal(config: DecoderConfig) -> None:
    """Refuses what a bidirectional model cannot do: predict a token from those before it alone."""
    if not config.causal:
        raise UserError("a bidirectional model predicts masked tokens and continues no text: use a causal model")


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast on CUDA; nothing on a CPU, where bf16 is hundreds of times slower."""
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switches autocast off, for parts that need fp32 such as the head."""
    return torch.autocast(device.type, enabled=False)


def fp32_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with an fp32 result, also of bf16 matrices: logits, and weights' gradients, which sum over many tokens."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.dtype is torch.bfloat16 else a @ b


def has_plain_products(layers: Iterable[nn.Module]) -> bool:
    """Whether every projection is a plain `nn.Linear` in fp32, or frozen, or one with a LoRA adapter."""
    parts = (part for block in layers for name, part in block.named_modules() if name.endswith("_proj"))
    return all(isinstance(part, LoRALinear) or (type(part) is nn.Linear and _is_copied(part.weight)) for part in parts)


def _is_copied(weight: Tensor) -> bool:
    """Whether joined copies stand for it: it is in fp32, or needs no gradient."""
    return weight.dtype is torch.float32 or not weight.requires_grad
