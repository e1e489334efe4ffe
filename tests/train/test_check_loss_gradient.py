"""check_loss: gradients that are stopped, at a kink, or of a backward of one's own."""

import pytest
import torch

from tests.train.verdicts import only_failure, outcomes
from whet.algorithms.policy_loss import clip
from whet.train.check import probes
from whet.train.check.loss import check_loss_of


def check_surrogate(cell):
    return check_loss_of(cell, "surrogate")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        return values * 2.0

    @staticmethod
    def backward(context, slope):
        return slope * 2


def stopped_by_no_grad(logprobs, logprobs_old, advantages):
    with torch.no_grad():
        ratio = (logprobs - logprobs_old).exp()
    return -ratio * advantages * logprobs


def stopped_by_data(logprobs, logprobs_old, advantages):
    return -(logprobs.data - logprobs_old).exp() * advantages * logprobs


def stopped_by_a_number(logprobs, advantages, mask):
    size = torch.stack([row[chosen].sum() for row, chosen in zip(logprobs, mask, strict=True)])
    return -advantages * logprobs * (1 + torch.tensor([abs(s) for s in size.tolist()], dtype=logprobs.dtype))[:, None]


def stopped_beside_a_right_backward(logprobs, logprobs_old, advantages):
    return -(logprobs - logprobs_old).detach().exp() * advantages * Doubled.apply(logprobs)


@pytest.mark.parametrize(
    "surrogate", [stopped_by_no_grad, stopped_by_data, stopped_by_a_number, stopped_beside_a_right_backward]
)
def test_a_stopped_gradient_is_a_note_and_not_a_failure(surrogate):
    findings = check_surrogate(surrogate)
    assert outcomes(findings, "failed") == {}
    told = outcomes(findings, "note")["gradient"]
    assert told.startswith("stops the gradient: autograd gives ")
    assert "so it is right if the stop is meant" in told


def test_a_backward_of_ones_own_that_is_right_passes():
    assert outcomes(check_surrogate(lambda logprobs, advantages: -advantages * Doubled.apply(logprobs)), "failed") == {}


def test_a_surrogate_that_lets_no_gradient_through_fails():
    failed = outcomes(check_surrogate(lambda logprobs, advantages: -advantages * logprobs.detach()), "failed")
    assert failed["gradient"].startswith("no gradient reaches logprobs, so nothing would be learned")
    assert failed["direction"].startswith("at the first step no gradient is above 0")


def test_computing_in_float32_is_no_failure():
    def single(logprobs, logprobs_old, advantages):
        return clip(logprobs.float(), logprobs_old.float(), advantages.float())

    findings = check_surrogate(single)
    assert outcomes(findings, "failed") == {}
    assert "gradient" in outcomes(findings, "passed")


def test_a_kink_is_not_taken_for_a_wrong_gradient():
    def hinge(logprobs, logprobs_old, advantages):  # its corner is at ratio 1, where every run begins
        return -advantages * (logprobs + 0.1 * (logprobs - logprobs_old).relu())

    findings = check_surrogate(hinge)
    assert outcomes(findings, "failed") == {}
    assert "too rough" in outcomes(findings, "note")["gradient"]


def test_a_backward_that_is_wrong_for_few_tokens_is_found():
    class WrongBelow(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            context.save_for_backward(values)
            return values * 1.0

        @staticmethod
        def backward(context, slope):
            (values,) = context.saved_tensors
            return torch.where(values < -3.0, slope / 2, slope)

    supply = probes.supply_for("surrogate")
    assert 0 < int((supply["logprobs"] < -3.0)[supply["mask"]].sum()) < 0.25 * int(supply["mask"].sum())
    only_failure(check_surrogate(lambda logprobs, advantages: -advantages * WrongBelow.apply(logprobs)), "gradient")
