"""Sizes by formula against the modules that are built, and against the published numbers of real models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.models.hf_models import CASES, build
from whet.models.adapters.lora import LoRAShape, attach, trained_tensors
from whet.models.decoder.families import FAMILIES, read_shape
from whet.models.layers.decoder_config import parameter_count
from whet.models.load import load_model
from whet.models.sizes.pass_bytes import saved_in_block
from whet.models.sizes.weight_counts import (
    active_weights,
    adapter_weights,
    block_products,
    block_weights,
    blocks_weights,
    layer_names,
)


@pytest.mark.parametrize("case", CASES)
def test_matrices_are_those_of_the_model(case, tmp_path):
    build(*CASES[case]).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    config = model.config
    linear = {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear) and name != "lm_head"}
    assert sorted(layer_names(config)) == sorted(linear)
    for layer in range(config.layers):
        for name, (rows, columns) in block_products(config, layer).items():
            assert linear[f"model.layers.{layer}.{name}"].weight.shape == (rows, columns)
    assert blocks_weights(config) == sum(one.weight.numel() for one in linear.values())
    blocks = [
        [one.weight.numel() for name, one in linear.items() if f".{n}." in name[:16]] for n in range(config.layers)
    ]
    assert block_weights(config) == max(map(sum, blocks))
    layers = attach(model, LoRAShape(rank=3, alpha=6.0), seed=0)
    assert adapter_weights(config, 3, layers) == sum(tensor.numel() for tensor in trained_tensors(model).values())


def hub(model_type: str, **sizes: object) -> tuple[str, dict[str, object]]:
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    names += ("head_dim", "intermediate_size")
    numbers = dict(zip(names, sizes.pop("numbers"), strict=True))  # type: ignore[call-overload]
    return model_type, {"max_position_embeddings": 4096, **numbers, **sizes}


# Shapes and numbers of parameters as the hub states them, and of those that are used for a token.
REAL = {
    "gemma-2-2b": (hub("gemma2", numbers=(256000, 2304, 26, 8, 4, 256, 9216)), 2_614_341_888, None),
    "gemma-3-1b": (hub("gemma3_text", numbers=(262144, 1152, 26, 4, 1, 256, 6912)), 999_885_952, None),
    "qwen3-30b-a3b": (
        hub("qwen3_moe", numbers=(151936, 2048, 48, 32, 4, 128, 6144), num_experts=128, moe_intermediate_size=768),
        30_532_122_624,
        3.3e9,
    ),
    "olmoe-1b-7b": (hub("olmoe", numbers=(50304, 2048, 16, 16, 16, 128, 1024), num_experts=64), 6_919_161_856, 1.3e9),
}


@pytest.mark.parametrize("name", REAL)
def test_real_models_have_their_published_sizes(name):
    (model_type, hf), parameters, active = REAL[name]
    config = read_shape(FAMILIES[model_type], hf)
    assert parameter_count(config) == parameters
    if active is None:
        assert active_weights(config) == blocks_weights(config)
    else:
        idle = blocks_weights(config) - active_weights(config)
        assert parameters - idle == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("case", ["llama-tied", "gemma2", "gemma3", "qwen3-moe", "olmoe"])
def test_kept_activations_are_near_those_of_plain_blocks(case, tmp_path):
    """Saved by autograd in fp32, each memory once, weights not counted.

    The formula counts what a GPU would keep: a CPU also repeats keys and values for each query head.
    """
    build(*CASES[case]).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own and tensor.is_floating_point():
            kept[memory.data_ptr()] = tensor
        return tensor

    tokens = torch.arange(64).view(1, -1) % 97
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.hidden(tokens, torch.tensor([64]))
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / 64 / model.config.layers
    assert found == pytest.approx(saved_in_block(model.config, 4, is_fused=False), rel=0.36)
