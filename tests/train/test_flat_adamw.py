"""AdamW on one vector beside torch's."""

import pytest
import torch
from torch import nn

from whet.config import OptimizerConfig
from whet.train.optimizers.flat_adamw import FlatAdamW
from whet.train.optimizers.optimizer import make_optimizer, optimizer_tensors, restore_optimizer


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))


def stepped(made: nn.Module, optimizer: torch.optim.Optimizer, count: int, first: int = 0) -> None:
    """Steps on gradients that are clipped, some of them, to a norm of 1."""
    for number in range(first, first + count):
        rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        (made(rows).square().sum() * (10 if number % 2 else 0.01)).backward()
        if isinstance(optimizer, FlatAdamW):
            optimizer.descend(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_torch(decay):
    config = OptimizerConfig(lr=0.01, weight_decay=decay)
    flat, usual = model(), model()
    stepped(flat, make_optimizer(flat, config, is_flat=True), 6)
    stepped(usual, make_optimizer(usual, config), 6)
    for one, other in zip(flat.parameters(), usual.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [True, False])
def test_a_checkpoint_of_either_goes_on_in_it(kind):
    """The state has the names and shapes of torch's AdamW: a run that began with that one goes on in this one."""
    config = OptimizerConfig(lr=0.01, weight_decay=0.1)
    whole, stopped, resumed = model(), model(), model()
    stepped(whole, make_optimizer(whole, config, is_flat=True), 5)
    before = make_optimizer(stopped, config, is_flat=kind)
    stepped(stopped, before, 2)
    after = make_optimizer(resumed, config, is_flat=True)
    resumed.load_state_dict(stopped.state_dict())
    restore_optimizer(after, resumed, {name: one.clone() for name, one in optimizer_tensors(before, stopped).items()})
    stepped(resumed, after, 3, first=2)
    for one, other in zip(resumed.parameters(), whole.parameters(), strict=True):
        if kind:
            assert torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
