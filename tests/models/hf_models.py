"""Small random transformers models: the oracle of the tests in this folder."""

from __future__ import annotations

from typing import Any

import torch
import transformers

TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "first_k_dense_replace": 3,  # all layers: none has experts
    "rms_norm_eps": 1e-3,  # unlike that of the norms of latents
}
GEMMA = {
    "head_dim": 8,
    "query_pre_attn_scalar": 12,  # unlike the width of a head
    "sliding_window": 6,
    "pad_token_id": 0,
}
ROUTED = {"num_experts": 5, "num_experts_per_tok": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2",
        {
            "vocab_size": 97,
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gpt2-untied": (
        "GPT2",
        {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 100}
        | {"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "llama-tied": ("Llama", TINY | {"tie_word_embeddings": True}),
    "llama-untied": ("Llama", TINY | {"tie_word_embeddings": False, "num_key_value_heads": 6, "head_dim": 16}),
    "llama-biases": ("Llama", TINY | {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("Llama", TINY | {"rope_parameters": LLAMA3}),
    "llama-linear-rope": (
        "Llama",
        TINY | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}},
    ),
    "mistral": ("Mistral", TINY | {"sliding_window": None, "head_dim": 12}),
    "mistral-window": ("Mistral", TINY | {"sliding_window": 48}),
    "phi3": ("Phi3", TINY | {"sliding_window": None, "pad_token_id": 0}),
    "phi3-tied": ("Phi3", TINY | {"sliding_window": 60, "pad_token_id": 0, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", TINY | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", TINY | {"head_dim": 10, "tie_word_embeddings": True}),
    "qwen3-biases": ("Qwen3", TINY | {"head_dim": 10, "attention_bias": True}),
    "olmo2": ("Olmo2", TINY),
    "gemma2": ("Gemma2", TINY | GEMMA | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0}),
    "gemma2-uncapped": (
        "Gemma2",
        TINY
        | GEMMA
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}
        | {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "tie_word_embeddings": False},
    ),
    "gemma3": ("Gemma3Text", TINY | GEMMA | {"num_hidden_layers": 7}),
    "gemma3-scaled-rope": (
        "Gemma3Text",
        TINY
        | GEMMA
        | {"sliding_window_pattern": 2, "final_logit_softcapping": 2.0}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            }
        },
    ),
    "qwen3-moe": ("Qwen3Moe", TINY | ROUTED | {"head_dim": 10, "moe_intermediate_size": 16, "norm_topk_prob": True}),
    "qwen3-moe-some-dense": (
        "Qwen3Moe",
        TINY | ROUTED | {"moe_intermediate_size": 16, "mlp_only_layers": [1], "tie_word_embeddings": True},
    ),
    "olmoe": ("Olmoe", TINY | ROUTED | {"norm_topk_prob": False}),
    "mistral-short-window": ("Mistral", TINY | {"sliding_window": 5}),
    "deepseek-v3": ("DeepseekV3", TINY | LATENT),
    "deepseek-v3-biases": (
        "DeepseekV3",
        TINY | LATENT | {"q_lora_rank": None, "attention_bias": True, "rope_interleave": False},
    ),
    "deepseek-v3-linear-rope": (
        "DeepseekV3",
        TINY | LATENT | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}},
    ),
    "deepseek-v2": ("DeepseekV2", TINY | LATENT | {"mlp_bias": True, "tie_word_embeddings": True}),
}


def build(name: str, settings: dict[str, Any]) -> transformers.PreTrainedModel:
    """A random model whose every parameter, also biases and norms, matters."""
    config = getattr(transformers, f"{name}Config")(**settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def oracle_logits(model: transformers.PreTrainedModel, row: torch.Tensor) -> torch.Tensor:
    """(T,) ids → (T, V), one sequence at a time, without padding or cache."""
    with torch.no_grad():
        return model(row[None], use_cache=False).logits[0]
