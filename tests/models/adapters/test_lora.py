"""LoRA: the formula, its gradients in both passes, folding, and which layers are meant."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from tests.small import small_model
from whet.errors import UserError
from whet.models.adapters.base_view import BaseView
from whet.models.adapters.lora import (
    LoRALinear,
    LoRAShape,
    adapters,
    attach,
    copied,
    merged_state,
    switched_off,
    targeted,
    trained_tensors,
)
from whet.models.half_precision import halve
from whet.models.kernels import fused_block
from whet.models.layers.packing import pack
from whet.models.load import load_model
from whet.models.logprobs import read_tokens
from whet.records import Sampling

SAMPLING = Sampling(max_tokens=8)
LENGTHS = torch.tensor([12, 9, 7])


def adapted(family="qwen3", *, rank=3, spread=0.3, **options):
    """A small model whose adapters are no longer zero."""
    model, _ = small_model(family, sharp=3.0)
    attach(model, LoRAShape(rank=rank, alpha=6.0, **options), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, layer in adapters(model):
            layer.lora_B.normal_(0, spread, generator=generator)
    return model


def rows(vocab):
    tokens = torch.randint(0, vocab, (3, 12), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(12)[None] < LENGTHS[:, None]
    mask[:, :4] = False
    return tokens, mask


def read(model, *, packed):
    head = model.head_weight  # None of a model that caps its logits
    device = torch.device("cpu") if head is None else head.device
    tokens, mask, lengths = (one.to(device) for one in (*rows(model.vocab_size), LENGTHS))
    packing = pack(tokens, mask, None) if packed else None
    return read_tokens(model, tokens, lengths, mask, SAMPLING, packing=packing).logprobs


def gradients(model, *, packed):
    model.zero_grad()
    factors = torch.randn(3, 12, generator=torch.Generator().manual_seed(4))
    logprobs = read(model, packed=packed)
    (logprobs * factors.to(logprobs.device)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("rslora", "scale"), [(False, 6 / 4), (True, 6 / 2)])
def test_a_layer_adds_the_scaled_product_of_b_and_a(rslora, scale):
    layer = nn.Linear(5, 3)
    shape = LoRAShape(rank=4, alpha=6.0, rslora=rslora)
    lora = LoRALinear(layer, rank=4, scale=shape.scale, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 5)
    assert torch.equal(lora(x), layer(x))  # B begins at 0
    assert 0.5 / np.sqrt(5) < float(lora.lora_A.detach().abs().max()) <= 1 / np.sqrt(5)
    with torch.no_grad():
        lora.lora_B.normal_()
    w, b, up, down, given = (
        t.detach().numpy().astype(float) for t in (layer.weight, layer.bias, lora.lora_B, lora.lora_A, x)
    )
    expected = given @ w.T + b + scale * given @ down.T @ up.T
    assert np.abs(lora(x).detach().numpy() - expected).max() < 1e-5
    assert np.abs(lora.folded().numpy() - (w + scale * up @ down)).max() < 1e-5


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen2", "qwen3", "olmo2", "deepseek_v3", "gemma2", "gemma3_text", "qwen3_moe", "olmoe", "phi3", "gpt2"],
)
def test_both_passes_have_the_gradients_of_the_dense_product(family):
    """∂L/∂B = s·G Aᵀ and ∂L/∂A = s·Bᵀ G, where G is the gradient of the whole matrix in the merged model."""
    model = adapted(family)
    plain, packed = gradients(model, packed=False), gradients(model, packed=True)
    dense, _ = small_model(family, sharp=3.0)
    dense.load_state_dict(merged_state(model))
    assert (read(dense, packed=False) - read(model, packed=False)).abs().max() < 1e-5
    whole = gradients(dense, packed=False)
    assert plain.keys() == packed.keys() == trained_tensors(model).keys()
    for name, layer in adapters(model):
        of_w = whole[f"{name}.weight"]
        a, b = layer.lora_A.detach(), layer.lora_B.detach()
        expected = {"lora_A": layer.scale * b.T @ of_w, "lora_B": layer.scale * of_w @ a.T}
        for leaf, value in expected.items():
            for found in (plain, packed):
                assert (found[f"{name}.{leaf}"] - value).abs().max() <= 1e-5 * max(1.0, float(value.abs().max())), name


def test_no_gradient_of_a_whole_matrix_is_formed(monkeypatch):
    model, shapes = adapted(), []
    true = fused_block.fp32_product

    def noted(a, b):
        shapes.append((a.shape[0], b.shape[1]))
        return true(a, b)

    monkeypatch.setattr(fused_block, "fp32_product", noted)
    gradients(model, packed=True)
    assert shapes
    assert all(3 in shape for shape in shapes)  # the rank
    assert all(p.grad is None for name, p in model.named_parameters() if "lora_" not in name)


def test_targets_without_adapters_stay_plain_in_the_fused_pass():
    model = adapted(targets=("q_proj", "down_proj"))
    plain, packed = gradients(model, packed=False), gradients(model, packed=True)
    assert len(plain) == 2 * 2 * 2
    assert max(float((plain[name] - packed[name]).abs().max()) for name in plain) < 1e-4


def test_an_adapter_that_changes_in_place_is_folded_again():
    model = adapted()
    before = read(model, packed=True).detach()
    with torch.no_grad():
        dict(adapters(model))["model.layers.1.mlp.down_proj"].lora_B.data[0, 0] += 0.5
    after = read(model, packed=True).detach()
    assert (after - before).abs().max() > 1e-3
    assert (after - read(model, packed=False)).abs().max() < 1e-5


def test_the_base_is_seen_without_adapters_and_they_come_back():
    model = adapted()
    base, _ = small_model("qwen3", sharp=3.0)
    now = read(model, packed=True).detach()
    for packed in (True, False):
        assert (read(BaseView(model), packed=packed) - read(base, packed=packed)).abs().max() < 1e-6
    assert torch.equal(read(model, packed=True), now)
    with pytest.raises(RuntimeError, match="planted"), switched_off(model):
        raise RuntimeError("planted")
    assert torch.equal(read(model, packed=True), now)


def test_sampling_reads_the_folded_weights():
    model = adapted()
    tokens, _ = rows(model.vocab_size)
    states, _ = model.begin(tokens, LENGTHS, room=1)
    expected = model.hidden(tokens, LENGTHS)[torch.arange(3), LENGTHS - 1]
    assert (states - expected).abs().max() < 1e-4


def test_rounding_to_bf16_keeps_the_base_and_the_mean_of_a_small_change():
    """Rounding to the nearest would lose less than half of the last bit of W in every element."""
    layer = nn.Linear(256, 256, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.full((256, 256), 1.0))  # the last bit of bf16 at 1 is 2⁻⁷
    lora = LoRALinear(layer, rank=1, scale=1.0, generator=torch.Generator().manual_seed(0))
    target = torch.empty(256, 256, dtype=torch.bfloat16)
    lora.fold_into(target, torch.Generator().manual_seed(0))
    assert torch.equal(target.float(), layer.weight)
    with torch.no_grad():
        lora.lora_A.fill_(1.0)
        lora.lora_B.fill_(2.0**-9)  # a quarter of the last bit
    assert torch.equal(lora.folded().bfloat16().float(), layer.weight)
    lora.fold_into(target, torch.Generator().manual_seed(0))
    change = target.float() - 1
    assert set(change.unique().tolist()) == {0.0, 2.0**-7}
    assert abs(float(change.mean()) - 2.0**-9) < 4 * 2.0**-7 * np.sqrt(0.25 * 0.75) / 256


def test_a_copy_has_its_own_adapters_on_the_same_weights():
    model = adapted()
    other = copied(model)
    for (name, mine), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert (mine is theirs) == ("lora_" not in name)
    with torch.no_grad():
        next(adapters(other))[1].lora_B.zero_()
    assert float(next(adapters(model))[1].lora_B.detach().abs().max()) > 0


def test_merged_weights_have_plain_names_and_leave_the_model_alone():
    model = adapted()
    state = merged_state(model)
    plain, _ = small_model("qwen3")
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    assert (read(plain, packed=True) - read(model, packed=True)).abs().max() < 1e-5
    assert len(list(adapters(model))) == 14


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        ("all-linear", 14),
        (("q_proj", "v_proj"), 4),
        (("layers.1.mlp.up_proj",), 1),
        ("q_proj", 2),
        (r"model\.layers\.0\.self_attn\..*_proj", 4),
    ],
)
def test_layers_by_name_and_by_pattern(targets, count):
    model, _ = small_model("llama")
    assert len(targeted(model, targets)) == count
    assert not any("lm_head" in name for name in targeted(model, targets))


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        (("q_proj", "wq"), "no linear layer 'wq': it has down_proj, gate_proj"),
        (("lm_head",), "no linear layer 'lm_head'"),
        (("proj",), "no linear layer 'proj'"),  # the end of a name is a whole word
        ("nothing", "'nothing' matches no linear layer"),
        ("(", "is no regular expression"),
    ],
)
def test_targets_that_match_nothing_are_refused(targets, told):
    model, _ = small_model("llama")
    with pytest.raises(UserError, match=told.replace("(", r"\(")):
        targeted(model, targets)


def test_the_head_of_a_foreign_model_stays_in_fp32(tmp_path):
    """Its logits are computed outside of autocast."""
    config = transformers.GemmaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    attach(model, LoRAShape(rank=2, alpha=2.0), seed=0)
    halve(model)
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    assert kinds["model.model.embed_tokens.weight"] is torch.float32  # tied with the head
    assert kinds["model.model.layers.0.mlp.up_proj.weight"] is torch.bfloat16
    assert kinds["model.model.layers.0.mlp.up_proj.lora_A"] is torch.float32
    assert model.head(torch.ones(1, 16)).dtype is torch.float32
