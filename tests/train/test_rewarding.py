"""Reward models: the loss by hand, the same for every split, and what is saved says what was learned."""

import math

import numpy as np
import pytest
import torch

from tests.train import rows_on_disk as on_disk
from tests.train.test_preferring import gradient
from whet.errors import UserError
from whet.models.reward_text import load_scorer

DATA = {"bradley_terry": on_disk.pairs, "outcome": on_disk.outcomes, "process": on_disk.traces}
NEAR = 3e-6


@pytest.fixture
def place(tmp_path):
    on_disk.saved_model(tmp_path / "start")
    for name, make in DATA.items():
        make(tmp_path / f"{name}.jsonl")
    return tmp_path


def lesson_of(place, name, **changes):
    changes = {"reward_head": {"separator": "+"}, **changes}  # a character that the tokeniser knows
    return on_disk.lesson(place / "start", place / f"{name}.jsonl", name, **changes)


def score(parts, row, place):
    """At one token, by a plain forward pass."""
    model = parts.policy
    with torch.no_grad():
        states = model.trunk.hidden(torch.tensor([row.tokens]), torch.tensor([len(row.tokens)]))
        return model.head(states[0, place].float()).double().numpy()


def test_bradley_terry_by_hand(place):
    parts, lesson = lesson_of(place, "bradley_terry")
    some = lesson.rows(1)
    gaps = [float((score(parts, one.rows[0], -1) - score(parts, one.rows[1], -1))[0]) for one in some]
    logged, _, _ = gradient(parts, lesson, some)
    assert logged["loss"] == pytest.approx(np.mean([np.log1p(np.exp(-gap)) for gap in gaps]), rel=1e-5)
    assert logged["accuracy"] == np.mean([gap > 0 for gap in gaps])


def test_margins_count_where_they_are_asked_for(place):
    parts, lesson = lesson_of(place, "bradley_terry")
    some = lesson.rows(1)
    gaps = [float((score(parts, one.rows[0], -1) - score(parts, one.rows[1], -1))[0]) for one in some]
    parts, strict = on_disk.lesson(
        place / "start", place / "bradley_terry.jsonl", {"name": "bradley_terry", "use_margins": True}
    )
    logged, _, _ = gradient(parts, strict, strict.rows(1))
    wanted = [np.log1p(np.exp(one.data.margin - gap)) for one, gap in zip(some, gaps, strict=True)]
    assert logged["loss"] == pytest.approx(np.mean(wanted), rel=1e-5)


@pytest.mark.parametrize("every_token", [True, False])
def test_outcome_by_hand(place, every_token):
    parts, lesson = lesson_of(place, "outcome", reward_head={"every_token": every_token})
    some = lesson.rows(1)
    losses = []
    for one in some:
        for row, right in zip(one.rows, one.data.correct, strict=True):
            places = [t for t in range(len(row.tokens)) if row.mask[t]] if every_token else [len(row.tokens) - 1]
            values = [float(score(parts, row, t)[0]) for t in places]
            losses.append(np.mean([np.log1p(np.exp(-v if right else v)) for v in values]))
    logged, _, _ = gradient(parts, lesson, some)
    assert logged["loss"] == pytest.approx(np.mean(losses), rel=1e-5)  # a long completion counts as much as a short one


@pytest.mark.parametrize("classes", [2, 3])
def test_process_by_hand(place, classes):
    parts, lesson = lesson_of(place, "process", reward_head={"separator": "+", "classes": classes})
    some = lesson.rows(1)
    losses = []
    for one in some:
        (row,), plus = one.rows, parts.tokenizer.encode("+")[0]
        ends = [t for t in range(len(row.tokens)) if row.tokens[t] == plus]
        assert [t for t in range(len(row.tokens)) if row.mask[t]] == ends
        for t, label in zip(ends, one.data.labels, strict=True):
            values = score(parts, row, t)
            wanted = {1: classes - 1, 0: classes // 2, -1: 0}[label]
            losses.append(np.log(np.exp(values).sum()) - values[wanted])
    logged, _, _ = gradient(parts, lesson, some)
    assert logged["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("name", DATA)
def test_no_split_or_packing_changes_loss_or_gradient(place, name):
    parts, lesson = lesson_of(place, name)
    some = lesson.rows(1)
    whole, _, pull = gradient(parts, lesson, some, micro_tokens=10**6, packed=False)
    for settings in (
        {"micro_tokens": 1, "packed": False},
        {"micro_tokens": 50},
        {"micro_tokens": 10**6, "packed": True},
    ):
        logged, _, other = gradient(parts, lesson, some, **settings)
        assert logged["loss"] == pytest.approx(whole["loss"], abs=1e-6), settings
        assert max(float((a - b).abs().max()) for a, b in zip(pull, other, strict=True)) < NEAR, settings


@pytest.mark.parametrize("name", DATA)
def test_what_is_saved_scores_as_what_was_measured(place, name):
    parts, lesson = lesson_of(place, name)
    for step in range(1, 5):
        lesson.fit(lesson.rows(step))
    (place / "saved").mkdir()
    parts.save_model(place / "saved")
    scorer = load_scorer(place / "saved", torch.device("cpu"))
    with torch.no_grad():
        told = lesson._meant()
    for one, rows in zip(lesson.held_out, told, strict=True):
        if name == "process":
            found = scorer.steps([one.data.prompt], ["+".join(one.data.steps)])[0]
            assert found == pytest.approx(rows[0].tolist(), abs=1e-5)
        else:
            texts = [one.data.chosen, one.data.rejected] if name == "bradley_terry" else one.data.completions
            found = scorer.score([one.data.prompt] * len(texts), texts)
            assert found == pytest.approx([float(row[-1]) for row in rows], abs=1e-5)


def test_a_rule_is_learned_from_pairs(place):
    on_disk.pairs(place / "bradley_terry.jsonl", 200)
    _, lesson = lesson_of(
        place, "bradley_terry", optimizer={"lr": 3e-3}, rows=24, eval={"examples": 100, "max_tokens": 8}
    )
    for step in range(1, 41):
        lesson.fit(lesson.rows(step))
    found = lesson.measure()
    assert found["eval/accuracy_low"] > 0.8
    assert found["eval/margin"] > 0
    assert math.isfinite(found["eval/calibration_error"])


def test_rows_of_another_kind_are_refused(place):
    with pytest.raises(UserError, match="holds outcomes, and objective 'bradley_terry' learns from pairs"):
        on_disk.lesson(place / "start", place / "outcome.jsonl", "bradley_terry")
