"""The architectures that the decoder covers, and how each is stored in a Hugging Face checkpoint.

A family converts config.json to a `DecoderConfig` and back, and stored tensors to the decoder's names and back. Adding
one is a row of `FAMILIES`. An architecture that no row covers raises `NotCovered`, and transformers runs it instead.
Reading a config.json imports no torch.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from whet.errors import UserError
from whet.late_torch import torch
from whet.models.decoder.deepseek import LATENT_KEYS, deepseek
from whet.models.decoder.family import (
    LLAMA_KEYS,
    LLAMA_TRAITS,
    Family,
    NotCovered,
    Weights,
    entry,
    head_width,
    read_fields,
    read_rope,
    require,
    write_rope,
)
from whet.models.decoder.gemma import gemma
from whet.models.decoder.mixtures import EXPERT_KEYS, with_experts
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.part_shapes import WrongField
from whet.models.protocol import BIDIRECTIONAL


def family_named(name: str) -> Family:
    """The row of the table."""
    if name not in FAMILIES:
        raise UserError(f"unknown model family {name!r}: choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def export_config(family: Family, config: DecoderConfig, source: Mapping[str, Any]) -> dict[str, Any]:
    """config.json: the shape from `config`, everything else (token ids, …) as the source had it."""
    kind: dict[str, Any] = {"architectures": [family.architecture], "model_type": family.model_type}
    if not config.causal:
        kind = {
            "architectures": [f"Bidirectional{family.architecture}"],
            "model_type": f"{BIDIRECTIONAL}{family.model_type}",
            "mask_token_id": config.vocab_size - 1,
        }
    stated = {
        **kind,
        "dtype": "float32",
        "torch_dtype": "float32",  # the older name of dtype
        **{key: getattr(config, field) for field, key in family.keys.items()},
    }
    return {**dict.fromkeys(family.unset), **source, **stated, **family.write(config)}


def read_shape(family: Family, hf: Mapping[str, Any]) -> DecoderConfig:
    """The shape that a config.json describes; errors name its keys."""
    require(hf, "is_causal", True)  # transformers lets tokens see later ones without it
    try:
        config = family.read(hf)
    except WrongField as error:
        keys = {**LATENT_KEYS, **EXPERT_KEYS, **family.keys}
        raise UserError(f"{keys.get(error.field, error.field)!r} {error.problem}") from error
    ends = hf.get("eos_token_id")
    for end in ends if isinstance(ends, list) else [ends]:
        if type(end) is int and end >= config.vocab_size:
            raise UserError(f"'eos_token_id' is {end}: expected an id below 'vocab_size', which is {config.vocab_size}")
    return config


# GPT-2


GPT2_TRAITS: Mapping[str, Any] = {
    "norm": "layer",
    "norm_eps": 1e-5,
    "positions": "learned",
    "mlp": "gelu",
    "attention_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
    "tied_head": True,
}
GPT2_KEYS = {
    "vocab_size": "vocab_size",
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "kv_heads": "n_head",
    "mlp_width": "n_inner",
    "context": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "init_std": "initializer_range",
    "tied_head": "tie_word_embeddings",
}
GPT2_NAMES = {  # parts of stored names → of the decoder's
    "transformer.wte.": "model.embed_tokens.",
    "transformer.wpe.": "model.embed_positions.",
    "transformer.ln_f.": "model.norm.",
    "transformer.h.": "model.layers.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".attn.c_attn.": ".self_attn.q_proj.",  # keys and values are stored beside the queries
    ".attn.c_proj.": ".self_attn.o_proj.",
    ".mlp.c_fc.": ".mlp.up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
}
QKV = ("q_proj", "k_proj", "v_proj")
GATES = ("gate_proj", "up_proj")
WINDOWS: Mapping[str, int | None] = {"mistral": 4096, "phi3": None}  # transformers' sliding_window of an absent key
GPT2_BUFFER = re.compile(r"\.attn\.(bias|masked_bias)$")  # causal masks that old versions saved


def _read_gpt2(hf: Mapping[str, Any]) -> DecoderConfig:
    require(hf, "activation_function", "gelu_new", "gelu_pytorch_tanh")
    require(hf, "scale_attn_weights", True)
    require(hf, "scale_attn_by_inverse_layer_idx", False)
    require(hf, "add_cross_attention", False)
    width, heads = entry(hf, "n_embd", int), entry(hf, "n_head", int)
    shape = read_fields(hf, GPT2_KEYS, mlp_width=4 * width, norm_eps=1e-5, init_std=0.02, tied_head=True)
    return DecoderConfig(**{**GPT2_TRAITS, **shape, "head_dim": head_width(width, heads)})


def _gpt2_stored_name(name: str) -> str | None:
    if GPT2_BUFFER.search(name):
        return None
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def _import_gpt2(stored: Weights) -> Weights:
    weights: Weights = {}
    for stored_name, tensor in stored.items():
        name = _renamed(stored_name, GPT2_NAMES.items())
        if ".q_proj." in name:
            for part, piece in zip(QKV, tensor.chunk(3, dim=-1), strict=True):
                weights[name.replace(QKV[0], part)] = piece.t().clone(memory_format=torch.contiguous_format)
        else:  # Conv1D stores (in, out); t() keeps vectors
            weights[name] = tensor.t().contiguous() if "_proj." in name else tensor
    return weights


def _export_gpt2(weights: Weights) -> Weights:
    stored: Weights = {}
    for name, tensor in weights.items():
        if ".k_proj." in name or ".v_proj." in name:
            continue
        joined = torch.cat([weights[name.replace(QKV[0], part)] for part in QKV]) if ".q_proj." in name else tensor
        stored_name = _renamed(name, ((ours, theirs) for theirs, ours in GPT2_NAMES.items()))
        stored[stored_name] = joined.t() if "_proj." in name else joined
    return stored


def _gpt2_stored_layer(name: str) -> str:
    leaf = name.rpartition(".")[2]
    ours = name.removesuffix(leaf) + (QKV[0] if leaf in QKV else leaf)
    return _renamed(f"{ours}.", ((ours, theirs) for theirs, ours in GPT2_NAMES.items())).removesuffix(".")


def _renamed(name: str, replaced: Iterable[tuple[str, str]]) -> str:
    for old, new in replaced:
        name = name.replace(old, new)
    return name


# Llama, Mistral, Qwen, OLMo: the decoder carries their names already


def _llama_like(model_type: str, architecture: str, **own: Any) -> Family:
    """A family that differs from Llama by some traits."""
    traits = {**LLAMA_TRAITS, **own}
    return Family(
        model_type=model_type,
        architecture=architecture,
        traits=traits,
        read=partial(_read_llama_like, model_type=model_type, traits=traits),
        keys=LLAMA_KEYS,
        write=_write_llama_like,
        stored_name=lambda name: None if name.endswith("rotary_emb.inv_freq") else name,
        import_weights=dict,
        export_weights=dict,
    )


def _read_llama_like(hf: Mapping[str, Any], model_type: str, traits: Mapping[str, Any]) -> DecoderConfig:
    require(hf, "hidden_act", "silu")
    require(hf, "use_sliding_window", False)
    if any(kind != "full_attention" for kind in entry(hf, "layer_types", list, [])):
        raise NotCovered("layer_types names layers without full attention, which the decoder does not have")
    width, heads = entry(hf, "hidden_size", int), entry(hf, "num_attention_heads", int)
    base, scaling = read_rope(hf)
    attention_bias = traits["attention_bias"] or entry(hf, "attention_bias", bool, False)
    shape = read_fields(
        hf,
        LLAMA_KEYS,
        kv_heads=heads,
        head_dim=entry(hf, "head_dim", int, 128 if model_type == "qwen3" else head_width(width, heads)),
        norm_eps=traits["norm_eps"],
        rope_base=base,
        init_std=0.02,
        tied_head=traits["tied_head"],
    )
    shape |= {
        "window": _window(hf, WINDOWS[model_type]) if model_type in WINDOWS else None,
        "rope_base": base,
        "rope_scaling": scaling,
        "attention_bias": attention_bias,
        "attention_out_bias": attention_bias and model_type != "qwen2",
        "mlp_bias": model_type == "llama" and entry(hf, "mlp_bias", bool, False),
    }
    return DecoderConfig(**{**traits, **shape})


def _window(hf: Mapping[str, Any], default: int | None) -> int | None:
    """The sliding window; null is none, an absent key has the family's default."""
    return (
        entry(hf, "sliding_window", int)
        if hf.get("sliding_window") is not None
        else None
        if "sliding_window" in hf
        else default
    )


def _write_llama_like(config: DecoderConfig) -> dict[str, Any]:
    biases = {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias}
    return {"hidden_act": "silu", **biases, **write_rope(config)}


def _write_windowed(config: DecoderConfig) -> dict[str, Any]:
    return {"hidden_act": "silu", "sliding_window": config.window, **write_rope(config)}


# Phi-3: Llama with queries, keys and values, and gate and up projection, stored as one


PHI3_JOINED = {"qkv_proj": QKV, "gate_up_proj": GATES}


def _phi3_stored_layer(name: str) -> str:
    leaf = name.rpartition(".")[2]
    return name.removesuffix(leaf) + next((whole for whole, parts in PHI3_JOINED.items() if leaf in parts), leaf)


def _import_phi3(stored: Weights) -> Weights:
    weights: Weights = {}
    for name, tensor in stored.items():
        if ".qkv_proj." in name:
            queries = stored[name.replace("qkv_proj", "o_proj")].shape[1]  # as many as o_proj takes
            shared = (len(tensor) - queries) // 2
            for part, piece in zip(QKV, torch.split(tensor, [queries, shared, shared]), strict=True):
                weights[name.replace("qkv_proj", part)] = piece.clone()
        elif ".gate_up_proj." in name:
            for part, piece in zip(GATES, tensor.chunk(2), strict=True):
                weights[name.replace("gate_up_proj", part)] = piece.clone()
        else:
            weights[name] = tensor
    return weights


def _export_phi3(weights: Weights) -> Weights:
    stored: Weights = {}
    joined = {parts[0]: (parts, whole) for whole, parts in PHI3_JOINED.items()}
    for name, tensor in weights.items():
        leaf = name.removesuffix(".weight").rpartition(".")[2]
        if leaf in joined:
            parts, whole = joined[leaf]
            stored[name.replace(leaf, whole)] = torch.cat([weights[name.replace(leaf, part)] for part in parts])
        elif leaf not in (*QKV, *GATES):
            stored[name] = tensor
    return stored


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        traits=GPT2_TRAITS,
        read=_read_gpt2,
        keys=GPT2_KEYS,
        write=lambda _: {"activation_function": "gelu_new"},
        stored_name=_gpt2_stored_name,
        import_weights=_import_gpt2,
        export_weights=_export_gpt2,
        stored_layer=_gpt2_stored_layer,
        transposed=True,
    ),
    "llama": _llama_like("llama", "LlamaForCausalLM"),
    "mistral": replace(_llama_like("mistral", "MistralForCausalLM"), write=_write_windowed),
    "phi3": replace(
        _llama_like("phi3", "Phi3ForCausalLM", norm_eps=1e-5),
        write=_write_windowed,
        import_weights=_import_phi3,
        export_weights=_export_phi3,
        stored_layer=_phi3_stored_layer,
        unset=("bos_token_id", "eos_token_id", "pad_token_id"),
    ),
    "qwen2": _llama_like("qwen2", "Qwen2ForCausalLM", attention_bias=True),
    "qwen3": _llama_like("qwen3", "Qwen3ForCausalLM", qk_norm="head"),
    "qwen3_moe": with_experts(_llama_like("qwen3_moe", "Qwen3MoeForCausalLM", qk_norm="head")),
    "olmo2": _llama_like("olmo2", "Olmo2ForCausalLM", norm_eps=1e-5, qk_norm="full", norm_place="post"),
    "olmoe": with_experts(_llama_like("olmoe", "OlmoeForCausalLM", norm_eps=1e-5, qk_norm="full")),
    "gemma2": gemma("gemma2", "Gemma2ForCausalLM"),
    "gemma3_text": gemma("gemma3_text", "Gemma3ForCausalLM"),
    "deepseek_v2": deepseek("deepseek_v2", "DeepseekV2ForCausalLM"),
    "deepseek_v3": deepseek("deepseek_v3", "DeepseekV3ForCausalLM"),
}
