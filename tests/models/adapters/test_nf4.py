"""QLoRA: NF4 beside NumPy, logits and gradients beside a plain model with the same values, and what stays in memory."""

import subprocess
import sys
import weakref

import pytest
import torch
import transformers
from torch import nn

from tests.engines import decode_plain
from tests.models.adapters.nf4_oracle import quantiles, rounded_to_nf4
from tests.models.adapters.test_lora import adapted, gradients, read
from tests.small import small_model
from whet.config.model_config import LoRAConfig, ModelConfig
from whet.engines.native.cuda import CudaSampler
from whet.engines.native.native_engine import NativeEngine
from whet.errors import UserError
from whet.models.adapters.base_view import BaseView
from whet.models.adapters.lora import adapters, copied, merged_state, switched_off, trained_tensors
from whet.models.adapters.nf4 import NF4Linear, NF4Matrix
from whet.models.adapters.quantized_base import dequantized_bytes, quantize_base
from whet.models.decoder.joined_weights import Joined
from whet.models.half_precision import halve
from whet.models.load import load_model
from whet.records import Prompt, Sampling
from whet.train.setup.lora_setup import attach_adapter

CPU = torch.device("cpu")
FAMILIES = ["llama", "qwen2", "qwen3", "olmo2", "deepseek_v3"]
PROMPTS = [Prompt(tokens=(4, 5, 6), stream=(1, 1)), Prompt(tokens=(7, 8), stream=(1, 2))]


def quantized(family="qwen3", **options):
    model = adapted(family, **options)
    quantize_base(model.model.layers, CPU)
    return model


def with_rounded_values(family="qwen3", **options):
    """The same adapters on a plain model whose matrices are those of the oracle."""
    model = adapted(family, **options)
    with torch.no_grad():
        for name, weight in model.model.layers.named_parameters():
            if "proj" in name and name.endswith(".weight"):
                weight.copy_(rounded_to_nf4(weight))
    return model


def test_the_paper_lists_these_quantiles():
    """Appendix E of the paper, to its last digits."""
    published = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
    published += [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
    published += [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023]
    assert quantiles() == pytest.approx([*published, 1.0], abs=5e-7)


@pytest.mark.parametrize("shape", [(64, 64), (172, 64), (64, 172), (32, 32), (5, 96), (5, 13), (1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dequantized_values_are_those_of_numpy(shape, dtype):
    """Also where rows, or the whole matrix, are no multiple of a block."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype) * 0.02
    matrix = NF4Matrix(weight)
    found = matrix.dequantized()
    assert (found.shape, found.dtype, len(matrix)) == (weight.shape, dtype, shape[0])
    if dtype is torch.float32:
        assert (found - rounded_to_nf4(weight)).abs().max() < 1e-7
    else:  # two fp32 products may lie on both sides of a boundary of bf16
        expected = rounded_to_nf4(weight).to(dtype)
        assert ((found - expected).abs() <= 2.0**-7 * expected.abs()).all()
        assert (found == expected).float().mean() > 0.99


def test_a_weight_takes_half_a_byte_and_its_part_of_absmax():
    matrix = NF4Matrix(torch.randn(128, 64))
    assert matrix.packed.dtype is torch.uint8
    assert sum(tensor.numel() * tensor.element_size() for tensor in matrix.buffers()) == 128 * 64 * (0.5 + 4 / 64)
    assert not list(matrix.parameters())


def test_zeros_stay_zeros():
    weight = torch.zeros(2, 64)
    weight[1, 3] = -2.5
    assert torch.equal(NF4Matrix(weight).dequantized(), weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_equal_those_of_a_plain_model_with_the_rounded_values(family):
    model, plain = quantized(family), with_rounded_values(family)
    for packed in (True, False):
        assert (read(model, packed=packed) - read(plain, packed=packed)).abs().max() < 1e-5
        found, expected = gradients(model, packed=packed), gradients(plain, packed=False)
        assert found.keys() == expected.keys() == trained_tensors(model).keys()
        for name, value in expected.items():
            assert (found[name] - value).abs().max() <= 1e-5 * max(1.0, float(value.abs().max())), name
    assert (read(model, packed=True) - read(adapted(family), packed=True)).abs().max() > 1e-2


def test_all_matrices_of_the_blocks_are_quantized_and_nothing_else():
    model = quantized(targets=("q_proj",))
    kinds = {name.rpartition(".")[2]: type(module) for name, module in model.model.layers.named_modules()}
    assert {leaf for leaf, kind in kinds.items() if kind is NF4Linear} == {
        *("k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert all(isinstance(layer.weight, NF4Matrix) for _, layer in adapters(model))
    assert not any(type(module) is nn.Linear for module in model.model.layers.modules())
    before, _ = small_model("qwen3", sharp=3.0)
    assert torch.equal(model.model.embed_tokens.weight, before.model.embed_tokens.weight)
    assert dequantized_bytes(model) == 4 * sum(
        p.numel() for n, p in before.model.layers.named_parameters() if n.endswith("_proj.weight")
    )
    plain = with_rounded_values(targets=("q_proj",))
    assert (read(model, packed=True) - read(plain, packed=True)).abs().max() < 1e-5


@pytest.mark.parametrize("recompute", [False, True])
def test_a_training_pass_holds_the_copy_of_one_block_at_a_time(monkeypatch, recompute):
    model = quantized(spread=0.1)
    expected = gradients(model, packed=True)
    model.gradient_checkpointing = recompute
    made, alive, true = [], [], Joined.of.__func__

    def noted(cls, *args):
        alive.append(sum(one() is not None for one in made))
        joined = true(cls, *args)
        made.append(weakref.ref(joined.qkv))
        return joined

    monkeypatch.setattr(Joined, "of", classmethod(noted))
    found = gradients(model, packed=True)
    # Forwards 0 and 1; backwards 1, which is still there, and 0. Recomputing a block and its gradient share one copy.
    assert alive == [0, 0, 0]
    assert not any(one() is not None for one in made)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("recompute", [False, True])
def test_plain_blocks_keep_no_dequantized_matrix_for_the_backward_pass(recompute):
    model, kept = quantized(), []
    model.gradient_checkpointing = recompute
    shapes = {tuple(module.shape) for module in model.modules() if isinstance(module, NF4Matrix)}
    shapes |= {shape[::-1] for shape in shapes}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(tuple(t.shape)), t)[1], lambda t: t):
        found = gradients(model, packed=False)
    assert kept
    assert not shapes & set(kept)
    model.gradient_checkpointing = False
    assert all(torch.equal(found[name], value) for name, value in gradients(model, packed=False).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trainer_and_sampler_read_the_same_numbers_rounded_alike(dtype):
    """Whatever the order of the blocks: the backward pass goes from the last to the first."""
    model = adapted(spread=0.01)
    if dtype is torch.bfloat16:
        halve(model)
    quantize_base(model.model.layers, CPU)
    blocks, joined = list(model.model.layers), model.model.joined
    alone = [make() for make in joined.by_block(blocks, dtype)[::-1]][::-1]
    for one, other in zip(alone, joined.refreshed(blocks, dtype), strict=True):
        for name in ("qkv", "out", "gate_up", "down"):
            assert torch.equal(getattr(one, name), getattr(other, name))
    layer = blocks[1].mlp.down_proj
    assert not torch.equal(alone[1].down, layer.weight.dequantized())
    with switched_off(model):
        assert torch.equal(joined.by_block(blocks, dtype)[1]().down, layer.weight.dequantized())
    with torch.no_grad():
        layer.lora_B.zero_()  # an adapter that changes nothing leaves no trace of rounding
    assert torch.equal(joined.by_block(blocks, dtype)[1]().down, layer.weight.dequantized())


def test_the_copy_of_all_blocks_is_released_after_sampling():
    model = quantized(spread=0.05)
    _, tokenizer = small_model("qwen3")
    sampling = Sampling(max_tokens=6)
    engine = NativeEngine(model, tokenizer)
    groups = engine.generate(PROMPTS, sampling, count=2)
    assert not model.model.joined._copies
    one = groups[0][0]
    tokens = torch.tensor([[*PROMPTS[0].tokens, *one.tokens]])
    states = model.hidden(tokens, torch.tensor([tokens.shape[1]]))
    logprobs = torch.log_softmax(model.head(states)[0, 2:-1], dim=-1).gather(-1, tokens[0, 3:, None])[:, 0]
    assert (logprobs - torch.tensor(one.logprobs)).abs().max() < 1e-5

    fast = CudaSampler(model, tokenizer.stops, max_slots=4, dtype=torch.float32, ops=decode_plain)
    for _ in range(2):
        drawn = fast.sample(PROMPTS, sampling, count=2)
        assert [tuple(d.tokens) for d in drawn] == [c.tokens for group in groups for c in group]
        assert not model.model.joined._copies
        assert fast._loop.weights.blocks == []
    with torch.no_grad():
        for _, layer in adapters(model):
            layer.lora_B.mul_(8)
    changed = fast.sample(PROMPTS, sampling, count=2)
    expected = engine.generate(PROMPTS, sampling, count=2)
    assert [tuple(d.tokens) for d in changed] == [c.tokens for group in expected for c in group]
    assert [d.tokens for d in changed] != [d.tokens for d in drawn]


def test_graphs_are_dropped_when_the_matrices_come_back_elsewhere(monkeypatch):
    model = quantized()
    _, tokenizer = small_model("qwen3")
    fast = CudaSampler(model, tokenizer.stops, max_slots=4, dtype=torch.float32, ops=decode_plain)
    fast.sample(PROMPTS, Sampling(max_tokens=2), count=1)
    loop, dropped = fast._loop, []
    monkeypatch.setattr(loop, "_drop_graphs", lambda: dropped.append(1))
    loop.refresh(model)
    first = loop.weights.blocks[0].qkv
    dropped.clear()
    loop.release(model)
    loop.refresh(model)  # `first` still takes its place
    assert loop.weights.blocks[0].qkv.data_ptr() != first.data_ptr()
    assert dropped


def test_a_copy_shares_the_quantized_base():
    model = quantized()
    other = copied(model)
    mine, theirs = ([m for m in one.modules() if isinstance(m, NF4Matrix)] for one in (model, other))
    assert len(mine) == 14
    assert all(one is two for one, two in zip(mine, theirs, strict=True))
    assert all(
        (one is two) == ("lora_" not in name)
        for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True)
    )


def test_the_base_without_its_adapter_is_the_quantized_one():
    model = quantized()
    base = with_rounded_values()
    for packed in (True, False):
        expected = read(BaseView(base), packed=packed)
        assert (read(BaseView(model), packed=packed) - expected).abs().max() < 1e-5


def test_merged_weights_have_plain_names():
    """What vLLM gets at every update: the values that are trained."""
    model = quantized(targets=("q_proj", "down_proj"))
    plain, _ = small_model("qwen3")
    state = merged_state(model)
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    assert (read(plain, packed=True) - read(model, packed=True)).abs().max() < 1e-5


def test_a_damaged_base_is_refused():
    """Four bits hold no NaN: it would become an ordinary number."""
    model = adapted()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    with pytest.raises(UserError, match=r"damaged: layers\.1\.mlp\.up_proj\.weight has values that are not finite"):
        quantize_base(model.model.layers, CPU)


def test_a_model_that_transformers_runs_is_refused(tmp_path):
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = transformers.GemmaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    asked = ModelConfig(path=str(tmp_path), lora=LoRAConfig(quantization="nf4"))
    with pytest.raises(UserError, match="is for the families of whet's own decoder, and transformers runs"):
        attach_adapter(asked, load_model(tmp_path), CPU, seed=0)


def test_bitsandbytes_is_imported_only_when_a_matrix_is_quantized():
    code = "import sys, whet.train.setup.lora_setup; assert 'bitsandbytes' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
