"""The two tables: what rows ask for, and the implicit reward that each row has."""

import pytest
import torch

from whet.algorithms.cells import bind, call, formula, name, options, terms
from whet.algorithms.preference import losses as preference
from whet.algorithms.preference.metrics import wins
from whet.algorithms.preference.preference_table import (
    KNOWN_BY,
    POINT_TERMS,
    PREFERENCES,
    REWARDS,
    SUPPLIED,
    Preference,
    implicit_rewards,
    senseless,
)

from . import oracle_preference as oracle


def test_rows_are_named_as_their_losses_and_ask_for_what_there_is():
    for key, row in {**PREFERENCES, **REWARDS}.items():
        assert name(row.loss) == key
        known = SUPPLIED[row.unit if isinstance(row, Preference) else row.kind]
        assert set(terms(row.loss)) <= set(known)
    for row in PREFERENCES.values():
        assert "β" in formula(row.loss), "the line that users are shown"
        assert set(terms(row.implicit)) <= {"logprobs", "logprobs_ref", "tokens"}
        assert row.point is None or set(terms(row.point)) <= set(POINT_TERMS)


def test_what_the_rows_need_follows_from_their_losses():
    dpo, simpo, kto, bco = (PREFERENCES[key] for key in ("dpo", "simpo", "kto", "bco"))
    assert (dpo.unit, simpo.unit, kto.unit, bco.unit) == ("pair", "pair", "label", "label")
    assert [row.needs_reference for row in (dpo, simpo, kto, bco)] == [True, False, True, True]
    assert [row.needs_point for row in (dpo, simpo, kto, bco)] == [False, False, True, True]
    assert [row.needs_mismatched for row in (dpo, simpo, kto, bco)] == [False, False, True, False]
    assert [row.needs_means for row in (dpo, simpo, kto, bco)] == [False, False, False, True]
    for row in PREFERENCES.values():
        assert row.needs_point == (row.point is not None)
        assert row.needs_reference == ("logprobs_ref" in terms(row.implicit))


def test_a_row_is_of_the_unit_that_its_terms_say():
    """So a loss of the user's, of which nothing else is known, is of the right one."""
    for row in (*PREFERENCES.values(), *REWARDS.values()):
        unit = row.unit if isinstance(row, Preference) else row.kind
        assert [one for marks, one in KNOWN_BY if set(marks) <= set(terms(row.loss))] == [unit]


@pytest.mark.parametrize("term", ["chosen_ref", "rejected_ref", "logprobs_ref"])
def test_one_term_of_a_reference_is_enough_to_need_it(term):
    loss = {
        "chosen_ref": lambda chosen, chosen_ref: chosen - chosen_ref,
        "rejected_ref": lambda rejected, rejected_ref: rejected - rejected_ref,
        "logprobs_ref": lambda logprobs, logprobs_ref: logprobs - logprobs_ref,
    }[term]
    assert Preference(loss=loss, unit="pair", implicit=preference.log_ratio, paper="").needs_reference


def test_every_row_has_a_beta_to_measure_rewards_with():
    assert all(options(row.loss)["beta"] > 0 for row in PREFERENCES.values())


def test_options_that_make_no_sense_are_named():
    assert not any(senseless(row.loss) for row in (*PREFERENCES.values(), *REWARDS.values()))
    assert "beta is 0: it must be above 0" in senseless(bind(preference.ipo, {"beta": 0.0}))
    for loss in (preference.cdpo, preference.robust_dpo, REWARDS["bradley_terry"].loss):
        assert "smoothing is 0.5: it must be below 0.5" in senseless(bind(loss, {"smoothing": 0.5}))


def test_the_implicit_reward_is_beta_times_what_the_row_compares():
    supply = {"logprobs": torch.tensor([-6.0]), "logprobs_ref": torch.tensor([-8.0]), "tokens": torch.tensor([4])}
    assert implicit_rewards(PREFERENCES["dpo"], supply).item() == pytest.approx(0.2)
    assert implicit_rewards(PREFERENCES["dpo_norm"], supply).item() == pytest.approx(1.0)
    assert implicit_rewards(PREFERENCES["simpo"], supply).item() == pytest.approx(-3.0)
    assert implicit_rewards(PREFERENCES["cpo"], supply).item() == pytest.approx(-0.6)
    set_by_recipe = Preference(
        loss=bind(preference.dpo, {"beta": 0.5}), unit="pair", implicit=preference.log_ratio, paper=""
    )
    assert implicit_rewards(set_by_recipe, supply).item() == pytest.approx(1.0)


@pytest.mark.parametrize("key", ["dpo", "dpo_norm", "hinge", "simpo", "orpo", "cpo"])
def test_a_pair_that_the_implicit_reward_ranks_wrongly_costs_more_than_when_it_is_swapped(key):
    """So an accuracy by implicit rewards is the accuracy of what the row optimises."""
    row = PREFERENCES[key]
    case = {name: torch.tensor(value) for name, value in oracle.pairs(11, count=200).items()}
    sides = ("chosen", "rejected")
    rewards = [
        implicit_rewards(row, {"logprobs": case[s], "logprobs_ref": case[f"{s}_ref"], "tokens": case[f"{s}_tokens"]})
        for s in sides
    ]
    swapped = {
        f"{other}{rest}": case[f"{side}{rest}"]
        for side, other in (sides, sides[::-1])
        for rest in ("", "_ref", "_tokens")
    }
    only_contrast = bind(row.loss, {"nll": 0.0} if key == "cpo" else {})
    both = (case, swapped)
    losses = [call(only_contrast, supply) for supply in both]
    if key == "orpo":  # its likelihood term sees the chosen alone
        losses = [loss + call(preference.mean_logprob, likelihood(s)) for loss, s in zip(losses, both, strict=True)]
    assert torch.equal(wins(*rewards) < 0.5, losses[0] > losses[1])


def likelihood(supply):
    return {"logprobs": supply["chosen"], "tokens": supply["chosen_tokens"]}
