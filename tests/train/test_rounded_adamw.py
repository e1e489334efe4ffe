"""AdamW with moments in bf16: its formula, the mean of its rounding, its chunks, and what it saves."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.train.test_optimizers import BETAS, DECAY, EPSILON, LR, config_of, optimized
from whet.config import OptimizerConfig
from whet.models.storage.rounding import stochastic_bf16
from whet.train.optimizers import rounded_adamw
from whet.train.optimizers.optimizer import make_optimizer, optimizer_tensors, restore_optimizer, state_bytes


def adamw(p, steps, decay):
    m = v = np.zeros_like(p)
    for number, g in enumerate(steps, start=1):
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g**2
        mean, square = m / (1 - BETAS[0] ** number), v / (1 - BETAS[1] ** number)
        p = p - LR * (mean / (np.sqrt(square) + EPSILON) + decay * p)
    return p


def test_four_steps_are_those_of_the_formula_up_to_rounding():
    before, after, given = optimized(config_of("adamw_bf16"))
    for name, start in before.items():
        expected = adamw(start, [one[name] for one in given], DECAY if start.ndim > 1 else 0.0)
        # An update has a size of about LR; each moment is off by at most 2⁻⁷ of itself.
        assert np.abs(after[name] - expected).max() < 4 * LR * 2**-6, name


def test_a_second_moment_grows_although_each_step_is_below_its_last_bit():
    """From v = 1 towards g² = 1.5 with 1 − β₂ = 0.001: steps of 0.0005, where bf16 has 2⁻⁷ = 0.0078."""
    weight = nn.Parameter(torch.zeros(4096))
    optimizer = make_optimizer(_Holder(weight), OptimizerConfig(name="adamw_bf16", lr=0.0001, beta2=0.999))
    weight.grad = torch.full((4096,), 1.5**0.5)
    optimizer.step()
    optimizer.state[weight]["exp_avg_sq"].fill_(1.0)
    for _ in range(100):
        optimizer.step()
    expected = 1.5 - 0.5 * 0.999**100
    found = optimizer.state[weight]["exp_avg_sq"].float()
    assert float(found.mean()) == pytest.approx(expected, abs=5 * 2**-7 / 64)
    assert float(torch.tensor(1.0005).bfloat16()) == 1.0  # rounded to the nearest it would never leave 1


def test_rounding_has_the_right_mean_and_keeps_what_is_exact():
    generator = torch.Generator().manual_seed(0)
    exact = torch.tensor([1.0, -2.5, 0.0, 3e-20]).bfloat16().float()
    assert torch.equal(stochastic_bf16(exact.clone(), generator).float(), exact)
    all_bits = torch.full((100,), 0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # the NaN that CUDA computes
    assert bool(stochastic_bf16(all_bits, generator).isnan().all())
    for value in (1.001, -0.3337, 1e-6):
        drawn = stochastic_bf16(torch.full((100_000,), value), generator).float()
        gap = abs(value) * 2**-7
        assert float(drawn.mean()) == pytest.approx(value, abs=4 * gap / 100_000**0.5)
        assert len(drawn.unique()) == 2


def test_chunks_change_nothing_but_random_numbers(monkeypatch):
    whole = optimized(config_of("adamw_bf16"))[1]
    monkeypatch.setattr(rounded_adamw, "CHUNK", 4)
    pieces = optimized(config_of("adamw_bf16"))[1]
    assert all(np.abs(whole[name] - pieces[name]).max() < 4 * LR * 2**-6 for name in whole)


def test_weights_moments_and_chunks_are_rounded_independently(monkeypatch):
    """Two equal chunks half-way between two numbers: as many go up in both as two coins show heads together."""
    monkeypatch.setattr(rounded_adamw, "CHUNK", 10_000)
    half = 1 + 2**-8  # of the way from 1 to the next number, 1 + 2⁻⁷
    weight, gradient = torch.ones(20_000).bfloat16(), torch.full((20_000,), half)
    mean, square = torch.zeros(20_000).bfloat16(), torch.full((20_000,), half**2).bfloat16()
    group = {"betas": (0.0, 0.0), "lr": -(2**-8), "eps": 0.0, "weight_decay": 0.0}
    ups = []
    for chunk in range(2):
        part = slice(10_000 * chunk, 10_000 * (chunk + 1))
        pieces = (weight[part], gradient[part], mean[part], square[part])
        rounded_adamw.update(*pieces, group=group, step=1, chunk=chunk)
        ups += [weight[part] > 1, mean[part] > 1]
    for number, one in enumerate(ups):
        assert float(one.float().mean()) == pytest.approx(0.5, abs=0.02)
        for other in ups[:number]:
            assert float((one & other).float().mean()) == pytest.approx(0.25, abs=0.02)


def test_every_chunk_of_a_step_has_random_numbers_of_its_own():
    weights = [nn.Parameter(torch.ones(4096)) for _ in range(2)]
    model = nn.ParameterList(weights)
    optimizer = make_optimizer(model, OptimizerConfig(name="adamw_bf16", lr=1e-6, beta1=0.9))
    for weight in weights:
        weight.grad = torch.full((4096,), 1.001)
    optimizer.step()
    one, other = (optimizer.state[weight]["exp_avg"] for weight in weights)
    assert len(one.unique()) == len(other.unique()) == 2
    assert not torch.equal(one, other)


def test_state_is_bf16_half_as_large_and_restored_bit_for_bit():
    def trained(steps):
        weight = nn.Parameter(torch.linspace(-1, 1, 300))
        model = _Holder(weight)
        optimizer = make_optimizer(model, OptimizerConfig(name="adamw_bf16", lr=0.01))
        return model, weight, optimizer, steps

    def go(weight, optimizer, first, last):
        for step in range(first, last + 1):
            weight.grad = torch.sin(torch.arange(300.0) * step)
            optimizer.step()

    model, weight, optimizer, _ = trained(6)
    go(weight, optimizer, 1, 6)
    again, other, second, _ = trained(3)
    go(other, second, 1, 3)
    saved = optimizer_tensors(second, again)
    assert {key.partition("/")[0]: tensor.dtype for key, tensor in saved.items()} == {
        "exp_avg": torch.bfloat16,
        "exp_avg_sq": torch.bfloat16,
        "step": torch.float32,
    }
    third_model, third, optimizer_of_third, _ = trained(0)
    third.data.copy_(other.data)
    restore_optimizer(optimizer_of_third, third_model, saved)
    go(third, optimizer_of_third, 4, 6)
    assert torch.equal(third, weight)
    assert state_bytes(model, OptimizerConfig(name="adamw_bf16")) == 4 * 300


class _Holder(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
