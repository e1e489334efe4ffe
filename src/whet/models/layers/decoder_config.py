"""The shape of a decoder, its cache and its kernels' limits, and the precision of arithmetic.

torch is imported where tensors are computed: `whet plan` reads shapes without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from whet.errors import UserError
from whet.models.layers.part_shapes import ExpertShape, LatentShape, RopeScaling, WrongField, check_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

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
    window: int | None = None  # sliding window: the last tokens, itself included, that a token attends to; None: all
    full_layers: tuple[int, ...] = ()  # layers that attend to all tokens where the others have a window
    norm: Literal["layer", "rms"]
    norm_eps: float
    norm_offset: bool = False  # RMSNorm multiplies by 1 + weight (Gemma)
    positions: Literal["learned", "rope"]
    rope_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    window_rope_base: float | None = None  # of layers with a window, never scaled (Gemma-3); None: as the others
    mlp: Literal["gelu", "swiglu", "geglu"]  # gelu is the tanh approximation, as in GPT-2
    attention_bias: bool  # on the query, key and value projections
    attention_out_bias: bool
    mlp_bias: bool
    qk_norm: Literal["none", "head", "full"] = "none"  # per head (Qwen3) or over the whole projection (OLMo-2)
    norm_place: Literal["pre", "post", "both"] = "pre"  # on inputs of attention and MLP, outputs (OLMo-2), both (Gemma)
    query_scale: float | None = None  # scores are divided by its root; None: head_dim
    score_cap: float | None = None  # attention scores s become cap · tanh(s / cap) (Gemma-2)
    logit_cap: float | None = None  # logits likewise
    embedding_scaled: bool = False  # embeddings are multiplied by √width (Gemma)
    experts: ExpertShape | None = None  # a mixture of experts in place of the MLP
    latent: LatentShape | None = None  # multi-head latent attention; attention_bias is then on its down projections
    tied_head: bool
    init_std: float = 0.02
    causal: bool = True  # False: tokens see later ones too, and the last id is the mask token

    def __post_init__(self) -> None:
        """Refuses shapes that cannot be built."""
        self._check_numbers()
        if self.heads % self.kv_heads:
            raise WrongField("kv_heads", f"is {self.kv_heads}: expected a divisor of the {self.heads} heads")
        if self.window is not None and not self.causal:
            raise WrongField("window", f"is {self.window}: a bidirectional model attends to all tokens")
        if self.query_scale is not None and self.positions != "rope":
            raise WrongField("query_scale", f"is {self.query_scale}: it is implemented for rotary positions")
        if self.latent is not None:
            self._check_latent(self.latent)
        elif self.positions == "rope" and self.head_dim % 2:
            raise WrongField("head_dim", f"is {self.head_dim}: rotary positions need an even one")

    def _check_numbers(self) -> None:
        """Refuses numbers that no model has."""
        numbers = asdict(self)
        for name, most in LARGEST.items():
            check_count(name, numbers[name], most)
        if self.window is not None:
            check_count("window", self.window, LARGEST["context"])
        for name in ("norm_eps", "rope_base", "init_std"):
            if not (math.isfinite(numbers[name]) and numbers[name] >= 0):
                raise WrongField(name, f"is {numbers[name]!r}: expected a finite number, 0 or more")
        for name in ("rope_base", "window_rope_base", "query_scale", "score_cap", "logit_cap"):
            if numbers[name] is not None and not 0 < numbers[name] < math.inf:
                raise WrongField(name, f"is {numbers[name]:g}: expected a number above 0")
        if self.norm_eps > 1:
            raise WrongField("norm_eps", f"is {self.norm_eps!r}: expected at most 1")

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
        wanted: dict[str, object] = {"positions": "rope", "norm": "rms", "qk_norm": "none", "norm_place": "pre"}
        wanted |= dict.fromkeys(("window", "query_scale", "score_cap"))
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise WrongField(name, f"is {getattr(self, name)!r}: latent attention is implemented for {value!r}")

    def window_of(self, layer: int) -> int | None:
        """The sliding window of a layer; None: it attends to all tokens."""
        return None if layer in self.full_layers else self.window

    def has_window_angles(self, layer: int) -> bool:
        """Whether a layer's rotary positions have the base of layers with a window."""
        return self.window_rope_base is not None and layer not in self.full_layers

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts in place of an MLP."""
        return self.experts is not None and layer not in self.experts.dense_layers

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate: three matrices."""
        return self.mlp != "gelu"

    @property
    def active_mlp_width(self) -> int:
        """Hidden numbers of a token in a layer's MLP, or in all experts that read it: the more, where layers differ."""
        if self.experts is None:
            return self.mlp_width
        routed = self.experts.per_token * self.experts.expert_width
        return max(routed, self.mlp_width) if self.experts.dense_layers else routed

    @property
    def query_factor(self) -> float:
        """What queries are multiplied with, because attention divides all scores by √head_dim."""
        return 1.0 if self.query_scale is None else math.sqrt(self.head_dim / self.query_scale)

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
    norms = (4 if config.norm_place == "both" else 2) * config.width * per_norm
    mlps = sum(_mlp_parameters(config, layer) for layer in range(config.layers))

    embeddings = config.vocab_size * config.width * (1 if config.tied_head else 2)
    embeddings += config.context * config.width if config.positions == "learned" else 0
    return embeddings + config.layers * (_attention_parameters(config) + norms) + mlps + config.width * per_norm


def _mlp_parameters(config: DecoderConfig, layer: int) -> int:
    """The parameters of one layer's MLP, or of its experts and their router."""
    matrices, experts = 3 if config.is_gated else 2, config.experts
    if experts is not None and config.has_experts(layer):
        return experts.count * config.width * (matrices * experts.expert_width + 1)
    biases = config.mlp_bias * ((matrices - 1) * config.mlp_width + config.width)
    return matrices * config.width * config.mlp_width + biases


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


def is_served(config: DecoderConfig) -> bool:
    """Whether the CUDA kernels support this shape."""
    return has_usual_blocks(config) and config.head_dim in HEAD_WIDTHS


def has_usual_blocks(config: DecoderConfig) -> bool:
    """The block of Llama, Qwen2 and Qwen3: pre-norm RMS, RoPE, SwiGLU, biases at most on queries, keys and values.

    Attention is the plain one: not latent, without a soft cap or a scale of its own. A window may be there, as long as
    no sequence is longer (`reaches_all`). There are no experts.
    """
    plain = (
        config.norm == "rms" and config.positions == "rope" and config.mlp == "swiglu" and config.norm_place == "pre"
    )
    biases = config.attention_out_bias or config.mlp_bias
    others = (config.latent, config.experts, config.query_scale, config.score_cap, config.window_rope_base)
    scaled = config.norm_offset or config.embedding_scaled
    usual = plain and not biases and not scaled and all(other is None for other in others)
    return usual and config.qk_norm != "full" and config.causal


def reaches_all(config: DecoderConfig, length: int) -> bool:
    """Whether every layer attends to all earlier tokens of a sequence of so many: no window is shorter."""
    return config.window is None or length <= config.window


def require_causal(config: DecoderConfig) -> None:
    """Refuses what a bidirectional model cannot do: predict a token from those before it alone."""
    if not config.causal:
        raise UserError("a bidirectional model predicts masked tokens and continues no text: use a causal model")


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast on CUDA; nothing on a CPU, where bf16 is hundreds of times slower."""
    import torch

    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Launches kernels on this GPU, where a process has several."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switches autocast off, for parts that need fp32 such as the head."""
    import torch

    return torch.autocast(device.type, enabled=False)


def fp32_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with an fp32 result, also of bf16 matrices: logits, and weights' gradients, which sum over many tokens."""
    import torch

    return torch.mm(a, b, out_dtype=torch.float32) if a.dtype is torch.bfloat16 else a @ b


def has_plain_products(layers: Iterable[nn.Module]) -> bool:
    """Whether every projection is `nn.Linear` in fp32 or bf16, in NF4, or has a LoRA adapter; norms are in fp32."""
    import torch
    from torch import nn

    from whet.models.adapters.lora import LoRALinear
    from whet.models.adapters.nf4 import NF4Linear

    joined = (torch.float32, torch.bfloat16)  # dtypes that fused passes read in joined form
    layers = list(layers)
    if any(weight.dtype is not torch.float32 for block in layers for weight in block.parameters() if weight.dim() == 1):
        return False
    parts = (part for block in layers for name, part in block.named_modules() if name.endswith("_proj"))
    return all(
        isinstance(part, LoRALinear | NF4Linear) or (type(part) is nn.Linear and part.weight.dtype in joined)
        for part in parts
    )
