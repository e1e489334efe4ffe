"""The MLP without a graph beside torch's layers and autograd."""

import pytest
import torch
from torch import nn

from whet.control.mlp import HeadedMlp, Mlp


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("widths", "outputs"), [((64, 64), 2), ((32,), 1), ((16, 24, 8), 1)])
def test_states_and_gradients_are_those_of_torch(activation, widths, outputs):
    torch.manual_seed(0)
    network, head = Mlp((5, *widths), activation), nn.Linear(widths[-1], outputs)
    weights = [*network.parameters(), *head.parameters()]
    rows, slope = torch.randn(37, 5), torch.randn(37, outputs)
    expected = head(network(rows))
    gradients = torch.autograd.grad(expected, weights, slope)
    fast = HeadedMlp(network, head)
    assert fast.suits(rows)
    states = fast.states(rows)
    torch.testing.assert_close(states[-1], expected.detach(), rtol=1e-5, atol=1e-6)
    for _ in range(2):  # gradients are set, not added
        fast.set_gradients(states, slope)
        for weight, gradient in zip(weights, gradients, strict=True):
            torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-5)


def test_weights_that_changed_or_moved_are_seen():
    network, head, rows = Mlp((3, 4), "tanh"), nn.Linear(4, 2), torch.randn(6, 3)
    fast = HeadedMlp(network, head)
    assert fast.suits(rows)
    fast.states(rows)
    with torch.no_grad():
        head.bias += 1.0
        network[0].weight.data = torch.randn(4, 3)
    assert fast.suits(rows)
    torch.testing.assert_close(fast.states(rows)[-1], head(network(rows)).detach())


def test_other_dtypes_are_left_to_torch():
    network, head = Mlp((3, 4), "tanh"), nn.Linear(4, 2)
    assert not HeadedMlp(network, head).suits(torch.randn(6, 3, dtype=torch.float64))
    assert not HeadedMlp(network.double(), head).suits(torch.randn(6, 3))
