"""Experts: routing by hand, gradients, what is stored, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tests.models.hf_models import CASES, ROUTED, TINY, build
from tests.models.test_decoder import small
from whet.errors import UserError
from whet.models.adapters.lora import LoRAShape, attach, targeted
from whet.models.decoder.mlp import Experts
from whet.models.foreign import ForeignLM
from whet.models.layers.part_shapes import ExpertShape
from whet.models.load import load_model

FAMILIES = ("qwen3_moe", "olmoe")


def experts_of(family: str) -> Experts:
    layer = small(family).model.layers[0].mlp
    assert isinstance(layer, Experts)
    return layer


@pytest.mark.parametrize("renormalised", [False, True])
@torch.no_grad()
def test_a_token_is_the_weighted_sum_of_its_likeliest_experts(renormalised):
    layer = experts_of("olmoe")
    layer.gate.renormalised = renormalised
    states = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(1))
    found = layer(states)
    for token, out in zip(states.view(-1, 32), found.view(-1, 32), strict=True):
        likely = (layer.gate.weight.double() @ token.double()).softmax(0)
        first, second = likely.argsort(descending=True)[:2].tolist()
        total = likely[first] + likely[second] if renormalised else 1.0
        mixed = sum(float(likely[i] / total) * layer.experts[i](token[None])[0] for i in (first, second))
        assert (out - mixed).abs().max() < 1e-5


def test_gradients_reach_the_router_and_are_zero_for_idle_experts():
    layer = experts_of("qwen3_moe")
    states = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(1))
    layer(states).square().sum().backward()
    assert layer.gate.weight.grad.abs().sum() > 0
    _, chosen = layer.gate(states[0])
    for number, expert in enumerate(layer.experts):
        moved = all(bool(parameter.grad.abs().sum() > 0) for parameter in expert.parameters())
        assert moved == (number in chosen[0].tolist())  # no gradient is None: ranks sum them over all experts


def test_the_router_is_in_fp32_under_autocast():
    layer = experts_of("qwen3_moe")
    tokens = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
    exact, chosen = layer.gate(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights, again = layer.gate(tokens)
        assert layer(tokens[None]).dtype is torch.float32
    assert torch.equal(weights, exact)
    assert torch.equal(chosen, again)


@torch.no_grad()
def test_an_expert_gets_no_call_without_tokens():
    layer, called = experts_of("olmoe"), []
    for number, expert in enumerate(layer.experts):
        expert.register_forward_hook(lambda *_, number=number: called.append(number))
    states = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(1))
    layer(states)
    assert sorted(called) == sorted(layer.gate(states[0])[1][0].tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_on_experts_and_not_on_routers(family):
    model = small(family)
    names = targeted(model, "all-linear")
    assert "model.layers.0.mlp.experts.7.down_proj" in names
    assert not any(name.endswith(".gate") for name in names)
    assert len(names) == 3 * (4 + 8 * 3)
    attach(model, LoRAShape(rank=2, alpha=4.0, targets=("q_proj", "up_proj")), seed=0)
    adapted = {name.removesuffix(".lora_A") for name, _ in model.named_parameters() if name.endswith("lora_A")}
    assert len(adapted) == 3 * (1 + 8)
    model(torch.ones(1, 4, dtype=torch.int64), torch.tensor([4])).sum().backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 6}, "'num_experts_per_tok' is 6: expected at most 5"),
        ({"num_experts": 0, "num_local_experts": None}, "'num_experts' is 0: expected a whole number above 0"),
        ({"moe_intermediate_size": -4}, "'moe_intermediate_size' is -4"),
        ({"norm_topk_prob": "yes"}, "'norm_topk_prob' is 'yes': expected bool"),
    ],
)
def test_errors_name_the_keys_of_the_file(change, message, tmp_path):
    build(*CASES["qwen3-moe"]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=rf"config\.json.*{message}"):
        load_model(tmp_path)


def test_clipped_projections_go_to_transformers(tmp_path):
    build("Olmoe", TINY | ROUTED | {"clip_qkv": 0.5}).save_pretrained(tmp_path)
    assert isinstance(load_model(tmp_path), ForeignLM)


def test_layers_without_experts_are_those_that_transformers_leaves_out(tmp_path):
    settings = CASES["qwen3-moe"][1] | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    oracle = build("Qwen3Moe", settings)
    oracle.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    dense = [number for number, layer in enumerate(oracle.model.layers) if not hasattr(layer.mlp, "experts")]
    assert list(model.config.experts.dense_layers) == dense == [0, 2, 3, 4]
    (tmp_path / "again").mkdir()
    model.save(tmp_path / "again")
    assert load_model(tmp_path / "again").config == model.config


def test_the_number_of_experts_has_two_spellings(tmp_path):
    """`num_experts` is on the hub, `num_local_experts` is what transformers 5 writes."""
    build(*CASES["qwen3-moe"]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("num_local_experts") == 5
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_experts": 5}))
    assert load_model(tmp_path).config.experts.count == 5


def test_impossible_experts_are_refused():
    shape = ExpertShape(count=4, per_token=2, expert_width=8)
    with pytest.raises(UserError, match="per_token is 5: expected at most 4"):
        replace(shape, per_token=5)
