"""Pass-rate filtering: which prompts rest, by hand, and resuming bit for bit."""

import json
from pathlib import Path

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet, bigram_model
from whet.data.rows_task import RowsTask
from whet.models.text.tokenizers import EOS
from whet.runs.directory import RunDirectory
from whet.tasks.selection.pass_rates import PassRateTask

RECIPE = """
steps: 6
algorithm: grpo
model: model
rollout: {prompts: 3, group: 2, max_tokens: 2, pass_rate: {}}
optimizer: {lr: 1.0e-3}
eval: {every_steps: 0}
save: {every_steps: 3}
track: []
device: cpu
task: {name: rows, path: rows.jsonl, held_out_rows: 0}
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    lines = [json.dumps({"prompt": f"{n}>", "answer": "2" if n % 2 else "3"}) + "\n" for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    return tmp_path / "rows.jsonl"


def test_prompts_out_of_range_rest(rows: Path) -> None:
    stored = RowsTask(path=str(rows), held_out_rows=0)
    task = PassRateTask(stored, low=0.0, high=1.0, rest_epochs=1)
    first = task.draw(3, seed=(0, 1)) + task.draw(3, seed=(0, 2))
    assert first == stored.draw(6, seed=(0, 1))  # all of them, as without the filter
    always, never, mixed, *_ = names = [one.id for one in first]
    outcomes = {always: (1, 1), never: (0, 0), mixed: (0, 1)}
    passed = [(name, bool(right)) for name, some in outcomes.items() for right in some]
    assert task.learn(passed) == {"pass_rate/resting": 2 / 6}
    second = [one.id for one in task.draw(4, seed=(0, 3))]
    assert sorted(second) == sorted(set(names) - {always, never})
    again = PassRateTask(stored, low=0.0, high=1.0, rest_epochs=1)
    again.restore(json.loads(json.dumps(task.state())))
    third = task.draw(6, seed=(0, 4))
    assert again.draw(6, seed=(0, 4)) == third
    assert {one.id for one in third} == set(names)  # rested for an epoch
    assert task.learn([(always, True), (always, False)]) == {"pass_rate/resting": 1 / 6}


def test_if_all_rest_they_are_tried_again(rows: Path) -> None:
    task = PassRateTask(RowsTask(path=str(rows), held_out_rows=0), low=0.2, high=0.8, rest_epochs=3)
    task.learn([(one.id, True) for one in task.draw(6, seed=(0, 1))])
    assert len({one.id for one in task.draw(6, seed=(0, 2))}) == 6


def test_a_run_goes_on_bit_for_bit(whet: Whet, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bigram_model(tmp_path / "model", {">": {"2": 0.7, "3": 0.3}, "2": {EOS: 1.0}}, alphabet="0123456789>")
    (tmp_path / "r.yaml").write_text(RECIPE)
    assert whet("train", "r.yaml", "--runs", "whole").code == 0
    assert whet("train", "r.yaml", "steps=3", "--runs", "half").code == 0
    (half,), (whole,) = (list((tmp_path / name).iterdir()) for name in ("half", "whole"))
    resumed = whet("train", "--resume", half, "steps=6")
    assert resumed.code == 0, resumed.err
    ours, theirs = (RunDirectory.open(path, is_writer=False) for path in (half, whole))
    resting = [row["pass_rate/resting"] for row in theirs.metrics()]
    assert max(resting) > 0
    assert [row["pass_rate/resting"] for row in ours.metrics()] == resting
    mine, other = ours.latest(), theirs.latest()
    assert mine is not None
    assert other is not None
    assert mine.state["kept"] == other.state["kept"]
    weights = [one.path / "model" / "model.safetensors" for one in (mine, other)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    wrong = refused(whet, "train", "toy-sorting", "rollout.pass_rate={}")
    assert "rollout.pass_rate skips prompts of a file" in wrong
