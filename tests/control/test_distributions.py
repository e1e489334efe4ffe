"""Log-probs and entropies against sums, integrals and frequencies in NumPy."""

import itertools
import math

import numpy as np
import pytest
import torch

from whet.control.distributions import Bernoulli, Categorical, Gaussian

ROWS = torch.tensor([[0.3, -1.0, 2.0, 0.5, 0.1], [0.0, 0.0, 0.0, 3.0, -3.0]])
CATEGORICAL = Categorical((3, 2), (0, 0), is_single=False)
BERNOULLI = Bernoulli(5, (5,))
DRAWS = 20_000


def softmax(row):
    return np.exp(row) / np.exp(row).sum()


@pytest.mark.parametrize(
    ("distribution", "choices"),
    [
        (CATEGORICAL, list(itertools.product(range(3), range(2)))),
        (BERNOULLI, list(itertools.product(range(2), repeat=5))),
    ],
    ids=["categorical", "bernoulli"],
)
def test_of_choices(distribution, choices):
    """Probabilities are the products, entropies the sums over all choices, and draws are as frequent as they say."""
    actions = torch.tensor(choices)
    for row in ROWS:
        expected = []
        for choice in choices:
            if distribution is CATEGORICAL:
                p = softmax(row[:3].numpy())[choice[0]] * softmax(row[3:].numpy())[choice[1]]
            else:
                yes = 1 / (1 + np.exp(-row.numpy()))
                p = np.prod(np.where(np.array(choice) == 1, yes, 1 - yes))
            expected.append(p)
        found = distribution.logprobs(row.expand(len(choices), -1), actions)
        assert found.exp().tolist() == pytest.approx(expected, rel=1e-5)
        entropy = -sum(p * math.log(p) for p in expected)
        assert float(distribution.entropies(row[None])[0]) == pytest.approx(entropy, rel=1e-4)
        noise = distribution.draw_noise((DRAWS,), torch.Generator().manual_seed(3))
        drawn = distribution.sample(row.expand(DRAWS, -1), noise)
        shares = [(drawn == action).all(dim=1).double().mean().item() for action in actions]
        assert shares == pytest.approx(expected, abs=0.015)
        assert distribution.mode(row[None])[0].tolist() == list(choices[int(np.argmax(expected))])


@pytest.mark.parametrize("is_squashed", [False, True])
def test_of_numbers(is_squashed):
    """The density of what the environment gets integrates to 1, and its mean is that of the draws."""
    distribution = Gaussian((-1.0,), (3.0,), (1,), is_squashed=is_squashed)
    parameters = torch.tensor([[0.4, math.log(0.6)]])
    actions = torch.linspace(-3.5, 4.5, 20_001)[:, None].double()
    density = distribution.logprobs(parameters.double().expand(len(actions), -1), actions).exp().numpy()
    seen = -1 + (np.tanh(actions.numpy()[:, 0]) + 1) * 2 if is_squashed else actions.numpy()[:, 0]
    assert np.trapezoid(density, seen) == pytest.approx(1.0, abs=1e-4)
    noise = distribution.draw_noise((DRAWS,), torch.Generator().manual_seed(4))
    drawn = distribution.sample(parameters.expand(DRAWS, -1), noise).numpy()
    taken = -1 + (np.tanh(drawn) + 1) * 2 if is_squashed else drawn
    assert taken.mean() == pytest.approx(np.trapezoid(density * seen, seen), abs=0.03)
    assert float(distribution.entropies(parameters)[0]) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 0.36))


def test_the_log_prob_of_a_squashed_action_at_the_edge_is_finite():
    distribution = Gaussian((-1.0,), (1.0,), (1,), is_squashed=True)
    parameters = torch.tensor([[30.0, 0.0]], requires_grad=True)
    found = distribution.logprobs(parameters, torch.tensor([[30.0]]))
    found.sum().backward()
    assert bool(found.isfinite().all())
    assert parameters.grad is not None
    assert bool(parameters.grad.isfinite().all())
