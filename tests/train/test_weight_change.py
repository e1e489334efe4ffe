"""The size of a step's change of the weights, against norms of whole models."""

from typing import Any

import pytest
import torch
from torch import nn

from whet.config.parts import OptimizerConfig
from whet.train.optimizers import weight_change
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.optimizers.weight_change import WeightChange


def model(rows: int = 3) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2, rows)


def measured(one: nn.Module, optimizer: torch.optim.Optimizer, change: WeightChange) -> tuple[float, float]:
    """What is told of one step, and the norms of all trained weights."""
    before = [p.detach().clone().double() for p in one.parameters() if p.requires_grad]
    change.remember()
    for p in one.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    optimizer.step()
    after = [p.detach().double() for p in one.parameters() if p.requires_grad]
    moved = sum(float((a - b).square().sum()) for a, b in zip(after, before, strict=True))
    (told,) = change.metrics().values()
    return told, (moved / sum(float(b.square().sum()) for b in before)) ** 0.5


def test_a_change_by_hand() -> None:
    one = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        one.weight.copy_(torch.tensor([[3.0, 4.0]]))
    change = WeightChange(torch.optim.SGD(one.parameters(), lr=1.0))
    change.remember()
    with torch.no_grad():
        one.weight.add_(torch.tensor([[0.03, -0.04]]))
    assert change.metrics() == {"weights/change": pytest.approx(0.01, rel=1e-5)}
    change.remember()
    assert change.metrics() == {"weights/change": 0}


@pytest.mark.parametrize("name", ["adamw", "adamw_bf16", "lion", "muon"])
def test_a_small_model_is_compared_as_a_whole_whatever_its_optimizer(name: Any) -> None:
    one = model()
    optimizer = make_optimizer(one, OptimizerConfig(name=name, lr=0.01))
    change = WeightChange(optimizer)
    for _ in range(2):
        told, wanted = measured(one, optimizer, change)
        assert told == pytest.approx(wanted, rel=1e-4)
        assert wanted > 1e-3


def test_weights_that_are_not_trained_do_not_count() -> None:
    one = nn.Sequential(model(), model())
    one[0].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in one.parameters() if p.requires_grad], lr=0.1)
    told, wanted = measured(one, optimizer, WeightChange(optimizer))
    assert told == pytest.approx(wanted, rel=1e-5)


def test_a_sample_tells_the_change_of_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 of 60,000 weights, from all of three layers whose changes differ in size."""
    monkeypatch.setattr(weight_change, "MOST", 1000)
    one = nn.Sequential(*(nn.Linear(100, 200, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD([{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(one.parameters())])
    change = WeightChange(optimizer)
    told, wanted = measured(one, optimizer, change)
    sampled = change._sampled()
    assert sampled is not None
    assert 900 < len(sampled) < 1100
    assert told == pytest.approx(wanted, rel=0.1)


def test_of_offloaded_master_weights_the_change_in_fp32_is_told() -> None:
    """A change below the last bit of bf16, which the weights themselves do not show."""
    one = model().to(torch.bfloat16)
    config = OptimizerConfig(name="adamw", lr=1e-6, master_weights="offload", weight_decay=0.0)
    optimizer = make_optimizer(one, config)
    change = WeightChange(optimizer)
    norm = sum(float(p.detach().double().square().sum()) for p in one.parameters()) ** 0.5
    for _ in range(2):
        change.remember()
        before = [p.detach().clone() for p in one.parameters()]
        for p in one.parameters():
            p.grad = torch.ones(p.shape)
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), before, strict=True))
        # Adam moves each of the nine weights by the rate where the gradient is constant.
        assert change.metrics()["weights/change"] == pytest.approx(1e-6 * 9**0.5 / norm, rel=0.05)


def test_nothing_is_told_without_a_sample() -> None:
    assert WeightChange(torch.optim.SGD(model().parameters(), lr=1.0)).metrics() == {}
