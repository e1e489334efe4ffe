"""check_loss on losses of preferences and reward models: ours pass, and each promise is broken once on purpose."""

import pytest
import torch
from torch.nn.functional import logsigmoid, softplus

from tests.train.verdicts import only_failure, outcomes
from whet.algorithms.preference.losses import dpo
from whet.train.check import probes
from whet.train.check.checks import LOSSES, check_loss, kind_of
from whet.train.check.loss import check_loss_of


@pytest.mark.parametrize("name", LOSSES)
def test_every_packaged_loss_passes(name):
    report = check_loss(name, {})
    assert not report.failed, outcomes(report.findings, "failed")


def test_what_is_neither_right_nor_wrong_is_said():
    noted = {name: {*outcomes(check_loss(name, {}).findings, "note")} for name in ("dpo", "apo_down")}
    assert noted == {"dpo": set(), "apo_down": {"direction"}}
    told = outcomes(check_loss("apo_down", {}).findings, "note")["direction"]  # −β/4 + β/4
    assert told.startswith("at the first step there is no gradient for 7 of 7 chosen that should go up; the others are")


# Pairs


def naive(chosen, rejected, chosen_ref, rejected_ref, *, beta=0.1):
    return -torch.log(torch.sigmoid(beta * (chosen - chosen_ref - rejected + rejected_ref)))


def unclamped_odds(chosen, rejected, chosen_tokens, rejected_tokens):
    better, worse = chosen / chosen_tokens, rejected / rejected_tokens
    return -logsigmoid(better - torch.log(1 - better.exp()) - worse + torch.log(1 - worse.exp()))


def steep_at_nothing(chosen, rejected):
    return -(chosen - rejected) + (chosen - rejected).abs().sqrt() * 0


def centred(chosen, rejected):
    gap = chosen - rejected
    return -logsigmoid(gap - gap.mean())


def by_place(chosen, rejected):
    return -logsigmoid(chosen - rejected) * (1 + torch.arange(len(chosen)))


def averaged(chosen, rejected):
    return -logsigmoid(chosen - rejected).mean()


def flipped(chosen, rejected, chosen_ref, rejected_ref):
    return dpo(rejected, chosen, rejected_ref, chosen_ref)


def one_sided(chosen, rejected):
    return softplus(-chosen) + rejected.detach() * 0


def stopped(chosen, rejected):
    return -logsigmoid(chosen.detach() - rejected)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        return values * 1.0

    @staticmethod
    def backward(context, slope):
        return slope / 2


def wrong_backward(chosen, rejected):
    return -logsigmoid(Halved.apply(chosen) - rejected)


def idle_option(chosen, rejected, *, beta=0.1, gamma=1.0):
    return -logsigmoid(beta * (chosen - rejected))


def idle_reference(chosen, rejected, chosen_ref, rejected_ref):
    return -logsigmoid(chosen - rejected - chosen_ref)


def in_place(chosen, rejected, chosen_ref, rejected_ref):
    return -logsigmoid(chosen - chosen_ref.mul_(0.5) - rejected + rejected_ref)


@pytest.mark.parametrize(
    ("broken", "check", "told"),
    [
        (naive, "finite", "returns inf at [0] on very large margins on the wrong side"),
        (unclamped_odds, "finite", "on tokens of probability one"),
        (steep_at_nothing, "finite", "has a gradient of nan at"),
        (centred, "micro-batches", "computing 1 row at a time changes ["),
        (by_place, "order", "the place of a row in the batch counts"),
        (
            averaged,
            "shape",
            "returns shape () on ordinary float64 input, not (7,): return one loss per unit",
        ),
        (flipped, "direction", "at the first step chosen at [0] should go up and has a gradient of "),
        (one_sided, "gradient", "no gradient reaches rejected, so nothing would be learned"),
        (stopped, "gradient", "no gradient reaches chosen, so nothing would be learned"),
        (wrong_backward, "gradient", "nothing stops the gradient on the way: a backward of your own is wrong"),
        (idle_option, "terms and options", "option 'gamma' changes nothing from 1.0 to 2.5: use it or leave it out"),
        (
            idle_reference,
            "terms and options",
            "takes 'rejected_ref' and does not use it, so the loop would make it for nothing",
        ),
        (in_place, "inputs", "changes its input 'chosen_ref' in place"),
    ],
)
def test_a_loss_of_pairs_that_breaks_a_promise_is_told_which(broken, check, told):
    assert kind_of(broken, "mine") == "pair"
    failed = outcomes(check_loss_of(broken, "pair"), "failed")
    assert told in failed[check], failed
    assert "\n" not in failed[check]


@pytest.mark.parametrize(
    ("broken", "check"),
    [(naive, "finite"), (flipped, "direction"), (idle_option, "terms and options"), (wrong_backward, "gradient")],
)
def test_one_broken_promise_is_not_reported_as_several(broken, check):
    only_failure(check_loss_of(broken, "pair"), check)


def test_an_option_or_a_term_may_wait_for_a_switch():
    def switched(chosen, rejected, chosen_tokens, *, by_length=False, power=1.0):
        gap = chosen - rejected
        return -logsigmoid(gap / chosen_tokens**power if by_length else gap)

    assert outcomes(check_loss_of(switched, "pair"), "failed") == {}


def test_a_stopped_gradient_is_a_note():
    def weighed(chosen, rejected):
        return -torch.sigmoid(rejected - chosen).detach() * (chosen - rejected)

    findings = check_loss_of(weighed, "pair")
    assert outcomes(findings, "failed") == {}
    assert "so it is right if the stop is meant" in outcomes(findings, "note")["gradient"]


# Labelled completions and reward models


def ignores_labels(logprobs, labels, logprobs_ref):
    return -logsigmoid(logprobs - logprobs_ref) + 0 * labels


def point_of_the_batch(logprobs, labels, logprobs_ref):
    above = logprobs - logprobs_ref - (logprobs - logprobs_ref).mean().detach()
    return -logsigmoid(torch.where(labels, above, -above))


def margins_added(chosen_scores, rejected_scores, margins):
    return -logsigmoid(rejected_scores - chosen_scores + margins)


def not_a_logit(scores, labels):
    return -torch.where(labels, torch.sigmoid(scores), 1 - torch.sigmoid(scores)).log()


def wrong_class(scores, classes):
    return -scores.log_softmax(dim=1).gather(1, (classes[:, None] + 1) % 3)[:, 0]


@pytest.mark.parametrize(
    ("broken", "unit", "check", "told"),
    [
        (ignores_labels, "label", "direction", "logprobs at [1] should go down"),
        (ignores_labels, "label", "terms and options", "takes 'labels' and does not use it"),
        (point_of_the_batch, "label", "micro-batches", "rows are mixed, by a mean or a deviation over the batch"),
        (margins_added, "preference", "direction", "at the first step chosen_scores at [0] should go up"),
        (not_a_logit, "outcome", "finite", "returns inf at"),
        (wrong_class, "process", "direction", "scores at [0, 0] should go up"),
    ],
)
def test_other_losses_that_break_a_promise_are_told_which(broken, unit, check, told):
    assert kind_of(broken, "mine") == unit
    failed = outcomes(check_loss_of(broken, unit), "failed")
    assert told in failed[check], failed


@pytest.mark.parametrize("unit", ["pair", "label", "preference", "outcome", "process"])
def test_the_inputs_are_what_their_names_say(unit):
    """Far on the right side is where what should be up is up, by a margin that naive formulas do not survive."""
    supply = probes.supply_for(unit)
    for sign in (1.0, -1.0):
        given = probes.apart(supply, sign)
        for term, way in probes.directions(supply)[1].items():
            size = given[term] - given.get(f"{term}_ref", torch.zeros(()))
            assert bool((size.abs() >= 1000).all())
            assert bool((size.sign() == sign * way).all())
    start = probes.first_step(supply)
    for term in probes.trained_terms(supply):
        assert torch.equal(start[term], start.get(f"{term}_ref", torch.zeros_like(start[term])))
        assert torch.equal(start[term], start[term.replace("rejected", "chosen")])
