"""The lines that explain a loss of preferences or of a reward model."""

import re
from dataclasses import replace

from whet.algorithms.cells import bind
from whet.algorithms.preference import losses as preference
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS
from whet.train.explain.formula import objective_loss


def test_dpo_as_it_is_set():
    loss = objective_loss(replace(PREFERENCES["dpo"], loss=bind(preference.dpo, {"beta": 0.25})))
    assert loss.line == "loss = Σ [ −log σ(β(w − l)) ] / pairs"
    assert loss.where == (
        "w and l = log π/π_ref of chosen and rejected",
        "β = 0.25",
        "π_ref = the model before the first step",
    )
    assert loss.cells["paper"] == "arXiv 2305.18290"


def test_a_point_is_explained_where_there_is_one():
    kto = objective_loss(PREFERENCES["kto"])
    assert "z = point" in kto.where
    assert "point = max(0, mean(log π/π_ref)), over completions after prompts of other rows" in kto.where
    assert [key for key, row in PREFERENCES.items() if "point" in objective_loss(row).cells] == ["kto", "bco"]


def test_options_stand_as_the_formula_names_them():
    assert objective_loss(PREFERENCES["simpo"]).where[-2:] == ("β = 2", "γ = 1")
    assert objective_loss(PREFERENCES["ipo"]).where[-2] == "per_token = false"


def test_every_letter_of_a_line_is_explained():
    """σ alone is not: it is the same everywhere."""
    losses = [objective_loss(row) for row in PREFERENCES.values()] + [objective_loss(row) for row in REWARDS.values()]
    for loss in losses:
        formula = loss.line.removeprefix("loss = Σ [ ").rsplit(" ] / ", 1)[0]
        words = re.findall(r"[^\W\d_]+", formula.replace("β", " β "))
        explained = {word for line in loss.where for word in line.split(" = ")[0].split(" and ")}
        assert {word for word in words if len(word) == 1 and word.isalpha()} - {"σ"} <= explained, loss.line


def test_what_is_averaged_by_reward_models():
    assert [objective_loss(row).line.rsplit(" / ")[-1] for row in REWARDS.values()] == ["pairs", "completions", "steps"]
