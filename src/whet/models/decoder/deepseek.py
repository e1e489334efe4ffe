"""DeepSeek-V2 and V3 as transformers stores them, as far as their layers have no experts: latent attention."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from whet.models.decoder.family import (
    LLAMA_KEYS,
    LLAMA_TRAITS,
    Family,
    NotCovered,
    entry,
    head_width,
    read_fields,
    read_rope,
    require,
    write_rope,
)
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.part_shapes import LatentShape

KEYS = {field: key for field, key in LLAMA_KEYS.items() if field != "head_dim"}  # that follows from the latent shape
LATENT_KEYS = {  # field of LatentShape → its key in config.json
    "q_rank": "q_lora_rank",
    "kv_rank": "kv_lora_rank",
    "nope_dim": "qk_nope_head_dim",
    "rope_dim": "qk_rope_head_dim",
    "value_dim": "v_head_dim",
}
DEFAULTS = {"q_rank": 1536, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}  # transformers'
DENSE_LAYERS = {"deepseek_v2": 0, "deepseek_v3": 3}  # transformers' default of first_k_dense_replace


def usual_latent(width: int, heads: int) -> dict[str, int | None]:
    """Widths of a new model's latents, from d = width / heads.

    As in DeepSeek-V2 (§2.1.4) kv_rank is 4 d, but at most half of the width, and rope_dim is d / 2, made even; heads
    and values are d wide, and q_rank is a quarter of the width.
    """
    d = head_width(width, heads)
    return {
        "q_rank": max(1, width // 4),
        "kv_rank": max(1, min(4 * d, width // 2)),
        "nope_dim": d,
        "rope_dim": 2 * -(-d // 4),
        "value_dim": d,
    }


def deepseek(model_type: str, architecture: str) -> Family:
    """The row of one of both versions."""
    return Family(
        model_type=model_type,
        architecture=architecture,
        traits=LLAMA_TRAITS,
        usual_latent=usual_latent,
        read=partial(_read, model_type=model_type),
        keys=KEYS,
        write=partial(_write, model_type=model_type),
        stored_name=lambda name: None if name.endswith("rotary_emb.inv_freq") else name,
        import_weights=dict,
        export_weights=dict,
    )


def _read(hf: Mapping[str, Any], model_type: str) -> DecoderConfig:
    require(hf, "hidden_act", "silu")
    layers, heads = entry(hf, "num_hidden_layers", int), entry(hf, "num_attention_heads", int)
    if entry(hf, "first_k_dense_replace", int, DENSE_LAYERS[model_type]) < layers:
        raise NotCovered("first_k_dense_replace leaves layers with experts, which the decoder does not have")
    base, scaling = read_rope(hf)
    for place in ("rope_scaling", "rope_parameters"):
        if scaling is not None:
            require(entry(hf, place, dict, {}), "mscale_all_dim", 0, 0.0)  # transformers scales the scores by it
    usual = {field: LLAMA_TRAITS[field] for field in ("norm_eps", "tied_head")}
    defaults = {**usual, "rope_base": base, "init_std": 0.02}
    shape = read_fields(hf, KEYS, kv_heads=heads, **defaults)
    latent = _read_latent(hf, model_type)
    bias = entry(hf, "attention_bias", bool, False)
    shape |= {
        "head_dim": latent.head_dim,
        "latent": latent,
        "rope_base": base,
        "rope_scaling": scaling,
        "attention_bias": bias,
        "attention_out_bias": bias,
        "mlp_bias": model_type == "deepseek_v2" and entry(hf, "mlp_bias", bool, False),
    }
    return DecoderConfig(**{**LLAMA_TRAITS, **shape})


def _read_latent(hf: Mapping[str, Any], model_type: str) -> LatentShape:
    sizes: dict[str, Any] = {field: entry(hf, key, int, DEFAULTS[field]) for field, key in LATENT_KEYS.items()}
    if "q_lora_rank" in hf and hf["q_lora_rank"] is None:  # an absent key has the default, null is a value
        sizes["q_rank"] = None
    interleaved = model_type == "deepseek_v2" or entry(hf, "rope_interleave", bool, True)
    return LatentShape(**sizes, interleaved=interleaved)


def _write(config: DecoderConfig, model_type: str) -> dict[str, Any]:
    latent = config.latent
    assert latent is not None
    own: dict[str, Any] = {"mlp_bias": config.mlp_bias}
    if model_type == "deepseek_v3":  # which has no biases in MLPs; layers that predict further tokens are not saved
        own = {"rope_interleave": latent.interleaved, "num_nextn_predict_layers": 0}
    return {
        "hidden_act": "silu",
        "attention_bias": config.attention_bias,
        "first_k_dense_replace": config.layers,
        **{key: getattr(latent, field) for field, key in LATENT_KEYS.items()},
        **own,
        **write_rope(config),
    }
