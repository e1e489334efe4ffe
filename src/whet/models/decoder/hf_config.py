"""Reading single values out of a Hugging Face config.json, where a key may be absent, null, or of the wrong type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from whet.errors import UserError
from whet.models.layers.decoder_config import DecoderConfig, RopeScaling, WrongField

T = TypeVar("T", int, float, bool, str, dict[str, Any], list[Any])

# Fields of DecoderConfig → what config.json calls them, where that is something else.
GPT2_KEYS = {
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "kv_heads": "n_head",
    "mlp_width": "n_inner",
    "context": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "init_std": "initializer_range",
}
LLAMA_KEYS = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "mlp_width": "intermediate_size",
    "context": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_base": "rope_theta",
    "init_std": "initializer_range",
}


class NotCovered(UserError):
    """A checkpoint that the decoder cannot represent exactly; transformers may."""


def read_shape(
    read: Callable[[Mapping[str, Any]], DecoderConfig], keys: Mapping[str, str], hf: Mapping[str, Any]
) -> DecoderConfig:
    """What `read` makes of a config.json; errors name its keys."""
    try:
        config = read(hf)
    except WrongField as error:
        raise UserError(f"{keys.get(error.field, error.field)!r} {error.problem}") from error
    ends = hf.get("eos_token_id")
    for end in ends if isinstance(ends, list) else [ends]:
        if type(end) is int and end >= config.vocab_size:
            raise UserError(f"'eos_token_id' is {end}: expected an id below 'vocab_size', which is {config.vocab_size}")
    return config


def entry(hf: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """The value, checked; the default stands in for an absent or null key, which transformers reads alike."""
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
    """Refuses a value that the decoder does not compute; an absent or null key is fine."""
    if hf.get(name) is not None and hf[name] not in allowed:
        raise NotCovered(f"{name} is {hf[name]!r}, which the decoder does not have")


def read_rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """The base and the scaling. transformers 4 writes rope_theta and rope_scaling, transformers 5 rope_parameters."""
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
        "rope_theta": config.rope_base,
        "rope_scaling": None if scaling is None else scaled,
        "rope_parameters": {**scaled, "rope_theta": config.rope_base},
    }
