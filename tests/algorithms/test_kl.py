"""KL estimators as numbers; what they estimate is in test_enumeration_kl.py."""

import math

import pytest
import torch

from whet.algorithms.policy_loss import k1, k2, k3, unbiased


def log(*numbers):
    return torch.tensor(numbers, dtype=torch.float64).log()


def test_by_hand_with_the_sign_of_policy_over_reference():
    # π = 0.5, reference 0.25: d = log 2
    policy, reference = log(0.5), log(0.25)
    assert float(k1(policy, reference)) == pytest.approx(math.log(2))
    assert float(k2(policy, reference)) == pytest.approx(math.log(2) ** 2 / 2)
    assert float(k3(policy, reference)) == pytest.approx(0.5 - 1 + math.log(2))
    assert float(unbiased(policy, log(0.4), reference)) == pytest.approx(1.25 * (0.5 - 1 + math.log(2)))


@pytest.mark.parametrize("estimator", [k1, k2, k3, lambda policy, reference: unbiased(policy, log(0.3), reference)])
def test_zero_where_policy_and_reference_agree(estimator):
    assert float(estimator(log(0.7), log(0.7))) == 0.0


@pytest.mark.parametrize("estimator", [k2, k3])
def test_never_negative(estimator):
    d = torch.linspace(-5, 5, 101, dtype=torch.float64)
    assert bool((estimator(d, torch.zeros_like(d)) >= 0).all())


def test_k3_keeps_its_digits_near_zero():
    d = torch.tensor(1e-4, dtype=torch.float32)
    # exp(−d) − 1 + d = d²/2 − d³/6 + …; written with exp it rounds to 0 or 1.2e-7 in fp32
    assert float(k3(d, torch.zeros(()))) == pytest.approx(5e-9, rel=0.5)
