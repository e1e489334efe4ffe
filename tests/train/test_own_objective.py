"""A user's own loss as the objective of the offline loop: found, checked, bound, recorded, explained, trained with."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import rows_on_disk as on_disk
from whet.algorithms.cells import options
from whet.algorithms.preference.losses import log_ratio, mean_logprob, sum_logprob
from whet.algorithms.preference.preference_table import PREFERENCES, Preference, RewardObjective
from whet.config import OfflineConfig
from whet.config.objective import objective_row
from whet.errors import RunFailed, UserError
from whet.recipe import dump, parse_yaml, validate
from whet.train.explain.formula import offline_loss
from whet.train.session.input_files import current_inputs

LOSSES = '''
import torch
from torch.nn.functional import cross_entropy, logsigmoid, softplus
from whet.algorithms.preference import losses as p
from whet.algorithms.preference.preference_table import label, pair

def mine(chosen, rejected, chosen_ref, rejected_ref, *, beta=0.1, shift=0.0):
    """−log σ(β(w − l) − shift), w and l = log π/π_ref of chosen and rejected. Nobody 2026."""
    assert not chosen_ref.requires_grad and not rejected_ref.requires_grad, "the reference is not trained"
    return -logsigmoid(beta * ((chosen - chosen_ref) - (rejected - rejected_ref)) - shift)

def free(chosen, rejected, chosen_tokens, rejected_tokens): return -logsigmoid(chosen - rejected)
by_length = pair(free, p.mean_logprob, "Nobody 2026")
def liked(logprobs, labels, logprobs_ref):
    return softplus(torch.where(labels, logprobs_ref - logprobs, logprobs - logprobs_ref))
def around(logprobs, labels, logprobs_ref, point, *, beta=0.1):
    above = beta * (logprobs - logprobs_ref - point)
    return torch.where(labels, torch.sigmoid(-above), torch.sigmoid(above))
with_point = label(around, p.log_ratio, "Nobody 2026", point=p.midpoint)
def scored(chosen_scores, rejected_scores, *, scale=1.0): return softplus(scale * (rejected_scores - chosen_scores))
def right(scores, labels): return softplus(scores) - labels * scores
def steps(scores, classes): return cross_entropy(scores, classes, reduction="none")
def misspelt(chosen, reject): ...
def of_two_kinds(chosen, rejected, scores): ...
def half(chosen): ...
def scalar(chosen, rejected): return (rejected - chosen).mean()
def stopped(chosen, rejected): return (rejected - chosen).detach()
def failing(chosen, rejected): return chosen[99]
number = 3
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("losses.py").write_text(LOSSES)
    on_disk.saved_model(tmp_path / "start")
    for name, write in {"pairs": on_disk.pairs, "outcomes": on_disk.outcomes, "traces": on_disk.traces}.items():
        write(tmp_path / f"{name}.jsonl")
    return tmp_path


def trainer_of(place: Path, name: str, rows: str = "pairs", **more: Any) -> Any:
    objective, head = {"name": f"losses.py:{name}", **more}, {"separator": "+"}
    _, trainer = on_disk.trainer(place / "start", place / f"{rows}.jsonl", objective, reward_head=head)
    return trainer


def row_of(name: str, **given: Any) -> Any:
    written = {"loop": "offline", "steps": 1, "model": "m", "data": "d", "objective": {"name": name, **given}}
    config = validate(written, where="here")
    assert isinstance(config, OfflineConfig)
    assert validate(parse_yaml(dump(config), where="saved"), where="saved") == config
    return objective_row(config.objective)


def test_what_it_learns_from_is_what_its_arguments_are_named(place: Path) -> None:
    units = {name: row_of(f"losses.py:{name}") for name in ("mine", "free", "liked", "scored", "right", "steps")}
    preferences = {name: row for name, row in units.items() if isinstance(row, Preference)}
    assert {name: row.unit for name, row in preferences.items()} == {"mine": "pair", "free": "pair", "liked": "label"}
    assert {name: row.needs_reference for name, row in preferences.items()} == {
        "mine": True,
        "free": False,
        "liked": True,
    }
    assert [row.implicit for row in preferences.values()] == [log_ratio, sum_logprob, log_ratio]
    kinds = {name: row.kind for name, row in units.items() if isinstance(row, RewardObjective)}
    assert kinds == {"scored": "preference", "right": "outcome", "steps": "process"}
    assert options(row_of("losses.py:mine", shift=-2.0).loss) == {"beta": 0.1, "shift": -2.0}


def test_a_row_says_what_names_leave_open(place: Path) -> None:
    assert row_of("losses.py:by_length").implicit is mean_logprob
    assert row_of("losses.py:with_point", beta=0.5).needs_means


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        (
            "losses.py:misspelt",
            "takes 'reject', which the loop does not supply; did you mean 'rejected'? (pair",
        ),
        (
            "losses.py:of_two_kinds",
            "chosen and rejected and so is of kind pair, which is not supplied with scores",
        ),
        ("losses.py:half", "losses.py:half' takes chosen, by which it is none of these (pair: chosen"),
        (
            "losses.py:around",
            "takes point, which a function alone does not define: name a row in place of the function",
        ),
        ("losses.py:number", "is a int, not a function"),
        ("losses.py:nine", "losses.py has no 'nine'; did you mean 'mine'?"),
        ({"name": "losses.py:mine", "bata": 1.0}, "has no option 'bata'; did you mean 'beta'?"),
        ({"name": "losses.py:mine", "beta": "much"}, "losses.py:mine': beta is 'much' and must be a float"),
        (
            {"name": "losses.py:mine", "beta": float("nan")},
            "beta is nan and must be a finite number",
        ),
    ],
)
def test_a_mistake_is_one_line(place: Path, objective: Any, told: str) -> None:
    with pytest.raises(UserError) as refusal:
        validate({"loop": "offline", "steps": 1, "model": "m", "data": "d", "objective": objective}, where="here")
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_it_trains_as_the_packaged_loss_that_it_repeats(place: Path) -> None:
    own = trainer_of(place, "mine", beta=0.3)
    _, packaged = on_disk.trainer(place / "start", place / "pairs.jsonl", {"name": "dpo", "beta": 0.3})
    for step in (1, 2):
        assert own.fit(own.rows(step)) == packaged.fit(packaged.rows(step))
    assert own.measure() == packaged.measure()


@pytest.mark.parametrize(
    ("name", "rows"),
    [("liked", "pairs"), ("with_point", "pairs"), ("scored", "pairs"), ("right", "outcomes"), ("steps", "traces")],
)
def test_every_kind_is_trained(place: Path, name: str, rows: str) -> None:
    trainer = trainer_of(place, name, rows)
    first, _ = trainer.fit(trainer.rows(1))
    assert 0 < first["loss"] < 10
    assert torch.isfinite(torch.tensor(trainer.measure()["eval/loss"]))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("scalar", r"'scalar' gave a result of shape \(\) instead of \(\d+,\) \(see whet check-loss\)"),
        ("stopped", "'stopped' has no gradient in the model's outputs, so it trains nothing"),
        ("failing", "'failing' failed: IndexError: index 99 is out of bounds"),
    ],
)
def test_what_it_cannot_do_is_a_sentence(place: Path, name: str, told: str) -> None:
    trainer = trainer_of(place, name)
    with pytest.raises(RunFailed, match=told):
        trainer.fit(trainer.rows(1))


def test_its_file_is_an_input_of_the_run_and_its_formula_is_explained(place: Path) -> None:
    config = on_disk.config(place / "start", place / "pairs.jsonl", "losses.py:mine")
    recorded = current_inputs(config, place)["objective.name"]
    assert (recorded.path, [*recorded.files]) == (f"{place / 'losses.py'}:mine", ["losses.py"])
    loss = offline_loss(config)
    assert loss.line == "loss = Σ [ −log σ(β(w − l) − shift) ] / pairs"
    assert loss.cells["paper"] == "own"
    assert "objective.name" not in current_inputs(on_disk.config(place / "start", place / "pairs.jsonl", "dpo"), place)
    assert PREFERENCES["dpo"].beta == 0.1
