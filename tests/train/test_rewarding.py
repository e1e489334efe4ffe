"""Reward models: the loss by hand, the same for every split, and what is saved says what was learned."""

import math
import random

import numpy as np
import pytest
import torch

from tests.train import rows_on_disk as on_disk
from tests.train.test_preferring import gradient
from whet.errors import UserError
from whet.evaluate.calibration import share_by_cluster
from whet.models.reward.scoring import load_scorer

DATA = {"bradley_terry": on_disk.pairs, "outcome": on_disk.outcomes, "process": on_disk.traces}
NEAR = 3e-6


@pytest.fixture
def place(tmp_path):
    on_disk.saved_model(tmp_path / "start")
    for name, make in DATA.items():
        make(tmp_path / f"{name}.jsonl")
    return tmp_path


def trainer_of(place, name, *, max_tokens=None, **changes):
    changes = {"reward_head": {"separator": "+"}, **changes}  # a character that the tokeniser knows
    config = on_disk.config(place / "start", place / f"{name}.jsonl", name, **changes)
    data = config.data.model_copy(update={"max_tokens": max_tokens})
    return on_disk.built(config.model_copy(update={"data": data}))


def score(parts, row, place):
    """At one token, by a plain forward pass."""
    model = parts.policy
    with torch.no_grad():
        states = model.trunk.hidden(torch.tensor([row.tokens]), torch.tensor([len(row.tokens)]))
        return model.head(states[0, place].float()).double().numpy()


def test_bradley_terry_by_hand(place):
    parts, trainer = trainer_of(place, "bradley_terry")
    some = trainer.rows(1)
    gaps = [float((score(parts, one.rows[0], -1) - score(parts, one.rows[1], -1))[0]) for one in some]
    logged, _, _ = gradient(parts, trainer, some)
    assert logged["loss"] == pytest.approx(np.mean([np.log1p(np.exp(-gap)) for gap in gaps]), rel=1e-5)
    assert logged["pair_accuracy"] == np.mean([gap > 0 for gap in gaps])


def test_margins_count_where_they_are_asked_for(place):
    parts, trainer = trainer_of(place, "bradley_terry")
    some = trainer.rows(1)
    gaps = [float((score(parts, one.rows[0], -1) - score(parts, one.rows[1], -1))[0]) for one in some]
    parts, strict = on_disk.trainer(
        place / "start", place / "bradley_terry.jsonl", {"name": "bradley_terry", "use_margins": True}
    )
    logged, _, _ = gradient(parts, strict, strict.rows(1))
    wanted = [np.log1p(np.exp(one.data.margin - gap)) for one, gap in zip(some, gaps, strict=True)]
    assert logged["loss"] == pytest.approx(np.mean(wanted), rel=1e-5)


@pytest.mark.parametrize("every_token", [True, False])
def test_outcome_by_hand(place, every_token):
    parts, trainer = trainer_of(place, "outcome", reward_head={"every_token": every_token})
    some = trainer.rows(1)
    losses = []
    for one in some:
        for row, right in zip(one.rows, one.data.correct, strict=True):
            places = [t for t in range(len(row.tokens)) if row.mask[t]] if every_token else [len(row.tokens) - 1]
            values = [float(score(parts, row, t)[0]) for t in places]
            losses.append(np.mean([np.log1p(np.exp(-v if right else v)) for v in values]))
    logged, _, _ = gradient(parts, trainer, some)
    assert logged["loss"] == pytest.approx(np.mean(losses), rel=1e-5)  # a long completion counts as much as a short one


@pytest.mark.parametrize("classes", [2, 3])
def test_process_by_hand(place, classes):
    parts, trainer = trainer_of(place, "process", reward_head={"separator": "+", "classes": classes})
    some = trainer.rows(1)
    losses = []
    for one in some:
        (row,), plus = one.rows, parts.tokenizer.encode("+")[0]
        ends = [t for t in range(len(row.tokens)) if row.tokens[t] == plus]
        assert [t for t in range(len(row.tokens)) if one.places[0][t]] == ends
        for t, label in zip(ends, one.data.labels, strict=True):
            values = score(parts, row, t)
            wanted = {1: classes - 1, 0: classes // 2, -1: 0}[label]
            losses.append(np.log(np.exp(values).sum()) - values[wanted])
    logged, _, _ = gradient(parts, trainer, some)
    assert logged["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_step_is_right_if_fine_and_bad_are_told_apart_in_training_too(place):
    """With three classes a neutral step that is called good is right: only bad against the others counts."""
    on_disk.write(place / "process.jsonl", neutral_traces())
    parts, trainer = trainer_of(place, "process", reward_head={"separator": "+", "classes": 3}, batch_size=16)
    some = trainer.rows(1)
    fine, exact = [], []
    for one in some:
        ends = [t for t, on in enumerate(one.places[0]) if on]
        for t, label in zip(ends, one.data.labels, strict=True):
            bad, neither, good = np.exp(score(parts, one.rows[0], t))
            fine.append((neither + good >= bad) == (label >= 0))
            exact.append(int(np.argmax([bad, neither, good])) == label + 1)
    logged, _, _ = gradient(parts, trainer, some)
    assert logged["step_accuracy"] == pytest.approx(np.mean(fine))
    assert np.mean(exact) != np.mean(fine)
    trainer.evaluation[""] = some
    assert trainer.measure()["eval/step_accuracy"] == pytest.approx(logged["step_accuracy"])


def neutral_traces():
    generator = random.Random(3)
    return [
        {
            "prompt": f"{on_disk.words(generator, 2, 9)}=",
            "completions": [on_disk.words(generator, 2, 4) for _ in range(3)],
            "labels": [generator.choice([-1, 0, 1]) for _ in range(3)],
        }
        for _ in range(40)
    ]


@pytest.mark.parametrize("name", ["outcome", "process"])
def test_training_and_held_out_accuracy_are_the_same_number_of_the_same_rows(place, name):
    """Also of an outcome model that learns at every token: an answer is judged at its end."""
    parts, trainer = trainer_of(place, name, reward_head={"separator": "+", "every_token": True})
    some = trainer.rows(1)
    logged, _, _ = gradient(parts, trainer, some)
    trainer.evaluation[""] = some
    assert logged[f"{name}_accuracy".replace("process", "step")] == pytest.approx(
        trainer.measure()[f"eval/{name}_accuracy".replace("process", "step")]
    )


@pytest.mark.parametrize("limit", [64, 11])  # with 11 tokens the two prompts of a pair are often cut differently
@pytest.mark.parametrize("name", DATA)
def test_no_split_or_packing_changes_loss_or_gradient(place, name, limit):
    parts, trainer = trainer_of(place, name, max_tokens=limit if name != "process" else limit + 9)
    some = trainer.rows(1)
    whole, _, pull = gradient(parts, trainer, some, micro_batch_tokens=10**6, padding_free=False)
    for settings in (
        {"micro_batch_tokens": 1, "padding_free": False},
        {"micro_batch_tokens": 50},
        {"micro_batch_tokens": 10**6, "padding_free": True},
    ):
        logged, _, other = gradient(parts, trainer, some, **settings)
        assert logged["loss"] == pytest.approx(whole["loss"], abs=1e-6), settings
        assert max(float((a - b).abs().max()) for a, b in zip(pull, other, strict=True)) < NEAR, settings


@pytest.mark.parametrize("limit", [None, 11])
@pytest.mark.parametrize("name", DATA)
def test_what_is_saved_scores_as_what_was_measured(place, name, limit):
    limit = limit + 9 if limit and name == "process" else limit
    parts, trainer = trainer_of(place, name, max_tokens=limit)
    assert any(len(row.tokens) == limit for one in trainer.evaluation[""] for row in one.rows) == (limit is not None)
    for step in range(1, 5):
        trainer.fit(trainer.rows(step))
    (place / "saved").mkdir()
    parts.save_model(place / "saved")
    scorer = load_scorer(place / "saved", torch.device("cpu"))
    with torch.no_grad():
        told = trainer._meant(trainer.evaluation[""])
    for one, rows in zip(trainer.evaluation[""], told, strict=True):
        if name == "process":
            found = scorer.steps([one.data.prompt], ["+".join(one.data.steps)])[0]
            assert found == pytest.approx(rows[0].tolist(), abs=1e-5)
        else:
            texts = [one.data.chosen, one.data.rejected] if name == "bradley_terry" else one.data.completions
            found = scorer.score([one.data.prompt] * len(texts), texts)
            assert found == pytest.approx([float(row[-1]) for row in rows], abs=1e-5)


def test_a_report_on_cut_pairs_compares_completions_and_knows_their_prompts(place):
    """Rows that were cut are all of the same length, whatever was said; and three pairs here have the same prompt."""
    g = random.Random(8)
    prompts = [f"{on_disk.words(g, 8, 9)}=" for _ in range(24)]
    rows = [
        {"prompt": prompt, "chosen": on_disk.words(g, 1, 8), "rejected": on_disk.words(g, 1, 8)}
        for prompt in prompts
        for _ in range(3)
    ]
    on_disk.write(place / "bradley_terry.jsonl", rows)
    _, trainer = trainer_of(place, "bradley_terry", max_tokens=10, eval={"examples": 100, "max_tokens": 8})
    report = trainer.report(trainer.evaluation[""])
    pairs = [one.data for one in trainer.evaluation[""]]
    longer = [(len(pair.chosen) > len(pair.rejected)) + (len(pair.chosen) == len(pair.rejected)) / 2 for pair in pairs]
    assert report.longer.mean == pytest.approx(np.mean(longer))
    prompts, right = [pair.prompt for pair in pairs], [float(margin > 0) for margin in report.margins]
    assert len(set(prompts)) < len(pairs)
    assert report.accuracy == share_by_cluster(prompts, right)
    assert report.accuracy != share_by_cluster(range(len(pairs)), right)


def test_a_rule_is_learned_from_pairs(place):
    on_disk.pairs(place / "bradley_terry.jsonl", 200)
    _, trainer = trainer_of(
        place, "bradley_terry", optimizer={"lr": 3e-3}, batch_size=24, eval={"examples": 100, "max_tokens": 8}
    )
    for step in range(1, 41):
        trainer.fit(trainer.rows(step))
    found = trainer.measure()
    assert found["eval/pair_accuracy_low"] > 0.8
    assert found["eval/margin"] > 0
    assert math.isfinite(found["eval/calibration_error"])


def test_rows_of_another_kind_are_refused(place):
    with pytest.raises(UserError, match="holds outcomes, and objective 'bradley_terry' learns from pairs"):
        on_disk.trainer(place / "start", place / "outcome.jsonl", "bradley_terry")
