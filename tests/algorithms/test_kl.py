"""KL estimators against the true divergence, by listing every outcome: sign, direction, bias and gradient."""

import math

import pytest
import torch

from whet.algorithms.kl import k1, k2, k3

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
TRUE = float((POLICY * (POLICY / REFERENCE).log()).sum())  # KL(policy ‖ reference) = 0.275


@pytest.mark.parametrize("estimator", [k1, k3])
def test_expectation_under_the_policy_is_the_divergence(estimator):
    estimate = float((POLICY * estimator(POLICY.log(), REFERENCE.log())).sum())
    assert estimate == pytest.approx(TRUE)


def test_the_direction_is_policy_against_reference():
    # The inverted estimator exp(d) − 1 − d, which some codebases call k3, gives 0.355 here; k1 inverted gives −0.275.
    assert pytest.approx(0.275, abs=1e-3) == TRUE
    d = POLICY.log() - REFERENCE.log()
    inverted = float((POLICY * (torch.expm1(d) - d)).sum())
    assert inverted == pytest.approx(0.355, abs=1e-3)
    assert abs(inverted - TRUE) > 0.05


def test_k2_is_half_the_squared_log_ratio():
    value = k2(torch.tensor(math.log(0.5)), torch.tensor(math.log(0.25)))
    assert float(value) == pytest.approx(math.log(2) ** 2 / 2)


@pytest.mark.parametrize("estimator", [k2, k3])
def test_never_negative(estimator):
    d = torch.linspace(-5, 5, 101, dtype=torch.float64)
    assert bool((estimator(d, torch.zeros_like(d)) >= 0).all())


def test_k3_keeps_its_digits_near_zero():
    d = torch.tensor(1e-4, dtype=torch.float32)
    # exp(−d) − 1 + d = d²/2 − d³/6 + …; written with exp it rounds to 0 or 1.2e-7 in fp32
    assert float(k3(d, torch.zeros(()))) == pytest.approx(5e-9, rel=0.5)


def test_gradient_of_k2_is_the_gradient_of_the_true_divergence():
    logits = torch.tensor([0.4, -0.1, 0.3], dtype=torch.float64, requires_grad=True)
    reference = REFERENCE.log()

    def gradient(value):
        return torch.autograd.grad(value, logits)[0]

    logprobs = logits.log_softmax(0)
    true = gradient((logprobs.exp() * (logprobs - reference)).sum())
    logprobs = logits.log_softmax(0)
    estimated = gradient((logprobs.exp().detach() * k2(logprobs, reference)).sum())
    assert torch.allclose(true, estimated)
    logprobs = logits.log_softmax(0)
    # k1 as a loss has expected gradient zero: it must be used in the reward, not in the loss.
    assert torch.allclose(gradient((logprobs.exp().detach() * k1(logprobs, reference)).sum()), torch.zeros(3).double())


def test_only_k1_in_the_reward_has_the_gradient_of_the_divergence():
    """In the reward the estimate is a constant weight on ∇log π; by enumeration only k1 then gives ∇KL."""
    logits = torch.tensor([1.5, -0.5, 0.2], dtype=torch.float64, requires_grad=True)
    reference = REFERENCE.log()
    logprobs = logits.log_softmax(0)
    (true,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits)

    def in_reward(estimator):
        logprobs = logits.log_softmax(0)
        weight = (logprobs.exp() * estimator(logprobs, reference)).detach()
        return torch.autograd.grad((weight * logprobs).sum(), logits)[0]

    assert torch.allclose(in_reward(k1), true)
    for wrong in (k2, k3):
        assert float((in_reward(wrong) - true).norm() / true.norm()) > 0.5
