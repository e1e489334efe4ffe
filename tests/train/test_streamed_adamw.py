"""AdamW with master weights in host memory: the numbers of AdamW in fp32, its state, and what is in memory."""

import pytest
import torch
from torch import nn

from tests.train.test_optimizers import config_of
from whet.config import OptimizerConfig
from whet.train.optimizers import streamed_adamw
from whet.train.optimizers.optimizer import make_optimizer, optimizer_tensors, restore_optimizer, state_bytes
from whet.train.optimizers.streamed_adamw import MASTER, StreamedAdamW


class Two(nn.Module):
    """A matrix and a bias, as a layer has them."""

    def __init__(self, dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__()
        start = torch.linspace(-1, 1, 12, device=device).bfloat16().view(3, 4)
        self.weight = nn.Parameter(start.to(dtype))
        self.bias = nn.Parameter(torch.linspace(0, 1, 3, device=device))


def gradients(model: Two, step: int) -> None:
    for parameter in model.parameters():
        place = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.grad = torch.sin(place * (step + 1)).to(parameter.device)


def trained(name: str, master_weights: str, steps: int, device: str = "cpu") -> tuple[Two, torch.optim.Optimizer]:
    model = Two(torch.float32 if master_weights == "fp32" else torch.bfloat16, device)
    settings = config_of(name).model_copy(update={"master_weights": master_weights})
    optimizer = make_optimizer(model, settings)
    for step in range(steps):
        gradients(model, step)
        optimizer.step()
    return model, optimizer


def places() -> list[str]:
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", places())
def test_master_weights_are_those_of_adamw_in_fp32(device, monkeypatch):
    monkeypatch.setattr(streamed_adamw, "CHUNK", 5)  # several chunks, the last one shorter, in every buffer
    exact, _ = trained("adamw", "fp32", 7, device)
    model, optimizer = trained("adamw", "offload", 7, device)
    assert isinstance(optimizer, StreamedAdamW)
    master = optimizer.state[model.weight][MASTER]
    assert torch.allclose(master, exact.weight.detach().cpu(), rtol=1e-6, atol=1e-7)
    assert torch.allclose(model.bias, exact.bias, rtol=1e-6, atol=1e-7)
    assert torch.equal(model.weight.detach().cpu(), master.bfloat16())  # rounded to the nearest


def test_small_updates_add_up_in_the_master_weights():
    """100 updates of 1e-5 from 1.0, where the next bf16 number below is 0.996."""
    model = Two(torch.bfloat16)
    model.weight.data.fill_(1.0)
    optimizer = make_optimizer(model, OptimizerConfig(name="adamw", master_weights="offload", lr=1e-5))
    for _ in range(100):
        model.weight.grad = torch.ones_like(model.weight, dtype=torch.float32)
        optimizer.step()
    assert float(optimizer.state[model.weight][MASTER].mean()) == pytest.approx(0.999, abs=1e-5)
    assert float(model.weight.mean()) == 1.0


@pytest.mark.parametrize("name", ["adamw", "adamw_bf16"])
def test_state_is_restored_bit_for_bit_and_has_the_size_that_is_said(name):
    model, _ = trained(name, "offload", 6)
    half, optimizer = trained(name, "offload", 3)
    saved = {key: tensor.clone() for key, tensor in optimizer_tensors(optimizer, half).items()}
    again, second = trained(name, "offload", 0)
    again.load_state_dict(half.state_dict())
    restore_optimizer(second, again, saved)
    for step in range(3, 6):
        gradients(again, step)
        second.step()
    assert all(torch.equal(one, other) for one, other in zip(again.parameters(), model.parameters(), strict=True))
    settings = OptimizerConfig(name=name, master_weights="offload")
    kept = sum(tensor.nbytes for key, tensor in saved.items() if not key.startswith("step/"))
    assert state_bytes(half, settings) == kept


def test_gradients_of_streamed_weights_are_freed():
    model, _ = trained("adamw", "offload", 1)
    assert model.weight.grad is None


def test_gradients_of_bf16_weights_are_summed_in_fp32():
    """1 + 1000 · 2⁻¹⁰: in bf16 every term would be lost behind the 1."""
    model = Two(torch.bfloat16)
    make_optimizer(model, OptimizerConfig(name="adamw", master_weights="bf16"))
    for scale in (1.0, *[2.0**-10] * 1000):
        (model.weight.float().sum() * scale).backward()
    assert model.weight.grad.dtype is torch.float32
    assert torch.equal(model.weight.grad, torch.full((3, 4), 1 + 1000 / 1024))


def test_bf16_weights_move_on_average_as_those_in_fp32():
    """100 updates of 1e-4 from 1.0: each is a fortieth of the distance to the next bf16 number below."""
    weight = nn.Parameter(torch.ones(4096, 1, dtype=torch.bfloat16))
    holder = nn.ParameterList([weight])
    optimizer = make_optimizer(holder, OptimizerConfig(name="adamw", master_weights="bf16", lr=1e-4))
    for _ in range(100):
        weight.grad = torch.ones(4096, 1)
        optimizer.step()
    spread = 2**-8 * 10 / 64  # of the mean of 4096 sums of 100 roundings
    assert float(weight.float().mean()) == pytest.approx(1 - 100 * 1e-4, abs=4 * spread)
    assert len(weight.unique()) > 2
    assert optimizer.state[weight]["exp_avg"].dtype is torch.float32
