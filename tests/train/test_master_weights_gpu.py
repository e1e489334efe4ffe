"""Master weights in bf16 or in host memory on CUDA: whole runs, their memory, and resumption."""

import pytest
import torch

from tests.models.adapters.test_lora import gradients
from tests.small import small_model
from whet.cli.progress import SilentProgress
from whet.models.half_precision import accumulate_in_fp32, halve
from whet.models.layers.decoder_config import autocast
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.train.start import resume_run, start_run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
KINDS = ["bf16", "offload"]
OTHER = 80 * 2**20  # bytes that do not depend on the model: workspaces of cuBLAS, buffers of the sampler


class Memory(SilentProgress):
    """Bytes on the GPU after every step."""

    def __init__(self) -> None:
        self.resting: list[int] = []

    def step(self, step, metrics, timings):
        self.resting.append(torch.cuda.memory_allocated())


def run(place, *overrides, progress=None, recipe="grpo-sorting"):
    settings = read_recipe(recipe, ["device=cuda", "model.new.family=qwen3", *overrides])
    return start_run(settings, place, lambda config, run: progress or SilentProgress())


def steps_of(path):
    return [row for row in RunDirectory.open(path, is_writer=False).metrics() if row["step"] > 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [(), ("algorithm=ppo",), ("algorithm.kl.coefficient=0.05",), ("update.epochs=2",)])
def test_a_run_agrees_with_its_sampler(tmp_path, kind, options):
    path = run(
        tmp_path, f"optimizer.master_weights={kind}", "cold_start.steps=40", "steps=4", "eval.every_steps=4", *options
    )
    steps = steps_of(path)
    assert max(row["mismatch/mean"] for row in steps) < 0.02
    assert all(row["grad_norm"] > 0 for row in steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_bf16"])
def test_a_run_is_resumed_with_its_master_weights_and_moments(tmp_path, kind, optimizer):
    """Cross-entropy falls from step to step, so a lost state shows; on a GPU sums may differ in their last digits."""
    options = [f"optimizer.master_weights={kind}", f"optimizer.name={optimizer}", "optimizer.schedule=constant"]
    options += ["eval.every_steps=0", "lr=3e-3"]
    whole = steps_of(run(tmp_path / "whole", *options, "steps=40", recipe="sft-reverse"))
    half = run(tmp_path / "half", *options, "steps=20", recipe="sft-reverse")
    resume_run(half, ["steps=40"], lambda config, run: SilentProgress())
    found = steps_of(half)
    assert [row["step"] for row in found] == list(range(1, 41))
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in whole], rel=0.02)
    assert whole[-1]["loss"] < 0.9 * whole[19]["loss"]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2", "gpt2"])
def test_gradients_are_in_fp32_and_near_those_of_fp32_weights(family):
    exact = gradients(small_model(family, sharp=3.0)[0], packed=True)
    model = small_model(family, sharp=3.0)[0]
    halve(model, trained=True)
    model = model.to(CUDA)
    accumulate_in_fp32(model.parameters())
    with autocast(CUDA):
        found = gradients(model, packed=True)
    assert found.keys() == exact.keys()
    for name, value in exact.items():
        assert found[name].dtype is torch.float32
        if name.endswith("k_proj.bias"):  # 0 but for rounding: it adds the same to every score of a query
            continue
        near = torch.nn.functional.cosine_similarity(value.flatten(), found[name].cpu().flatten(), dim=0)
        assert float(near) > 0.97, (name, float(near))


@pytest.mark.parametrize(("kind", "most"), [("fp32", 4 + 2 + 8), ("bf16", 2 + 8), ("offload", 2)])
def test_what_is_on_the_gpu_between_steps(tmp_path, kind, most):
    """Bytes of a weight: the weight, its bf16 copy beside one in fp32, moments where they are not in host memory."""
    shape = ["model.new.layers=12", "model.new.width=768", "model.new.heads=12", "steps=2", "eval.every_steps=0"]
    weights = 12 * (4 * 768**2 + 3 * 768 * 2048)
    memory, before = Memory(), torch.cuda.memory_allocated()
    run(tmp_path, *shape, f"optimizer.master_weights={kind}", "offload=never", progress=memory)
    used = memory.resting[-1] - before
    assert most * weights <= used <= most * weights + OTHER
