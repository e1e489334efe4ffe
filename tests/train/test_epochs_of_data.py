"""`epochs` in place of steps, and `limit`: how much of a data set is read, and how often."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.train import rows_on_disk
from whet.cli.progress import SilentProgress
from whet.config import OfflineConfig, OnlineConfig
from whet.errors import UserError
from whet.recipe import Recipe, dump, validate
from whet.runs.directory import RunDirectory
from whet.train.explain.explanation import explain
from whet.train.session.input_files import current_inputs
from whet.train.setup.epochs import load_sides, with_steps
from whet.train.start import resume_run, start_run


def recipe(place: Path, **changes: Any) -> dict[str, Any]:
    pairs, start = place / "pairs.jsonl", place / "start"
    written = {
        "loop": "offline",
        "model": str(start if start.exists() else rows_on_disk.saved_model(start)),
        "objective": "dpo",
        "data": {"path": str(pairs if pairs.exists() else rows_on_disk.pairs(pairs)), "held_out_share": 0.25},
        "batch_size": 8,
        "eval": {"every_steps": 100, "examples": 4, "max_tokens": 4},
        "save": {"every_steps": 100},
        "device": "cpu",
        "track": [],
    }
    return {**written, **changes}


def config(place: Path, **changes: Any) -> OfflineConfig:
    found = validate(recipe(place, **changes), where="test")
    assert isinstance(found, OfflineConfig)
    return found


@pytest.mark.parametrize("epochs", [0.01, 0.5, 1, 2.5])
def test_epochs_become_steps_rounded_up(tmp_path: Path, epochs: float) -> None:
    asked = config(tmp_path, epochs=epochs)
    assert asked.data is not None
    rows = len(load_sides(asked.data)[1])
    steps = with_steps(asked).steps
    assert (steps - 1) * 8 < epochs * rows <= steps * 8 or (steps == 1 and epochs * rows <= 8)
    assert explain(Recipe(name="r", config=asked, written={})).schedule.steps == steps


def test_a_run_keeps_the_steps_that_its_epochs_came_to(tmp_path: Path) -> None:
    asked = config(tmp_path, epochs=0.5, data={**recipe(tmp_path)["data"], "limit": 24})
    path = start_run(Recipe(name="r", config=asked, written={}), tmp_path / "runs", lambda *_: SilentProgress())
    saved = yaml.safe_load((path / "config.yaml").read_text())
    steps = with_steps(asked).steps
    assert (saved["steps"], saved["epochs"]) == (steps, None)
    assert len([row for row in RunDirectory.open(path, is_writer=False).metrics() if "loss" in row]) == steps
    with pytest.raises(UserError, match="is finished"):
        resume_run(path, [], lambda *_: SilentProgress())


def test_a_limit_reads_the_first_rows_alone(tmp_path: Path) -> None:
    file = rows_on_disk.pairs(tmp_path / "pairs.jsonl")
    first = [json.loads(line)["prompt"] for line in file.read_text().splitlines()[:10]]
    limited = config(tmp_path, steps=1, data={"path": str(file), "held_out_share": 0.3, "limit": 10})
    assert limited.data is not None
    loaded, training, held_out = load_sides(limited.data)
    assert loaded.read == 10
    assert {row.prompt for row in (*training, *held_out)} == set(first)
    assert limited.task.options["limit"] == 10  # the prompts that are evaluated come from the same rows


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "either steps (optimizer steps) or epochs"),
        ({"steps": 3, "epochs": 1}, "either steps (optimizer steps) or epochs"),
        ({"epochs": 0}, "epochs must be greater than 0"),
        ({"epochs": 1, "data": None, "objective": "sft", "task": "sorting"}, "epochs counts passes over `data`"),
        ({"steps": 1, "data": {"path": "x.jsonl", "limit": 0}}, "data.limit must be greater than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as error:
        config(tmp_path, **changes)
    assert told in str(error.value)


def online(path: Path, **changes: Any) -> OnlineConfig:
    task = {"name": "data", "match": "exact", "path": str(path), "held_out_rows": 10}
    written = {"model": "m", "algorithm": "grpo", "task": task, "rollout": {"prompts": 8}, **changes}
    found = validate(written, where="test")
    assert isinstance(found, OnlineConfig)
    return found


def test_epochs_count_the_prompts_of_an_online_task(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"prompt": f"q{i}", "answer": i}) + "\n" for i in range(50))
    (tmp_path / "q.jsonl").write_text(rows)
    asked = online(tmp_path / "q.jsonl", epochs=1.5)  # 40 of the 50 prompts, 8 a step
    assert with_steps(asked).steps == 8
    assert yaml.safe_load(dump(asked))["epochs"] == 1.5
    assert validate(yaml.safe_load(dump(asked)), where="test") == asked
    steps = yaml.safe_load(dump(with_steps(asked)))
    assert (steps["steps"], "epochs" in steps) == (8, False)
    rows_task = {"name": "rows", "path": str(tmp_path / "q.jsonl"), "held_out_rows": 10}
    assert with_steps(online(tmp_path / "q.jsonl", epochs=2, task=rows_task)).steps == 10
    for changes, told in (
        ({}, "say how long to train"),
        ({"steps": 1, "epochs": 1}, "say how long to train"),
        ({"epochs": 1, "task": "sorting"}, "task sorting makes its prompts: set steps instead"),
    ):
        with pytest.raises(UserError, match=told):
            online(tmp_path / "q.jsonl", **changes)


def test_sets_are_read_as_written_and_resumed_by_their_files(tmp_path: Path) -> None:
    first, second = (rows_on_disk.pairs(tmp_path / f"{name}.jsonl", 40, seed=seed) for seed, name in enumerate("ab"))
    asked = config(tmp_path, steps=1, data=[{"path": str(first), "weight": 2}, str(second)])
    assert asked.data is not None
    loaded, training, held_out = load_sides(asked.data)
    assert len(loaded.rows) == 80
    assert len(training) == sum(
        2 if row.id.startswith("set1-") else 1 for row in {row.id: row for row in training}.values()
    )
    assert len({row.id for row in training}) + len(held_out) == 80
    assert validate(yaml.safe_load(dump(asked)), where="test") == asked
    inputs = current_inputs(asked, tmp_path)
    assert {key: set(one.files) for key, one in inputs.items() if key.startswith("data.")} == {
        "data.sets.0": {"a.jsonl"},
        "data.sets.1": {"b.jsonl"},
    }
    with pytest.raises(UserError, match="limit belongs to each of the sets: write it there"):
        config(tmp_path, steps=1, data={"sets": [str(first)], "limit": 3})
    with pytest.raises(UserError, match=r"give either path .* or sets"):
        config(tmp_path, steps=1, data={"sets": [str(first)], "path": str(second)})
    assert not {"sets", "columns", "held_out_rows"} & set(yaml.safe_load(dump(config(tmp_path, steps=1)))["data"])
