"""KL estimators against the true divergence, by listing every completion: sign, direction, bias and gradient."""

from dataclasses import replace

import pytest
import torch

from whet.algorithms.advantages import raw, to_go, token_rewards, unscaled
from whet.algorithms.policy_loss import k1, k2, k3, sequence_sum, unbiased
from whet.algorithms.table import ALGORITHMS, KL_ESTIMATORS, token_loss

from .tabular import World, chances, close, gradient, logprobs, policy, world

pytestmark = pytest.mark.usefixtures("double")
SPACE = world(3)
POLICY, REFERENCE, OLD = policy(SPACE, 1), policy(SPACE, 2).detach(), policy(SPACE, 3).detach()


def sequence_divergence(space: World, one, other):
    """KL(one ‖ other) between distributions over whole completions."""
    return (chances(space, one) * (logprobs(space, one) - logprobs(space, other)).sum(dim=2)).sum()


def visits(space: World, logits):
    """(prefixes,): how often the policy comes by each prefix. A constant here."""
    chance = chances(space, logits).detach()[0]
    return torch.stack(
        [
            sum(c for c, s in zip(chance, space.sequences, strict=True) if s[: len(prefix)] == prefix)
            for prefix in space.prefixes
        ]
    )


def token_divergence(space: World, one, other, visited_by):
    """Σ over prefixes of how often they are visited, held fixed, times KL(one ‖ other) of the next token."""
    p, q = one[0].log_softmax(1), other[0].log_softmax(1)
    return (visits(space, visited_by) * (p.exp() * (p - q)).sum(dim=1)).sum()


def in_loss(estimator, sampler=POLICY):
    """E[Σ_t estimate] over completions of the sampler: what the KL term of the loss adds, and its gradient."""
    row = replace(ALGORITHMS["reinforce"], kl=estimator, kl_place="loss")
    lp = logprobs(SPACE, POLICY)[0]
    supply = {
        "logprobs": lp,
        "logprobs_old": logprobs(SPACE, sampler)[0].detach(),
        "logprobs_ref": logprobs(SPACE, REFERENCE)[0],
        "advantages": torch.zeros_like(lp),
        "correction": torch.ones_like(lp),
    }
    weights, _ = row.weighting(SPACE.mask)
    per_token = token_loss(row, supply, kl_coefficient=1.0) * weights
    value = (chances(SPACE, sampler).detach()[0] * per_token.sum(dim=1)).sum()
    return value.item(), gradient(value, POLICY)


def in_reward(estimator, advantage=raw):
    """The expected gradient of −loss where the estimates, as constants, are taken out of the reward."""
    row = replace(ALGORITHMS["reinforce"], advantage=advantage, kl=estimator, scaling=unscaled, weighting=sequence_sum)
    lp, ref = logprobs(SPACE, POLICY)[0], logprobs(SPACE, REFERENCE)[0]
    terms = (lp.detach(), lp.detach(), ref) if estimator is unbiased else (lp.detach(), ref)
    per_token = token_rewards(torch.zeros(len(lp)), estimator(*terms), SPACE.mask)
    advantages = to_go(per_token, SPACE.mask) if advantage is to_go else per_token.sum(dim=1, keepdim=True)
    supply = {"logprobs": lp, "advantages": advantages.expand(lp.shape), "correction": torch.ones_like(lp)}
    weights, _ = row.weighting(SPACE.mask)
    loss = (token_loss(row, supply) * weights).sum(dim=1)
    return -gradient((chances(SPACE, POLICY).detach()[0] * loss).sum(), POLICY)


FORWARD = sequence_divergence(SPACE, POLICY, REFERENCE)


def test_the_divergence_of_completions_is_the_sum_of_that_of_tokens():
    assert FORWARD.item() == pytest.approx(token_divergence(SPACE, POLICY, REFERENCE, POLICY).item(), rel=1e-12)
    backward = sequence_divergence(SPACE, REFERENCE, POLICY).item()
    assert abs(backward - FORWARD.item()) > 0.1, "the two directions are told apart here"


@pytest.mark.parametrize("name", ["k1", "k3", "unbiased"])
def test_the_expectation_is_the_divergence_of_policy_from_reference(name):
    assert in_loss(KL_ESTIMATORS[name])[0] == pytest.approx(FORWARD.item(), rel=1e-12)


def test_the_expectation_of_k2_is_half_the_mean_square_and_not_the_divergence():
    value = in_loss(k2)[0]
    d = logprobs(SPACE, POLICY) - logprobs(SPACE, REFERENCE)
    assert value == pytest.approx((chances(SPACE, POLICY) * d.square().sum(dim=2)).sum().item() / 2)
    assert abs(value / FORWARD.item() - 1) > 0.05


def test_as_a_loss_k1_has_no_gradient():
    assert in_loss(k1)[1].abs().max() < 1e-14


@pytest.mark.parametrize("name", ["k2", "unbiased"])
def test_as_a_loss_k2_and_unbiased_have_the_gradient_of_the_divergence_of_tokens(name):
    found = in_loss(KL_ESTIMATORS[name])[1]
    assert close(found, gradient(token_divergence(SPACE, POLICY, REFERENCE, POLICY), POLICY))
    # That of whole completions also has the change of which prefixes are visited; only the reward can carry it.
    assert not close(found, gradient(FORWARD, POLICY))


def test_as_a_loss_k3_has_the_gradient_of_the_divergence_of_reference_from_policy():
    found = in_loss(k3)[1]
    assert close(found, gradient(token_divergence(SPACE, REFERENCE, POLICY, POLICY), POLICY))
    forward = gradient(token_divergence(SPACE, POLICY, REFERENCE, POLICY), POLICY)
    assert (found - forward).norm() > 0.1 * forward.norm()


def test_unbiased_stays_unbiased_when_an_older_policy_sampled_and_k2_and_k3_do_not():
    true = token_divergence(SPACE, POLICY, REFERENCE, OLD)
    value, found = in_loss(unbiased, sampler=OLD)
    assert value == pytest.approx(true.item(), rel=1e-12)
    assert close(found, gradient(true, POLICY))
    for other in (k2, k3):
        value, found = in_loss(other, sampler=OLD)
        assert abs(value / true.item() - 1) > 0.05
        assert not close(found, gradient(true, POLICY))


@pytest.mark.parametrize("advantage", [raw, to_go])
def test_k1_in_the_reward_is_the_gradient_of_the_divergence_of_completions(advantage):
    assert close(in_reward(k1, advantage), -gradient(FORWARD, POLICY))


@pytest.mark.parametrize("name", ["k2", "k3", "unbiased"])
def test_no_other_estimator_belongs_in_the_reward(name):
    wrong = in_reward(KL_ESTIMATORS[name]) + gradient(FORWARD, POLICY)
    assert wrong.norm() > 0.1 * gradient(FORWARD, POLICY).norm()


def test_the_inverted_estimators_of_other_code_are_caught():
    """−d as k1 and exp(d) − 1 − d as k3: the first pays the policy for leaving, the second is another number."""

    def inverted_k1(logprobs, logprobs_ref):
        return logprobs_ref - logprobs

    def inverted_k3(logprobs, logprobs_ref):
        return torch.expm1(logprobs - logprobs_ref) - (logprobs - logprobs_ref)

    assert in_loss(inverted_k1)[0] == pytest.approx(-FORWARD.item())
    assert close(in_reward(inverted_k1), gradient(FORWARD, POLICY)), "uphill"
    assert abs(in_loss(inverted_k3)[0] / FORWARD.item() - 1) > 0.1
    assert not close(in_loss(inverted_k3)[1], in_loss(k3)[1])


def test_the_inverted_estimators_by_hand():
    # π = (0.9, 0.1), reference (0.5, 0.5): KL = 0.9·ln 1.8 + 0.1·ln 0.2 = 0.3681
    p, q = torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.5])
    d = p.log() - q.log()
    assert (p * k1(p.log(), q.log())).sum().item() == pytest.approx(0.3681, abs=1e-4)
    assert (p * k3(p.log(), q.log())).sum().item() == pytest.approx(0.3681, abs=1e-4)
    assert (p * (torch.expm1(d) - d)).sum().item() == pytest.approx(0.2719, abs=1e-4)
