"""Decoders as llama.cpp stores them in GGUF files: the names and layouts of tensors, and the settings of the shape."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whet.errors import UserError
from whet.models.decoder.decoder import Decoder
from whet.models.download.gguf_import import NAMES
from whet.models.layers.attention import rotary_frequencies
from whet.models.layers.decoder_config import DecoderConfig

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATED = ("mlp.gate_proj", "mlp.up_proj")
PARTS = {
    **{module: part for part, module in NAMES.items()},
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "model.embed_positions": "position_embd",
}
POSITIONS, ROPE_FACTORS = "position_embd.weight", "rope_freqs.weight"
IN_FULL = (POSITIONS, ROPE_FACTORS)  # llama.cpp expects them, and all vectors, in fp32


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture of llama.cpp, and how it differs from the layout of our decoder."""

    name: str
    rotates_neighbours: bool = False  # rotary pairs are (2i, 2i + 1) of a head, not (i, i + d/2)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tensors that hold several of ours
    any_head_dim: bool = True  # else heads · head_dim is the width
    out_biases: bool = False  # biases of the attention's output and of the MLP
    rope_factors: bool = False  # frequencies may have factors of their own (Llama 3)


LLAMA = Architecture(name="llama", rotates_neighbours=True, out_biases=True, rope_factors=True)
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": Architecture(name="qwen2", any_head_dim=False),
    "qwen3": Architecture(name="qwen3"),
    "phi3": Architecture(name="phi3", joined={"attn_qkv": QKV, "ffn_up": GATED}, any_head_dim=False),
    "gpt2": Architecture(name="gpt2", joined={"attn_qkv": QKV}, any_head_dim=False, out_biases=True),
}


@dataclass(frozen=True, kw_only=True)
class StoredAs:
    """A tensor of the file: its shape, and a function that makes it when it is written."""

    shape: tuple[int, ...]
    make: Callable[[], Tensor]


def architecture_of(family: str, config: DecoderConfig) -> Architecture:
    """llama.cpp's architecture of a model, which computes the same numbers; refuses a model that it has none for."""
    refuse_family(family)
    found = ARCHITECTURES[family]
    lacking = ""
    if config.heads * config.head_dim != config.width and not found.any_head_dim:
        lacking = f"heads whose widths ({config.heads} · {config.head_dim}) do not add up to that of the model"
    elif (config.attention_out_bias or config.mlp_bias) and not found.out_biases:
        lacking = "biases on the outputs of attention or MLP"
    elif config.rope_scaling is not None and config.rope_scaling.kind == "llama3" and not found.rope_factors:
        lacking = "rope scaling of the kind 'llama3'"
    if lacking:
        raise UserError(f"this {family} model cannot be written as GGUF: llama.cpp's {found.name} has no {lacking}")
    return found


def refuse_family(family: str) -> None:
    """Refuses a family that is not covered."""
    if family not in ARCHITECTURES:
        raise UserError(f"a model of family {family!r} cannot be written as GGUF: only {', '.join(ARCHITECTURES)} can")


def shape_settings(architecture: Architecture, config: DecoderConfig) -> dict[str, Any]:
    """The settings that describe the shape.

    The context ends where a sliding window would begin: llama.cpp has none for these architectures.
    """
    settings: dict[str, Any] = {
        "block_count": config.layers,
        "context_length": min(config.context, config.window or config.context),
        "embedding_length": config.width,
        "feed_forward_length": config.mlp_width,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
    }
    if config.norm == "rms":
        settings["attention.layer_norm_rms_epsilon"] = config.norm_eps
    else:
        settings["attention.layer_norm_epsilon"] = config.norm_eps
    if config.positions == "rope":
        settings |= {
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
            "rope.dimension_count": config.head_dim,
            "rope.freq_base": config.rope_base,
        }
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        settings |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    return {f"{architecture.name}.{key}": value for key, value in settings.items()}


def stored_tensors(
    architecture: Architecture, model: Decoder, change: Callable[[str, Tensor], Tensor]
) -> dict[str, StoredAs]:
    """The tensors of the file by name.

    `change` is applied to each of our tensors, by its own name, before it is rearranged.
    """
    weights = model.state_dict()
    whole = {parts[0]: name for name, parts in architecture.joined.items()}
    inner = {part for parts in architecture.joined.values() for part in parts[1:]}
    stored: dict[str, StoredAs] = {}
    if _has_factors(model.config):
        stored[ROPE_FACTORS] = StoredAs(
            shape=(model.config.rotary_dim // 2,), make=partial(_rope_factors, model.config)
        )
    for name in weights:
        prefix, module, suffix = _parts(name)
        if module in inner:
            continue
        pieces = architecture.joined[whole[module]] if module in whole else (module,)
        names = [name.replace(module, piece) for piece in pieces]
        rows = sum(len(weights[one]) for one in names)
        stored[f"{prefix}{whole.get(module) or PARTS[module]}.{suffix}"] = StoredAs(
            shape=(rows, *weights[name].shape[1:]),
            make=partial(_made, architecture, model.config, {one: weights[one] for one in names}, change),
        )
    return stored


def neighbours(weight: Tensor, *, heads: int) -> Tensor:
    """Rotary pairs (i, i + d/2) of a head's rows become (2i, 2i + 1)."""
    return weight.view(heads, 2, len(weight) // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def _made(
    architecture: Architecture, config: DecoderConfig, pieces: Mapping[str, Tensor], change: Callable[..., Tensor]
) -> Tensor:
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads} if architecture.rotates_neighbours else {}
    made = []
    for name, tensor in pieces.items():
        changed, part = change(name, tensor), name.split(".")[-2]
        made.append(neighbours(changed, heads=heads[part]) if part in heads else changed)
    return torch.cat(made) if len(made) > 1 else made[0].contiguous()


def _has_factors(config: DecoderConfig) -> bool:
    return config.rope_scaling is not None and config.rope_scaling.kind == "llama3"


def _rope_factors(config: DecoderConfig) -> Tensor:
    """What each rotary frequency is divided by."""
    here = torch.device("cpu")
    return rotary_frequencies(replace(config, rope_scaling=None), here) / rotary_frequencies(config, here)


def _parts(name: str) -> tuple[str, str, str]:
    """model.layers.3.mlp.up_proj.weight → blk.3., mlp.up_proj, weight."""
    module, _, suffix = name.rpartition(".")
    if not module.startswith("model.layers."):
        return "", module, suffix
    layer, _, inner = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.", inner, suffix
