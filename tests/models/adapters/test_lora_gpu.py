"""LoRA on CUDA: a frozen bf16 base, folded weights that sampler and trainer share, gradients near those in fp32."""

import pytest
import torch

from tests.models.adapters.test_lora import adapted, gradients
from whet.cli.progress import SilentProgress
from whet.config.model_config import LoRAConfig, ModelConfig
from whet.models.adapters.lora import trained_tensors
from whet.models.half_precision import halve
from whet.models.layers.decoder_config import autocast
from whet.models.load import load_model
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.train.setup.lora_setup import attach_adapter
from whet.train.start import start_run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
RUNS = [(), ("algorithm=ppo",), ("algorithm.kl.coefficient=0.05",)]


def on_cuda(model):
    halve(model)
    return model.to(CUDA)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2"])
def test_gradients_are_near_those_in_fp32(family):
    exact = gradients(adapted(family), packed=True)
    model = on_cuda(adapted(family))
    with autocast(CUDA):
        found = gradients(model, packed=True)
    assert found.keys() == exact.keys()
    for name, value in exact.items():
        near = torch.nn.functional.cosine_similarity(value.flatten(), found[name].cpu().flatten(), dim=0)
        assert float(near) > 0.98, (name, float(near))


@pytest.fixture
def base(tmp_path):
    """A chat-free Llama that already knows a little of sorting."""
    settings = read_recipe(
        "grpo-sorting",
        ["device=cuda", "model.new.family=qwen3", "steps=1", "cold_start.steps=60", "eval.every_steps=0"],
    )
    return start_run(settings, tmp_path / "base", lambda config, run: SilentProgress())


def assert_agrees(tmp_path, base, options):
    """A few steps of GRPO, or of the algorithm in `options`."""
    overrides = ["device=cuda", f"model={base}", "cold_start.steps=0", "lr=3e-3", "steps=6", *options]
    settings = read_recipe("grpo-sorting", [*overrides, "eval.every_steps=6"])
    path = start_run(settings, tmp_path / "runs", lambda config, run: SilentProgress())
    steps = [row for row in RunDirectory.open(path, is_writer=False).metrics() if row["step"] > 0]
    assert max(row["mismatch/mean"] for row in steps) < 0.02
    assert all(row["grad_norm"] > 0 for row in steps)
    if any("kl" in option for option in options):
        assert steps[0]["kl"] < 1e-4 < steps[-1]["kl"]


@pytest.mark.parametrize("options", RUNS)
def test_a_run_agrees_with_its_sampler(tmp_path, base, options):
    assert_agrees(tmp_path, base, ("model.lora=4", *options))


def test_the_base_is_kept_in_bf16_and_the_adapters_in_fp32(base):
    model = load_model(base / "best_model", keep_bf16=True)
    config = ModelConfig(path=str(base), lora=LoRAConfig(rank=2))
    attach_adapter(config, model, CUDA, seed=0)
    model = model.to(CUDA)
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    assert {kinds[name] for name in trained_tensors(model)} == {torch.float32}
    assert all(
        (kind is torch.bfloat16) == (p.dim() == 2 and "lora_" not in n)
        for (n, p), kind in zip(model.named_parameters(), kinds.values(), strict=True)
    )
