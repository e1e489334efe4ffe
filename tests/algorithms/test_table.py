"""The table: what rows and cells ask for, and where the KL goes."""

from dataclasses import replace

import pytest
import torch

from whet.algorithms import policy_loss
from whet.algorithms.advantages import standard, value_loss
from whet.algorithms.cells import bind, call, formula, name, options, terms
from whet.algorithms.policy_loss import clip
from whet.algorithms.preference.losses import moving_means
from whet.algorithms.table import ALGORITHMS, CELLS, GROUP_STATISTICS, KL_ESTIMATORS, OBJECTIVES, token_loss


def test_terms_and_options_come_from_the_signature():
    assert terms(clip) == ("logprobs", "logprobs_old", "advantages")
    assert options(clip) == {"low": 0.2, "high": 0.2}
    assert bind(clip, {}) is clip
    bound = bind(clip, {"high": 0.28})
    assert options(bound) == {"low": 0.2, "high": 0.28}
    assert (terms(bound), name(bound)) == (terms(clip), "clip")
    assert options(bind(bound, {"low": 0.1})) == {"low": 0.1, "high": 0.28}, "options that were set stay set"


def test_call_supplies_what_a_cell_names_and_nothing_else():
    supply = {"advantages": torch.tensor(2.0), "logprobs": torch.tensor(-1.0), "mask": None}
    assert float(call(ALGORITHMS["reinforce"].surrogate, supply)) == 2.0
    with pytest.raises(KeyError, match="logprobs_old"):
        call(clip, supply)


def test_the_formula_is_the_first_line_of_the_docstring_with_what_is_set():
    assert formula(ALGORITHMS["reinforce"].surrogate) == "−A·log π. Williams 1992."
    assert formula(ALGORITHMS["dapo"].surrogate).endswith("Schulman et al. 2017, eq. 7. [low=0.2, high=0.28]")


def test_a_cell_without_a_docstring_is_shown_by_its_name():
    def bare(rewards, *, size=2): ...

    assert formula(bare) == "bare [size=2]"


DEFAULTS = {  # as the papers, or their code, have them; whoever changes one changes every run that does not set it
    "over_average": {"decay": 0.9},
    "standardize": {"epsilon": 1e-6},
    "best_over_worst": {"beta": 0.1},
    "gae": {"gamma": 1.0, "lam": 0.95},
    "to_go": {"gamma": 1.0},
    "to_go_leave_one_out": {"gamma": 1.0, "prefix": True},
    "whiten": {"epsilon": 1e-8},
    "batch_deviation": {"epsilon": 1e-8},
    "clip": {"low": 0.2, "high": 0.2},
    "dual_clip": {"low": 0.2, "high": 0.2, "bound": 3.0},
    "stopped_ratio": {"low": 1.0, "high": 4.0},
    "soft_gate": {"positive": 1.0, "negative": 1.05},
    "sequence_clip": {"low": 3e-4, "high": 4e-4},
    "geometric_clip": {"low": 0.4, "high": 0.4},
    "token_truncate": {"high": 2.0},
    "sequence_truncate": {"high": 2.0},
    "geometric_truncate": {"high": 2.0},
    "token_mask": {"low": 0.5, "high": 5.0},
    "sequence_mask": {"low": 0.0, "high": 3.0},
    "geometric_mask": {"low": 0.99, "high": 1.01},
}


def test_the_defaults_of_all_cells():
    found = {key: options(cell) for cells in (*CELLS.values(), KL_ESTIMATORS) for key, cell in cells.items()}
    assert {key: found[key] for key in DEFAULTS} == DEFAULTS
    assert options(standard) == {"epsilon": 1e-8}
    assert options(value_loss)["clip"] == 0.2
    assert options(moving_means) == {"share": 0.1}


@pytest.mark.parametrize("kind", [*CELLS, "kl"])
def test_every_cell_has_a_formula_and_the_name_it_is_listed_under(kind):
    for key, cell in CELLS.get(kind, KL_ESTIMATORS).items():
        assert name(cell) == key
        assert formula(cell).split("\n")[0].strip(), key


def test_what_the_rows_need_follows_from_their_cells():
    for need, needing in (("values", "ppo"), ("greedy", "remax"), ("reference", "online_dpo")):
        without = {"grpo", "rloo", "ppo", "remax", "online_dpo"} - {needing}
        assert getattr(ALGORITHMS[needing], f"needs_{need}")
        assert not any(getattr(ALGORITHMS[key], f"needs_{need}") for key in without)
    assert not any(row.kl_coefficient for row in ALGORITHMS.values()), "no row has a KL unless a recipe asks for one"
    assert replace(ALGORITHMS["grpo"], kl_coefficient=0.1).needs_reference
    in_group = {key for key, row in ALGORITHMS.items() if row.advantage in GROUP_STATISTICS}
    assert in_group >= {"rloo", "opo", "maxrl", "online_dpo", "gpg", "grpo", "dr_grpo", "dapo", "cispo", "gspo"}
    assert not in_group & {"reinforce", "remax", "ppo", "reinforce_pp"}


def test_methods_that_pay_for_the_divergence_use_the_one_estimator_that_may_stand_there():
    for row in ALGORITHMS.values():
        assert (row.kl_place == "reward") == (row.kl is KL_ESTIMATORS["k1"])


SUPPLY = {
    "logprobs": torch.tensor([[0.0, -1.0]]),
    "logprobs_old": torch.tensor([[0.0, -1.0]]),
    "logprobs_ref": torch.tensor([[0.0, -1.5]]),
    "advantages": torch.tensor([[0.0, 2.0]]),
    "correction": torch.tensor([[1.0, 0.5]]),
    "entropies": torch.tensor([[0.0, 0.3]]),
}


@pytest.mark.parametrize(("place", "divergence"), [("loss", 0.1 * 0.10653066), ("reward", 0.0)])
def test_kl_is_added_to_the_loss_or_left_to_the_reward(place, divergence):
    # k3 at d = 0.5: exp(−0.5) − 1 + 0.5; the surrogate is −2 at ratio 1, and half of that is corrected away
    row = replace(ALGORITHMS["grpo"], kl_place=place)
    assert float(token_loss(row, SUPPLY, kl_coefficient=0.1)[0, 1]) == pytest.approx(-1.0 + divergence)


def test_without_a_coefficient_no_reference_is_read():
    supply = {**SUPPLY, "logprobs_ref": None}
    assert float(token_loss(ALGORITHMS["grpo"], supply)[0, 1]) == -1.0


def test_supervised_rows_maximise_the_log_likelihood_per_token():
    assert torch.equal(policy_loss.negative_log_likelihood(torch.tensor([-2.0, -0.5])), torch.tensor([2.0, 0.5]))
    assert (name(OBJECTIVES["sft"].weighting), OBJECTIVES["sft"].paper) == ("token_mean", "maximum likelihood")
