"""Joined products in columns against the plain forward pass, and the weights that they are made of."""

import pytest
import torch

from tests.models.hf_models import CASES, build
from tests.models.test_columns import Adapted
from tests.models.test_decoder import LENGTHS, TOKENS, small
from whet.models.cpu.column_decode import ColumnReader, quickest_reader
from whet.models.decoder import families
from whet.models.layers.attention import causal_attention
from whet.models.load import load_model

SHAPES = {name: small(name).config for name in families.FAMILIES}
FAMILIES = [name for name, shape in SHAPES.items() if shape.latent is None and shape.experts is None]
POSITIONS = torch.arange(11).expand(4, -1)
ATTENDS = [causal_attention] * 3


def far_from(found, expected):
    """The largest difference, as a share of the largest number."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_joined_columns_are_the_trunk(family):
    model = small(family)
    expected = model.model(TOKENS, POSITIONS, ATTENDS)
    assert expected.abs().max() > 0.5
    assert far_from(ColumnReader(model.model)(TOKENS, POSITIONS, ATTENDS), expected) < 2e-6


@torch.no_grad()
def test_biases_of_gate_and_up_are_added_to_their_own(tmp_path):
    build(*CASES["llama-biases"]).save_pretrained(tmp_path)
    trunk = load_model(tmp_path).model
    attends = [causal_attention] * len(trunk.layers)
    tokens = TOKENS % trunk.embed_tokens.num_embeddings
    expected = trunk(tokens, POSITIONS, attends)
    assert far_from(ColumnReader(trunk)(tokens, POSITIONS, attends), expected) < 2e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_who_reads_what(family):
    model = small(family)
    assert isinstance(quickest_reader(model.model), ColumnReader)
    block = model.model.layers[2]
    block.mlp.down_proj = Adapted(block.mlp.down_proj)
    assert quickest_reader(model.model) is model.model  # an adapter is called


def test_latents_and_experts_have_no_joined_products():
    others = set(families.FAMILIES) - set(FAMILIES)
    assert others == {"deepseek_v2", "deepseek_v3", "qwen3_moe", "olmoe"}
    for family in others:
        trunk = small(family).model
        assert quickest_reader(trunk) is trunk


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_weight_is_seen(family):
    """Every matrix and every vector of a block reaches what is read."""
    model = small(family)
    before = ColumnReader(model.model)(TOKENS, POSITIONS, ATTENDS)
    for name, parameter in model.model.layers[1].named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter[0] += 0.3
            changed = ColumnReader(model.model)(TOKENS, POSITIONS, ATTENDS)
            assert far_from(changed, model.model(TOKENS, POSITIONS, ATTENDS)) < 2e-6
            parameter.copy_(kept)
        # Without rotary positions a key bias adds the same to all scores of a query, which softmax takes out again.
        is_seen = (family, name) != ("gpt2", "self_attn.k_proj.bias")
        assert (far_from(changed, before) > 1e-4) == is_seen


def other_memory(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1


def optimizer_step(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(model.parameters(), lr=0.05, fused=True).step()


@pytest.mark.parametrize("change", [other_memory, optimizer_step])
@pytest.mark.parametrize("family", families.FAMILIES)
def test_new_prompts_are_read_with_new_weights(family, change):
    model = small(family)
    old, _ = model.begin(TOKENS, LENGTHS, room=3)
    change(model)
    states, cache = model.begin(TOKENS, LENGTHS, room=3)
    assert far_from(old, states) > 1e-3
    with torch.no_grad():
        last = model.hidden(TOKENS, LENGTHS)[torch.arange(4), LENGTHS - 1]
        assert far_from(states, last) < 1e-5
        states = model.extend(TOKENS[:, 0], cache)
        for row, length in enumerate(LENGTHS.tolist()):
            longer = torch.cat((TOKENS[row, :length], TOKENS[row, :1]))[None]
            assert far_from(states[row], model.hidden(longer, torch.tensor([length + 1]))[0, -1]) < 1e-5


def test_sampling_and_training_share_one_copy():
    trunk = small("llama").model
    ColumnReader(trunk)
    first = trunk.joined.refreshed(list(trunk.layers), torch.float32)
    places = [(half.qkv.data_ptr(), half.gate_up.data_ptr()) for half in first]
    ColumnReader(trunk)
    again = trunk.joined.refreshed(list(trunk.layers), torch.float32)
    assert [(half.qkv.data_ptr(), half.gate_up.data_ptr()) for half in again] == places
    for half, block in zip(again, trunk.layers, strict=True):  # what stands alone is the weight itself
        assert half.out.data_ptr() == block.self_attn.o_proj.weight.data_ptr()
        assert half.down.data_ptr() == block.mlp.down_proj.weight.data_ptr()
