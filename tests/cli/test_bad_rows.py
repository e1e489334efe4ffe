"""`whet train` on rows and reward models that do not fit: one line each, and no run is left behind."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.data.written import write_lines
from tests.train import rows_on_disk as on_disk


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    on_disk.saved_model(tmp_path / "model")
    on_disk.pairs(tmp_path / "pairs.jsonl", 20)
    write_lines(tmp_path / "talks.jsonl", [{"prompt": f"a{i % 8}b=", "completion": "abc"} for i in range(20)])
    liked = [{"prompt": f"a{i % 8}b=", "completion": "abc"[: 1 + i % 3], "label": i % 3 == 0} for i in range(20)]
    write_lines(tmp_path / "liked.jsonl", liked)
    on_disk.outcomes(tmp_path / "right.jsonl", 20)
    (tmp_path / "empty").mkdir()
    return tmp_path


def line(whet: Whet, place: Path, **written: Any) -> str:
    """What `whet train` says of a recipe; nothing may be left of it."""
    recipe = {"loop": "offline", "steps": 1, "model": str(place / "model"), "track": [], "device": "cpu", **written}
    (place / "r.yaml").write_text(yaml.safe_dump(recipe))
    told = refused(whet, "train", place / "r.yaml", "--runs", place / "runs")
    assert not (place / "runs").exists() or not list((place / "runs").iterdir())
    return told.replace(str(place), "…")


def test_preferences_without_data(whet: Whet, place: Path) -> None:
    told = line(whet, place, objective="dpo", task="sorting")
    assert told == "…/r.yaml: objective 'dpo' learns from data: set data, e.g. data: pairs.jsonl"
    told = line(whet, place, objective="dpo")
    assert told == "…/r.yaml: nothing to learn from: name data, e.g. data: pairs.jsonl, or a task that has answers"


@pytest.mark.parametrize(
    ("objective", "data", "told"),
    [
        ("dpo", "talks", "…/talks.jsonl holds dialogues, and objective 'dpo' learns from pairs"),
        ("dpo", "liked", "…/liked.jsonl holds labelled completions, and objective 'dpo' learns from pairs"),
        (
            "kto",
            "talks",
            "…/talks.jsonl holds dialogues, and objective 'kto' learns from pairs or labelled completions",
        ),
        ("sft", "right", "…/right.jsonl holds outcomes, and objective 'sft' learns from dialogues, texts or pairs"),
        ("outcome", "pairs", "…/pairs.jsonl holds pairs, and objective 'outcome' learns from outcomes"),
        ("process", "pairs", "…/pairs.jsonl holds pairs, and objective 'process' learns from traces"),
        ("bradley_terry", "talks", "…/talks.jsonl holds dialogues, and objective 'bradley_terry' learns from pairs"),
    ],
)
def test_data_of_another_kind(whet: Whet, place: Path, objective: str, data: str, told: str) -> None:
    assert line(whet, place, objective=objective, data=str(place / f"{data}.jsonl")) == told


def test_a_directory_without_rows(whet: Whet, place: Path) -> None:
    told = line(whet, place, objective="dpo", data=str(place / "empty"))
    assert told == "…/empty is a folder without files of rows (.jsonl, .json, .csv, .parquet …): name another"


def test_a_file_that_is_not_there(whet: Whet, place: Path) -> None:
    told = line(whet, place, objective="dpo", data=str(place / "absent.jsonl"))
    assert told == "cannot read …/absent.jsonl: No such file or directory"


def test_rows_that_are_all_too_long(whet: Whet, place: Path) -> None:
    told = line(whet, place, objective="dpo", data={"path": str(place / "pairs.jsonl"), "max_tokens": 2})
    assert "pairs have more than 2 tokens (data.max_tokens): raise it" in told


def test_a_language_model_as_the_reward(whet: Whet, place: Path) -> None:
    reward = {"reward": {"model": str(place / "model")}, "task": {"name": "sorting", "level": 1}}
    wanted = "…/model is no reward model: it has no head (score.weight), only a language model; train one on it"
    rollout = {"rollout": {"prompts": 2, "group": 2, "max_tokens": 3}}
    evaluation = {"eval": {"examples": 2, "max_tokens": 3}}
    assert line(whet, place, loop="online", algorithm="grpo", **reward, **rollout, **evaluation) == wanted
    (place / "r.yaml").write_text(
        yaml.safe_dump({"loop": "collect", "steps": 1, "model": str(place / "model"), **reward, **rollout})
    )
    told = refused(whet, "train", place / "r.yaml", "--runs", place / "runs")
    assert told.replace(str(place), "…") == wanted


def test_a_reward_model_as_the_policy(whet: Whet, place: Path) -> None:
    """What judges cannot speak."""
    recipe = {"loop": "offline", "objective": "bradley_terry", "data": str(place / "pairs.jsonl"), "batch_size": 4}
    written = {**recipe, "steps": 1, "model": str(place / "model"), "track": [], "device": "cpu"}
    (place / "rm.yaml").write_text(yaml.safe_dump({**written, "eval": {"examples": 4}}))
    assert whet("train", place / "rm.yaml", "--runs", place / "judges").code == 0
    (judge,) = (place / "judges").iterdir()
    told = line(whet, place, objective="dpo", data=str(place / "pairs.jsonl"), model=str(judge / "best_model"))
    assert "best_model has an unexpected tensor 'score.weight'" in told
