"""Families whose layers have experts in place of MLPs: Qwen3-MoE and OLMoE, as transformers stores them.

Every expert is stored by itself (`mlp.experts.3.up_proj.weight`), also by transformers 5, which stacks them in memory;
the decoder has the same names. Keys of the load-balancing loss (`router_aux_loss_coef`, …) are kept and not used: it
belongs to pre-training, and a policy gradient leaves it out.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from whet.models.decoder.family import Family, WriteConfig, entry, head_width, require
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.part_shapes import ExpertShape

EXPERT_KEYS = {  # field of ExpertShape → its key in config.json
    "count": "num_experts",
    "per_token": "num_experts_per_tok",
    "expert_width": "moe_intermediate_size",
    "renormalised": "norm_topk_prob",
}
DEFAULTS: Mapping[str, Mapping[str, int]] = {  # transformers'
    "qwen3_moe": {"count": 128, "per_token": 8, "expert_width": 768},
    "olmoe": {"count": 64, "per_token": 8},
}
NEW_EXPERTS, NEW_PER_TOKEN = 8, 2  # of a new model; its experts are as wide as its MLPs would be


def with_experts(family: Family) -> Family:
    """The row of a family whose attention, norms and names are those of `family`."""
    name = family.model_type
    return replace(
        family,
        read=partial(_read, family=family),
        write=partial(_write, model_type=name, others=family.write),
        usual_parts=partial(_usual_parts, renormalised=name == "qwen3_moe"),
    )


def _usual_parts(shape: Mapping[str, Any], renormalised: bool) -> dict[str, Any]:
    experts = ExpertShape(
        count=NEW_EXPERTS, per_token=NEW_PER_TOKEN, expert_width=shape["mlp_width"], renormalised=renormalised
    )
    return {"experts": experts}


def _read(hf: Mapping[str, Any], family: Family) -> DecoderConfig:
    config, name = family.read(hf), family.model_type
    usual, width, dense = DEFAULTS[name], config.mlp_width, tuple[int, ...]()
    if name == "olmoe":
        require(hf, "clip_qkv")
        require(hf, "head_dim", head_width(config.width, config.heads))  # its norms are as wide as the model
    else:
        width = entry(hf, EXPERT_KEYS["expert_width"], int, usual["expert_width"])
        dense = _dense_layers(hf, config.layers)
    count = entry(hf, "num_local_experts", int, usual["count"])  # what transformers 5 writes for Qwen3-MoE
    experts = ExpertShape(
        count=entry(hf, EXPERT_KEYS["count"], int, count),
        per_token=entry(hf, EXPERT_KEYS["per_token"], int, usual["per_token"]),
        expert_width=width,
        renormalised=entry(hf, EXPERT_KEYS["renormalised"], bool, False),
        dense_layers=dense,
    )
    return replace(config, experts=experts)


def _dense_layers(hf: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers with a plain MLP: those that are named, and all but every decoder_sparse_step-th."""
    named, step = entry(hf, "mlp_only_layers", list, []), max(1, entry(hf, "decoder_sparse_step", int, 1))
    return tuple(layer for layer in range(layers) if layer in named or (layer + 1) % step)


def _write(config: DecoderConfig, model_type: str, others: WriteConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    stated = {key: getattr(experts, field) for field, key in EXPERT_KEYS.items()}
    if model_type == "olmoe":
        del stated[EXPERT_KEYS["expert_width"]]  # it is intermediate_size
    else:
        dense = list(experts.dense_layers)
        stated |= {"mlp_only_layers": dense, "decoder_sparse_step": 1, "num_local_experts": experts.count}
    return {**others(config), **stated}
