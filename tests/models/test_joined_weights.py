"""The bf16 copies of a block's weights follow the weights, however these are changed."""

import copy

import pytest
import torch
from torch import Tensor

from tests.small import small_model
from whet.models.decoder.decoder import Decoder, fits_fused
from whet.models.half_precision import halve
from whet.models.load import load_model, new_model

FAMILIES = ["llama", "qwen2", "qwen3"]


def model_of(family: str = "qwen2", seed: int = 0) -> Decoder:
    return new_model(family, vocab_size=11, layers=2, heads=4, kv_heads=2, width=32, context=8, seed=seed)


def wanted(model: Decoder, index: int) -> dict[str, Tensor | None]:
    """The copies written out from the weights as they are now."""
    attention, mlp = model.model.layers[index].self_attn, model.model.layers[index].mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    return {
        "qkv": torch.cat([part.weight for part in parts]),
        "qkv_bias": biases,
        "out": attention.o_proj.weight,
        "gate_up": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        "down": mlp.down_proj.weight,
    }


def follows(model: Decoder) -> bool:
    """Whether what the model's blocks would be computed with are its weights."""
    for index, half in enumerate(model.model.joined.refreshed(list(model.model.layers), torch.bfloat16)):
        for name, weight in wanted(model, index).items():
            copied = getattr(half, name)
            if weight is None:
                assert copied is None
            elif not torch.equal(copied, weight.detach().to(torch.bfloat16)):
                return False
    return True


def step(model: Decoder, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@torch.no_grad()
def lerp(model: Decoder) -> None:
    for parameter, other in zip(model.parameters(), model_of(seed=1).parameters(), strict=True):
        parameter.lerp_(other, 0.5)


def swap(model: Decoder) -> None:
    """What `nn.Module.to` does to a parameter: other memory, the same count of changes."""
    for parameter in model.parameters():
        parameter.data = parameter.data + 1


CHANGES = {
    "fused AdamW": lambda model: step(model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)),
    "AdamW": lambda model: step(model, torch.optim.AdamW(model.parameters(), lr=0.1)),
    "SGD": lambda model: step(model, torch.optim.SGD(model.parameters(), lr=0.1)),
    "load_state_dict": lambda model: model.load_state_dict(model_of(seed=1).state_dict()),
    "assigned": lambda model: model.load_state_dict(model_of(seed=1).state_dict(), assign=True),
    "lerp": lerp,
    "other memory": swap,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_copies_are_the_weights_in_bf16(family: str) -> None:
    model = model_of(family)
    assert follows(model)
    one, two = (
        model.model.joined.refreshed(list(model.model.layers), torch.bfloat16)[1].qkv.data_ptr() for _ in range(2)
    )
    assert one == two  # filled again in place


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_copies_follow_the_weights(change) -> None:
    model = model_of()
    assert follows(model)
    before = model.model.joined.refreshed(list(model.model.layers), torch.bfloat16)[0].qkv.clone()
    change(model)
    assert follows(model)
    assert not torch.equal(before, model.model.joined.refreshed(list(model.model.layers), torch.bfloat16)[0].qkv)
    change(model)
    assert follows(model)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_copied_model_has_copies_of_its_own(change) -> None:
    model = model_of()
    assert follows(model)
    other = copy.deepcopy(model)
    change(other)
    assert follows(other)
    theirs = [half.qkv.clone() for half in other.model.joined.refreshed(list(other.model.layers), torch.bfloat16)]
    assert follows(model)
    again = other.model.joined._copies[torch.bfloat16]
    assert all(torch.equal(half.qkv, kept) for half, kept in zip(again, theirs, strict=True))


def test_copies_that_are_made_once_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    assert follows(model)
    monkeypatch.setattr(torch, "_foreach_copy_", lambda targets, sources: None)
    lerp(model)
    assert not follows(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_of_them_is_saved(family: str) -> None:
    model = model_of(family)
    follows(model)
    assert not [name for name in model.state_dict() if "bf16" in name]


def test_what_is_fused() -> None:
    served = new_model("llama", vocab_size=11, layers=2, heads=2, width=32, context=8, seed=0)
    assert fits_fused(served.model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fits_fused(served.model)
    assert not fits_fused(copy.deepcopy(served).to(torch.bfloat16).model)
    assert fits_fused(small_model(width=32)[0].model)  # heads of 8: not a width of the kernels, but this is a CPU
    assert not fits_fused(small_model("gpt2", width=64)[0].model)
    served.model.layers[1].self_attn.v_proj = torch.nn.Sequential(served.model.layers[1].self_attn.v_proj)
    assert not fits_fused(served.model)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_in_bf16_are_views_of_the_joined_tensors(family):
    model = model_of(family)
    halve(model, trained=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    joined = model.model.joined.refreshed(list(model.model.layers), torch.bfloat16)
    assert follows(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(one.holds(block.matrices()) for one, block in zip(joined, model.model.layers, strict=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(joined[0].qkv[0], model.model.layers[0].self_attn.q_proj.weight[0])  # without a refresh
    again = model.model.joined.refreshed(list(model.model.layers), torch.bfloat16)
    assert again[0].qkv.data_ptr() == joined[0].qkv.data_ptr()
    assert follows(model)


@pytest.mark.parametrize("change", [swap, lambda model: model.model.joined.clear()])
def test_weights_in_bf16_that_moved_are_joined_again(change):
    model = model_of()
    halve(model, trained=True)
    model.model.joined.refreshed(list(model.model.layers), torch.bfloat16)
    change(model)
    assert follows(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].self_attn.q_proj.weight.zero_()
    assert follows(other)
    assert bool(model.model.layers[0].self_attn.q_proj.weight.any())
    assert follows(model)


def test_a_model_in_bf16_is_saved_as_it_is_and_loads_bit_for_bit(tmp_path):
    model = model_of()
    halve(model, trained=True)
    model.model.joined.refreshed(list(model.model.layers), torch.bfloat16)
    with torch.no_grad():
        model.model.norm.weight.add_(1e-5)  # no bf16 number
    model.save(tmp_path, None)
    loaded = load_model(tmp_path, keep_bf16=True)
    saved = model.state_dict()
    assert all(
        torch.equal(tensor, saved[name]) and tensor.dtype is saved[name].dtype
        for name, tensor in loaded.state_dict().items()
    )
