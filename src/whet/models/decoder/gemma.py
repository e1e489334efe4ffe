"""Gemma-2 and Gemma-3 (text) as transformers stores them: norms on both sides, sliding windows on most layers.

Gemma Team 2024, arXiv 2408.00118, and 2025, arXiv 2503.19786. The decoder carries their names of weights already.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from whet.errors import UserError
from whet.models.decoder.family import (
    LLAMA_KEYS,
    LLAMA_TRAITS,
    Family,
    NotCovered,
    entry,
    read_fields,
    read_rope,
    require,
    write_rope,
)
from whet.models.layers.decoder_config import LARGEST, DecoderConfig
from whet.models.layers.part_shapes import RopeScaling, check_count

SLIDING, FULL = "sliding_attention", "full_attention"  # of the key layer_types
TRAITS: Mapping[str, Any] = {
    **LLAMA_TRAITS,
    "mlp": "geglu",
    "norm_place": "both",
    "norm_offset": True,
    "embedding_scaled": True,
    "tied_head": True,
}
OWN: Mapping[str, Mapping[str, Any]] = {  # traits of the two, which are also transformers' values of absent keys
    "gemma2": {"window": 4096, "score_cap": 50.0, "logit_cap": 30.0},
    "gemma3_text": {"window": 4096, "qk_norm": "head", "rope_base": 1e6, "window_rope_base": 10000.0},
}
PATTERNS = {"gemma2": 2, "gemma3_text": 6}  # every so many layers one attends to all tokens
CAP_KEYS = {"score_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}
KEYS = {**LLAMA_KEYS, "window": "sliding_window", "query_scale": "query_pre_attn_scalar", **CAP_KEYS}


def gemma(model_type: str, architecture: str) -> Family:
    """The row of one of both versions."""
    return Family(
        model_type=model_type,
        architecture=architecture,
        traits={**TRAITS, **OWN[model_type]},
        read=partial(_read, model_type=model_type),
        keys=KEYS,
        write=partial(_write, model_type=model_type),
        stored_name=lambda name: None if name.endswith("rotary_emb.inv_freq") else name,
        import_weights=dict,
        export_weights=dict,
        unset=("bos_token_id", "eos_token_id", "pad_token_id"),
        usual_parts=lambda shape: {"full_layers": _full_layers(shape["layers"], PATTERNS[model_type])},
    )


def _full_layers(layers: int, every: int) -> tuple[int, ...]:
    check_count("layers", layers, LARGEST["layers"])  # before a list as long is made
    return tuple(range(every - 1, layers, every))


def _read(hf: Mapping[str, Any], model_type: str) -> DecoderConfig:
    require(hf, "hidden_activation", "gelu_pytorch_tanh")
    require(hf, "use_bidirectional_attention", False)
    own = OWN[model_type]
    base, scaling, window_base = _read_rope(hf, model_type)
    shape = read_fields(
        hf,
        LLAMA_KEYS,
        kv_heads=4,
        head_dim=256,
        norm_eps=TRAITS["norm_eps"],
        rope_base=base,
        init_std=0.02,
        tied_head=True,
    )
    bias = entry(hf, "attention_bias", bool, False)
    shape |= {
        "window": None if _is_null(hf, "sliding_window") else entry(hf, "sliding_window", int, own["window"]),
        "full_layers": _read_layers(hf, shape["layers"], model_type),
        "rope_base": base,
        "rope_scaling": scaling,
        "window_rope_base": window_base,
        "query_scale": entry(hf, "query_pre_attn_scalar", float, 256.0),
        **{field: _read_cap(hf, key, own.get(field)) for field, key in CAP_KEYS.items()},
        "attention_bias": bias,
        "attention_out_bias": bias,
    }
    if model_type == "gemma3_text" and shape["score_cap"] is not None:
        raise NotCovered("attn_logit_softcapping is set, which transformers ignores in Gemma-3")
    return DecoderConfig(**{**TRAITS, **own, **shape})


def _is_null(hf: Mapping[str, Any], key: str) -> bool:
    """Whether a key is there and null: an absent one has the default of transformers."""
    return key in hf and hf[key] is None


def _read_cap(hf: Mapping[str, Any], key: str, default: float | None) -> float | None:
    return entry(hf, key, float) if hf.get(key) is not None else None if key in hf else default


def _read_layers(hf: Mapping[str, Any], layers: int, model_type: str) -> tuple[int, ...]:
    """Which layers attend to all tokens: layer_types, or by the pattern that older files state as a number."""
    if hf.get("layer_types") is None:
        named = ("sliding_window_pattern", "_sliding_window_pattern") if model_type == "gemma3_text" else ()
        stated = next((key for key in named if hf.get(key) is not None), "")
        every = entry(hf, stated, int, PATTERNS[model_type])
        if every < 1:
            raise UserError(f"{stated!r} is {every}: expected a whole number above 0")
        return _full_layers(layers, every)
    kinds = entry(hf, "layer_types", list)
    if len(kinds) != layers or any(kind not in (SLIDING, FULL) for kind in kinds):
        raise NotCovered(f"layer_types is not {layers} times {SLIDING} or {FULL}")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == FULL)


def _read_rope(hf: Mapping[str, Any], model_type: str) -> tuple[float, RopeScaling | None, float | None]:
    """Base and scaling of layers that attend to all tokens, and the base of the others.

    Gemma-3: rope_theta, rope_scaling and rope_local_base_freq in transformers 4, rope_parameters by kind of layer in 5.
    """
    if model_type == "gemma2":
        return (*read_rope(hf), None)
    own, nested = OWN[model_type], entry(hf, "rope_parameters", dict, {})
    full, local = (entry(nested, kind, dict, {}) for kind in (FULL, SLIDING))
    require(local, "rope_type", "default")
    stated = {"rope_theta": entry(hf, "rope_theta", float, own["rope_base"]), "rope_scaling": hf.get("rope_scaling")}
    base, scaling = read_rope({**stated, "rope_parameters": full})
    local_base = entry(hf, "rope_local_base_freq", float, own["window_rope_base"])
    return base, scaling, entry(local, "rope_theta", float, local_base)


def _write(config: DecoderConfig, model_type: str) -> dict[str, Any]:
    kinds = [FULL if layer in config.full_layers else SLIDING for layer in range(config.layers)]
    scale = config.head_dim if config.query_scale is None else config.query_scale
    rope = write_rope(config)
    if model_type == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": config.window_rope_base}
        rope["rope_local_base_freq"] = config.window_rope_base
        rope["rope_parameters"] = {FULL: rope["rope_parameters"], SLIDING: local}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": config.attention_bias,
        "query_pre_attn_scalar": int(scale) if scale == int(scale) else scale,
        "layer_types": kinds,
        **{key: getattr(config, field) for field, key in CAP_KEYS.items()},
        **rope,
    }
