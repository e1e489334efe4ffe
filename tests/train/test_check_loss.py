"""check_loss: what we ship passes, and each promise is broken once on purpose and named in the sentence."""

import re
import sys
from types import FunctionType

import pytest
import torch

from tests.train.verdicts import only_failure, outcomes
from whet.algorithms.cells import per_sequence, terms
from whet.algorithms.policy_loss import clip
from whet.algorithms.table import ADVANTAGES, KL_ESTIMATORS, SURROGATES
from whet.train.check import probes
from whet.train.check.advantage import check_advantage
from whet.train.check.checks import check_loss, kind_of
from whet.train.check.loss import check_loss_of


def check_surrogate(cell):
    return check_loss_of(cell, "surrogate")


# What we ship


@pytest.mark.parametrize("name", [*SURROGATES, *KL_ESTIMATORS])
def test_every_packaged_loss_passes(name):
    report = check_loss(name, {})
    assert report.kind == "surrogate"
    assert not report.failed, outcomes(report.findings, "failed")
    assert len(report.findings) == 11
    notes = outcomes(report.findings, "note")
    assert ("direction" in notes) == (name in KL_ESTIMATORS)
    if name in {"stopped_ratio", "clip", "sequence_clip"}:
        assert ("gradient" in notes) == (name == "stopped_ratio")


@pytest.mark.parametrize("name", ADVANTAGES)
def test_every_packaged_advantage_passes(name):
    report = check_loss(name, {})
    assert report.kind == "advantage"
    assert not report.failed, outcomes(report.findings, "failed")
    notes, passed = outcomes(report.findings, "note"), outcomes(report.findings, "passed")
    assert ("padding" in passed) == bool({"token_rewards", "values", "mask"} & set(terms(ADVANTAGES[name])))
    if name in {"over_batch", "over_valid", "max_likelihood", "center", "gae"}:
        assert ("other groups" in notes) == (name in {"over_batch", "over_valid"})
        assert ("negative rewards" in notes) == (name == "max_likelihood")


def test_facts_about_advantages_are_the_ones_that_algebra_gives():
    said = outcomes(check_loss("raw", {}).findings, "note")
    assert said["equal rewards"] == "groups of equal rewards get advantages up to 1, not 0"
    alone = outcomes(check_loss("leave_one_out", {}).findings, "note")["group of one"]
    assert alone == "needs groups of two or more: raises ZeroDivisionError: division by zero on groups of one"


# Surrogates that break one promise


def mean_of_batch(logprobs, advantages, mask):
    return -(advantages - (advantages * mask).sum() / mask.sum()) * logprobs


def deviation_of_batch(logprobs, advantages, mask):
    return -advantages * logprobs / advantages[mask].square().mean().sqrt().clamp(min=0.1)


def width(logprobs, advantages, mask):
    return -advantages * (logprobs * mask).sum(dim=1, keepdim=True) / mask.shape[1]


def outside(logprobs, advantages):
    return -advantages * logprobs.mean(dim=1, keepdim=True)


def columns(logprobs, advantages):
    return -advantages * logprobs * 0.9 ** torch.arange(logprobs.shape[1])


def place_in_batch(logprobs, advantages):
    return -advantages * logprobs * (1 + torch.arange(len(logprobs)))[:, None]


def flipped(logprobs, advantages):
    return advantages * logprobs


def one_sided(logprobs, advantages):
    return -advantages.clamp(min=0) * logprobs


def without_advantage(logprobs, advantages):
    return -(advantages + 0.1) * logprobs


def noisy(logprobs, advantages):
    return -advantages * logprobs + 0.01 * torch.randn(logprobs.shape)


def in_place(logprobs, advantages):
    return -advantages.clamp_(min=-1.0) * logprobs


def overflowing(logprobs, logprobs_old, advantages):
    ratio = (logprobs - logprobs_old).square().exp()
    return -ratio * advantages * logprobs


def divided_by_nothing(logprobs, advantages, mask):
    return -advantages * (logprobs * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)


def steep(logprobs, logprobs_old, advantages):
    return -advantages * (logprobs + 1e-3 * (logprobs - logprobs_old).square().sqrt().sqrt())


def impossible(logprobs, advantages):
    return -advantages * (logprobs - 1e-3 * torch.log(-torch.expm1(logprobs)))


def squeezed(logprobs, advantages):
    return (-advantages * logprobs).squeeze(0)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        return values * 1.0

    @staticmethod
    def backward(context, slope):
        return slope / 2


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        return values * 1.0

    @staticmethod
    def backward(context, slope):
        raise KeyError("no way back")


def wrong_backward(logprobs, advantages):
    return -advantages * Halved.apply(logprobs)


def wrong_backward_and_stop(logprobs, logprobs_old, advantages):
    return -(logprobs - logprobs_old).detach().exp() * advantages * Halved.apply(logprobs)


def raising_backward(logprobs, advantages):
    return -advantages * Raising.apply(logprobs)


@pytest.mark.parametrize(
    ("broken", "check", "told"),
    [
        (mean_of_batch, "micro-batches", "rows are mixed, by a mean or a deviation over the batch"),
        (place_in_batch, "order", "the place of a row in the batch counts"),
        (width, "padding", "or divides by the width"),
        (outside, "padding", "reads tokens outside the mask"),
        (columns, "packing", "takes the column for the position of a token"),
        (flipped, "direction", "at the first step logprobs at [2, 1] should go up and has a gradient of 0"),
        (one_sided, "direction", "no gradient at all for logprobs that should go down: nothing is learned from them"),
        (without_advantage, "direction", "should stay and has a gradient of -0"),
        (noisy, "determinism", "another seed gives another result: it draws random numbers"),
        (in_place, "inputs", "changes its input 'advantages' in place"),
        (overflowing, "finite", "on a log-ratio of +20"),
        (divided_by_nothing, "finite", "on a row without a trained token"),
        (steep, "finite", "has a gradient of nan at"),
        (impossible, "finite", "on tokens of probability one"),
        (squeezed, "micro-batches", "returns shape (9,) on 1 row at a time, not (1, 9): return one loss per token"),
        (wrong_backward, "gradient", "nothing stops the gradient on the way: a backward of your own is wrong"),
        (wrong_backward_and_stop, "gradient", "the stops of the gradient do not explain it"),
        (raising_backward, "gradient", "raises KeyError: 'no way back' on the backward pass of ordinary input"),
    ],
)
def test_a_surrogate_that_breaks_a_promise_is_told_which(broken, check, told):
    failed = outcomes(check_surrogate(broken), "failed")
    assert told in failed[check], failed
    assert "\n" not in failed[check]


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (deviation_of_batch, "micro-batches"),
        (columns, "packing"),
        (flipped, "direction"),
        (in_place, "inputs"),
        (overflowing, "finite"),
        (wrong_backward, "gradient"),
    ],
)
def test_one_broken_promise_is_not_reported_as_several(broken, check):
    only_failure(check_surrogate(broken), check)


def test_the_numbers_in_a_sentence_are_those_of_the_place_it_names():
    supply = probes.supply_for("surrogate")
    sentence = outcomes(check_surrogate(mean_of_batch), "failed")["micro-batches"]
    words = re.sub(r"[],[]", "", sentence).split()
    row, token = (int(words[words.index("changes") + place]) for place in (1, 2))
    before, after = float(words[words.index("from") + 1]), float(words[words.index("to") + 1])
    mask, advantages = supply["mask"], supply["advantages"]
    own, logprob = advantages[row, token], supply["logprobs"][row, token]
    assert before == pytest.approx(float(-(own - advantages[mask].mean()) * logprob), rel=1e-5)
    assert after == pytest.approx(float(-(own - advantages[row][mask[row]].mean()) * logprob), rel=1e-5)


# One loss per token or one per sequence: what is declared must be so


def whole_row(logprobs, logprobs_old, advantages, mask):
    log_ratio = ((logprobs - logprobs_old) * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return -log_ratio.exp() * advantages


def of_each_token(logprobs, logprobs_old, advantages, mask):
    """Per token, and it reads the mask: tokens of long rows count less."""
    return -(logprobs - logprobs_old).exp() * advantages / mask.sum(dim=1, keepdim=True).clamp(min=1)


def same_value(logprobs, advantages):
    """−A on every token, but each has a gradient of its own."""
    return -(logprobs - logprobs.detach()).exp() * advantages


def test_a_row_with_one_loss_must_be_declared():
    told = only_failure(check_surrogate(whole_row), "per sequence")
    assert told.startswith(
        "every token of a row has the loss and the gradient of its sequence, which the function does not"
    )
    assert "put @per_sequence (of whet.algorithms.cells) above it" in told


def test_what_is_declared_must_be_so():
    declared = per_sequence(FunctionType(whole_row.__code__, whole_row.__globals__))
    assert outcomes(check_surrogate(declared), "passed")["per sequence"] == "one loss per sequence, as it is declared"
    for function in (lambda logprobs, advantages: -advantages * logprobs, same_value):
        wrong = per_sequence(FunctionType(function.__code__, function.__globals__))
        told = only_failure(check_surrogate(wrong), "per sequence")
        assert "is declared @per_sequence, and the first and the last token of a row have different losses or" in told


@pytest.mark.parametrize("surrogate", [of_each_token, same_value])
def test_a_loss_per_token_need_not_be_declared_whatever_it_takes(surrogate):
    findings = check_surrogate(surrogate)
    assert outcomes(findings, "failed") == {}
    assert outcomes(findings, "passed")["per sequence"] == "one loss per token"


# Functions that are hardly surrogates at all


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (
            lambda logprobs, advantages: (-advantages * logprobs).mean(),
            "returns shape () on ordinary float64 input, not (12, 9)",
        ),
        (
            lambda logprobs, advantages: (-advantages * logprobs).sum(dim=1),
            "returns shape (12,) on ordinary float64 input, not (12, 9)",
        ),
        (lambda logprobs, advantages: None, "returns a NoneType on ordinary float64 input, not a tensor"),
        (lambda logprobs, advantages: logprobs > 0, "returns bool on ordinary float64 input"),
        (lambda logprobs, advantages: 1 / 0, "raises ZeroDivisionError: division by zero on ordinary float64 input"),
        (lambda logprobs, advantages: sys.exit(3), "raises SystemExit: 3 on ordinary float64 input"),
    ],
)
def test_what_cannot_be_compared_is_said_once(broken, told):
    findings = check_surrogate(broken)
    assert told in only_failure(findings, "shape")
    assert [finding.check for finding in findings] == ["shape", "rest"]
    assert "micro-batches, order" in findings[1].sentence


def test_what_is_kept_between_calls_is_found():
    calls = []

    def counting(logprobs, advantages):
        calls.append(1)
        return -advantages * logprobs * len(calls)

    failed = outcomes(check_surrogate(counting), "failed")
    assert "two calls with the same input give different results: it keeps a state" in failed["determinism"]


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    check_surrogate(clip)
    check_advantage(ADVANTAGES["center"])
    assert torch.equal(torch.rand(3), expected)


# What is refused


def test_the_kind_follows_from_the_terms():
    assert kind_of(lambda logprobs, advantages, *, low=0.1: None, "mine") == "surrogate"
    assert kind_of(lambda logprobs: None, "mine") == "surrogate"
    assert kind_of(lambda rewards, counts: None, "mine") == "advantage"
    assert kind_of(lambda token_rewards, values, mask: None, "mine") == "advantage"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda logprob, advantages: None, "takes 'logprob', which the loop does not supply; did you mean 'logprobs'?"),
        (
            lambda logprobs, rewards: None,
            "logprobs and so is of kind surrogate, which is not supplied with rewards",
        ),
        (
            lambda rewards, advantages: None,
            "so is of kind advantage, which is not supplied with advantages",
        ),
        (lambda advantages, mask: None, "takes advantages, mask, by which it is none of these (pair: chosen"),
        (lambda: None, "takes nothing, by which it is none of these"),
        (lambda logprobs, low=0.2: None, "takes 'low' by position; make it an option: write *, before"),
        (lambda logprobs, *rest: None, "takes *rest: name what it needs"),
        (lambda logprobs, **rest: None, "takes *rest: name what it needs"),
        (lambda logprobs, *, low: None, "option 'low' has no default"),
    ],
)
def test_a_signature_that_no_loop_could_serve_is_refused(function, told):
    with pytest.raises(ValueError, match=r"^mine") as refusal:
        kind_of(function, "mine")
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)
