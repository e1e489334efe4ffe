"""What a family is, and how values are read from a config.json. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from whet.errors import UserError
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.part_shapes import RopeScaling, WrongField

if TYPE_CHECKING:
    from torch import Tensor

Weights = dict[str, "Tensor"]
WriteConfig = Callable[[DecoderConfig], dict[str, Any]]
T = TypeVar("T", int, float, bool, str, dict[str, Any], list[Any])

# Of Llama; Qwen, OLMo-2 and DeepSeek differ by a few.
LLAMA_KEYS = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp_width": "intermediate_size",
    "context": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_base": "rope_theta",
    "init_std": "initializer_range",
    "tied_head": "tie_word_embeddings",
}
LLAMA_TRAITS: Mapping[str, Any] = {
    "norm": "rms",
    "norm_eps": 1e-6,
    "positions": "rope",
    "mlp": "swiglu",
    "attention_bias": False,
    "attention_out_bias": False,
    "mlp_bias": False,
    "tied_head": False,
}


class NotCovered(UserError):
    """A checkpoint that the decoder cannot represent exactly; transformers may."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Everything that is particular to one `model_type`."""

    model_type: str
    architecture: str  # the class that transformers builds
    traits: Mapping[str, Any]  # fields of DecoderConfig that are the same for every newly made model of the family
    read: Callable[[Mapping[str, Any]], DecoderConfig]  # from config.json
    write: WriteConfig  # the keys of config.json that `keys` does not name
    keys: Mapping[str, str]  # field of DecoderConfig → its key in config.json
    stored_name: Callable[[str], str | None]  # canonical name of a stored tensor; None for buffers
    import_weights: Callable[[Weights], Weights]  # stored names and layouts → the decoder's
    export_weights: Callable[[Weights], Weights]
    stored_layer: Callable[[str], str] = str  # the decoder's name of a linear layer → the stored one that holds it
    transposed: bool = False  # layers are stored as (in, out)
    unset: tuple[str, ...] = ("bos_token_id", "eos_token_id")  # null if not stated: transformers has ids of its own
    usual_latent: Callable[[int, int], dict[str, int | None]] | None = None  # LatentShape of a new model: width, heads
    usual_parts: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None  # more fields of a new model's shape


def head_width(width: int, heads: int) -> int:
    """The default width of a head: width / heads."""
    if heads < 1 or width % heads:
        raise WrongField("width", f"is {width}, which cannot be divided among {heads} heads evenly: use a multiple")
    return width // heads


def entry(hf: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """The value of a key, of the right type; an absent or null key has the default, as in transformers."""
    value = hf.get(name)
    if value is None:
        value = default
    if value is None:
        raise UserError(f"{name!r} is missing")
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind:
        raise UserError(f"{name!r} is {value!r:.60}: expected {kind.__name__}")
    return value


def require(hf: Mapping[str, Any], name: str, *allowed: Any) -> None:
    """Raises NotCovered for a value that the decoder does not implement; an absent or null key is fine."""
    if hf.get(name) is not None and hf[name] not in allowed:
        raise NotCovered(f"{name} is {hf[name]!r}, which the decoder does not have")


KINDS: Mapping[str, type] = {
    "norm_eps": float,
    "rope_base": float,
    "init_std": float,
    "tied_head": bool,
}  # of fields; the others are int


def read_fields(hf: Mapping[str, Any], keys: Mapping[str, str], **defaults: Any) -> dict[str, Any]:
    """The fields of DecoderConfig that are keys of config.json; one without a default must be there."""
    return {field: entry(hf, key, KINDS.get(field, int), defaults.get(field)) for field, key in keys.items()}


def read_rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling of RoPE: keys rope_theta and rope_scaling in transformers 4, rope_parameters in 5."""
    rope = entry(hf, "rope_scaling", dict, {}) or entry(hf, "rope_parameters", dict, {})
    base = entry(rope, "rope_theta", float, entry(hf, "rope_theta", float, 10000.0))
    kind = entry(rope, "rope_type", str, entry(rope, "type", str, "default"))
    for place in (hf, rope):
        require(place, "partial_rotary_factor", 1.0)
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, RopeScaling(kind="linear", factor=entry(rope, "factor", float))
    if kind == "llama3":
        scaling = RopeScaling(
            kind="llama3",
            factor=entry(rope, "factor", float),
            low_frequency_factor=entry(rope, "low_freq_factor", float),
            high_frequency_factor=entry(rope, "high_freq_factor", float),
            original_context=entry(rope, "original_max_position_embeddings", int),
        )
        return base, scaling
    raise NotCovered(f"rope scaling {kind!r} is not supported by the decoder: it knows default, linear and llama3")


def write_rope(config: DecoderConfig) -> dict[str, Any]:
    """Both spellings, so that transformers 4 and 5 read the same numbers."""
    scaling = config.rope_scaling
    scaled: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        scaled = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            scaled["low_freq_factor"] = scaling.low_frequency_factor
            scaled["high_freq_factor"] = scaling.high_frequency_factor
            scaled["original_max_position_embeddings"] = scaling.original_context
    return {
        "rope_scaling": None if scaling is None else scaled,
        "rope_parameters": {**scaled, "rope_theta": config.rope_base},
    }
