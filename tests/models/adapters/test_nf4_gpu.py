"""QLoRA on CUDA: the values of NumPy in bf16, gradients near those in fp32, and a run that agrees with its sampler."""

import pytest
import torch

from tests.models.adapters.nf4_oracle import rounded_to_nf4
from tests.models.adapters.test_lora import adapted, gradients
from tests.models.adapters.test_lora_gpu import CUDA, RUNS, assert_agrees, base
from tests.small import small_model
from whet.models.adapters.lora import LoRAShape, attach
from whet.models.adapters.nf4 import NF4Matrix
from whet.models.adapters.quantized_base import quantize_base
from whet.models.half_precision import halve
from whet.models.layers.decoder_config import autocast

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
__all__ = ["base"]  # a fixture
NEAR = {"olmo2": 0.95}  # plain blocks round more often than fused ones


@pytest.mark.parametrize("shape", [(64, 64), (172, 64), (32, 32), (5, 13), (4096, 1024)])
def test_values_are_those_of_numpy(shape):
    weight = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16().to(CUDA)
    found, expected = NF4Matrix(weight).dequantized().cpu(), rounded_to_nf4(weight).bfloat16()
    assert found.dtype is torch.bfloat16
    # Weights half-way between two quantiles, and products half-way between two bf16 numbers, may go either way.
    assert (found == expected).float().mean() > 0.99


def on_cuda(model):
    halve(model)
    quantize_base(model.model.layers, CUDA)
    return model.to(CUDA)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2"])
def test_gradients_are_near_those_in_fp32(family, recompute, packed):
    exact = adapted(family)
    quantize_base(exact.model.layers, torch.device("cpu"))
    expected = gradients(exact, packed=True)
    model = on_cuda(adapted(family))
    model.gradient_checkpointing = recompute
    with autocast(CUDA):
        found = gradients(model, packed=packed)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        near = torch.nn.functional.cosine_similarity(value.flatten(), found[name].cpu().flatten(), dim=0)
        assert float(near) > NEAR.get(family, 0.97), (name, float(near))


@pytest.mark.parametrize("options", RUNS)
def test_a_run_agrees_with_its_sampler(tmp_path, base, options):
    assert_agrees(tmp_path, base, ("model.lora.rank=4", "model.lora.quantization=nf4", *options))


def test_a_training_pass_holds_one_block_and_four_bits_of_the_others():
    """A model of eight blocks: its peak is far from that of a copy of all of them."""
    model, _ = small_model("qwen3", layers=8, width=512, sharp=1.0)
    attach(model, LoRAShape(rank=2, alpha=4.0), seed=0)
    model = on_cuda(model)
    block = sum(one.shape.numel() for one in model.model.layers[0].modules() if isinstance(one, NF4Matrix)) * 2
    with autocast(CUDA):
        gradients(model, packed=True)
        model.zero_grad()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        gradients(model, packed=True)
    assert torch.cuda.max_memory_allocated() - before < 5 * block
