"""The table of architectures that the decoder covers, and how each is written in a Hugging Face checkpoint.

A family turns config.json into a `DecoderConfig` and back, and tensors into the decoder's names and back. Adding one
is a row of `FAMILIES`. What a row does not cover raises `NotCovered`, and transformers runs the model instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.errors import UserError
from whet.models.decoder.hf_config import GPT2_KEYS, LLAMA_KEYS, NotCovered, entry, read_rope, require, write_rope
from whet.models.layers.decoder_config import DecoderConfig, WrongField

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row: everything that is particular to a `model_type`."""

    model_type: str
    architecture: str  # the class that transformers builds
    traits: Mapping[str, Any]  # fields of DecoderConfig that a model of this family made from nothing has
    read: Callable[[Mapping[str, Any]], DecoderConfig]  # config.json → ours
    write: Callable[[DecoderConfig], dict[str, Any]]  # ours → the shape keys of config.json
    keys: Mapping[str, str]  # fields of DecoderConfig → what config.json calls them, for messages
    stored_name: Callable[[str], str | None]  # one spelling for every tensor; None for buffers that are no weights
    import_weights: Callable[[Weights], Weights]  # stored names and layouts → the decoder's
    export_weights: Callable[[Weights], Weights]


def family_named(name: str) -> Family:
    """The row of the table."""
    if name not in FAMILIES:
        raise UserError(f"unknown model family {name!r}: choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def head_width(width: int, heads: int) -> int:
    """The width of one head where nothing else is said."""
    if heads < 1 or width % heads:
        raise WrongField("width", f"is {width}, which cannot be divided among {heads} heads evenly: use a multiple")
    return width // heads


def export_config(family: Family, config: DecoderConfig, source: Mapping[str, Any]) -> dict[str, Any]:
    """config.json: what the source said about everything else (token ids, …), and the shape as it is."""
    tokens = {"bos_token_id": None, "eos_token_id": None}  # or transformers assumes the ids of the original model
    stated = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied_head,
        "initializer_range": config.init_std,
        "dtype": "float32",
        "torch_dtype": "float32",  # the older name of dtype
    }
    return {**tokens, **source, **stated, **family.write(config)}


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
GPT2_MODULES = {
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
GPT2_TOP = {
    "transformer.wte": "model.embed_tokens",
    "transformer.wpe": "model.embed_positions",
    "transformer.ln_f": "model.norm",
}
GPT2_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")  # stored side by side as attn.c_attn
GPT2_BUFFER = re.compile(r"\.attn\.(bias|masked_bias)$")  # causal masks that old versions saved


def _read_gpt2(hf: Mapping[str, Any]) -> DecoderConfig:
    require(hf, "activation_function", "gelu_new", "gelu_pytorch_tanh")
    require(hf, "scale_attn_weights", True)
    require(hf, "scale_attn_by_inverse_layer_idx", False)
    require(hf, "add_cross_attention", False)
    width, heads = entry(hf, "n_embd", int), entry(hf, "n_head", int)
    shape: dict[str, Any] = {
        "vocab_size": entry(hf, "vocab_size", int),
        "layers": entry(hf, "n_layer", int),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": head_width(width, heads),
        "width": width,
        "mlp_width": entry(hf, "n_inner", int, 4 * width),
        "context": entry(hf, "n_positions", int),
        "norm_eps": entry(hf, "layer_norm_epsilon", float, 1e-5),
        "tied_head": entry(hf, "tie_word_embeddings", bool, True),
        "init_std": entry(hf, "initializer_range", float, 0.02),
    }
    return DecoderConfig(**{**GPT2_TRAITS, **shape})


def _write_gpt2(config: DecoderConfig) -> dict[str, Any]:
    return {
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": config.context,
        "n_inner": config.mlp_width,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": "gelu_new",
    }


def _gpt2_stored_name(name: str) -> str | None:
    if GPT2_BUFFER.search(name):
        return None
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def _import_gpt2(stored: Weights) -> Weights:
    weights: Weights = {}
    for name, tensor in stored.items():
        module, leaf = name.rsplit(".", 1)
        block = re.fullmatch(r"transformer\.h\.(\d+)\.(.+)", module)
        if block is None:
            weights[f"{GPT2_TOP.get(module, module)}.{leaf}"] = tensor
            continue
        prefix, part = f"model.layers.{block[1]}", block[2]
        if part == "attn.c_attn":
            for target, piece in zip(GPT2_QKV, tensor.chunk(3, dim=-1), strict=True):
                weights[f"{prefix}.{target}.{leaf}"] = piece.t().clone(memory_format=torch.contiguous_format)
        else:
            layout = (
                tensor if part.startswith("ln_") else tensor.t()
            )  # Conv1D keeps (in, out); vectors stay as they are
            weights[f"{prefix}.{GPT2_MODULES[part]}.{leaf}"] = layout.contiguous()
    return weights


def _export_gpt2(weights: Weights) -> Weights:
    top, modules = _inverse(GPT2_TOP), _inverse(GPT2_MODULES)
    stored: Weights = {}
    for name, tensor in weights.items():
        module, leaf = name.rsplit(".", 1)
        block = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module)
        if block is None:
            stored[f"{top.get(module, module)}.{leaf}"] = tensor
            continue
        prefix, part = f"transformer.h.{block[1]}", block[2]
        if part == GPT2_QKV[0]:
            pieces = [weights[f"model.layers.{block[1]}.{source}.{leaf}"] for source in GPT2_QKV]
            stored[f"{prefix}.attn.c_attn.{leaf}"] = torch.cat(pieces).t()
        elif part not in GPT2_QKV:
            stored[f"{prefix}.{modules[part]}.{leaf}"] = tensor if "layernorm" in part else tensor.t()
    return stored


# Llama, Qwen2, Qwen3, OLMo-2: the decoder carries their names already


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


def _llama_like(model_type: str, architecture: str, **own: Any) -> Family:
    """A family that differs from Llama by some traits."""
    traits = {**LLAMA_TRAITS, **own}

    def read(hf: Mapping[str, Any]) -> DecoderConfig:
        return _read_llama_like(hf, model_type, traits)

    return Family(
        model_type=model_type,
        architecture=architecture,
        traits=traits,
        read=read,
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
    shape: dict[str, Any] = {
        "vocab_size": entry(hf, "vocab_size", int),
        "layers": entry(hf, "num_hidden_layers", int),
        "heads": heads,
        "kv_heads": entry(hf, "num_key_value_heads", int, heads),
        "head_dim": entry(hf, "head_dim", int, 128 if model_type == "qwen3" else head_width(width, heads)),
        "width": width,
        "mlp_width": entry(hf, "intermediate_size", int),
        "context": entry(hf, "max_position_embeddings", int),
        "norm_eps": entry(hf, "rms_norm_eps", float, traits["norm_eps"]),
        "rope_base": base,
        "rope_scaling": scaling,
        "attention_bias": attention_bias,
        "attention_out_bias": attention_bias and model_type != "qwen2",
        "mlp_bias": model_type == "llama" and entry(hf, "mlp_bias", bool, False),
        "tied_head": entry(hf, "tie_word_embeddings", bool, traits["tied_head"]),
        "init_std": entry(hf, "initializer_range", float, 0.02),
    }
    return DecoderConfig(**{**traits, **shape})


def _write_llama_like(config: DecoderConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_width,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": "silu",
        **write_rope(config),
    }


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {ours: theirs for theirs, ours in names.items()}


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        traits=GPT2_TRAITS,
        read=_read_gpt2,
        keys=GPT2_KEYS,
        write=_write_gpt2,
        stored_name=_gpt2_stored_name,
        import_weights=_import_gpt2,
        export_weights=_export_gpt2,
    ),
    "llama": _llama_like("llama", "LlamaForCausalLM"),
    "qwen2": _llama_like("qwen2", "Qwen2ForCausalLM", attention_bias=True),
    "qwen3": _llama_like("qwen3", "Qwen3ForCausalLM", qk_norm="head"),
    "olmo2": _llama_like("olmo2", "Olmo2ForCausalLM", norm_eps=1e-5, qk_norm="full", norm_place="post"),
}
