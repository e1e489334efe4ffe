"""Every key that names a file is absolute in a config, so that a run can be resumed and evaluated from anywhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny import CHAT_TEMPLATE, Whet, chat_model
from whet.config import model_config
from whet.config.pipeline import CompareConfig
from whet.models.text.chat_settings import NAMED_TEMPLATES
from whet.recipe import plain, validate

ONLINE: dict[str, Any] = {"steps": 1, "model": "model", "task": {"name": "sorting"}, "algorithm": "grpo"}
OFFLINE: dict[str, Any] = {"loop": "offline", "steps": 1, "model": "model", "objective": "dpo", "data": "a.jsonl"}
SET = {"path": "a.jsonl"}
OWN = {"name": "own.py:Task", "words": ["a.jsonl", "b"], "more": {"table": "sub/b.jsonl", "mode": "model"}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "a.jsonl",
        "sub/b.jsonl",
        "t.jinja",
        "own.py",
        "model/config.json",
        "rm/config.json",
        "tok/x",
        "plain",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "own.py").write_text("def f(completions):\n    return [0.0] * len(completions)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("values", "key", "expected"),
    [
        (ONLINE, "model.path", "model"),
        (ONLINE | {"model": {"path": "model", "chat_template": "t.jinja"}}, "model.chat_template", "t.jinja"),
        (ONLINE | {"model": {"new": {"tokenizer": "tok"}}}, "model.new.tokenizer", "tok"),
        (ONLINE | {"task": {"name": "data", "path": "a.jsonl", "match": "exact"}}, "task.path", "a.jsonl"),
        (ONLINE | {"task": {"name": "data", "sets": ["a.jsonl"], "match": "exact"}}, "task.sets.0", "a.jsonl"),
        (
            ONLINE | {"task": {"name": "data", "sets": [{"path": "a.jsonl"}], "match": "exact"}},
            "task.sets.0.path",
            "a.jsonl",
        ),
        (ONLINE | {"task": OWN}, "task.words.0", "a.jsonl"),
        (ONLINE | {"task": OWN}, "task.more.table", "sub/b.jsonl"),
        (ONLINE | {"reward": {"functions": ["own.py:f"]}}, "reward.functions.0.use", "own.py:f"),
        (ONLINE | {"reward": {"functions": ["own:f"]}}, "reward.functions.0.use", "own.py:f"),
        (ONLINE | {"reward": {"model": "rm"}}, "reward.model.path", "rm"),
        (
            ONLINE | {"engine": {"name": "vllm", "url": "http://127.0.0.1:1", "weights_directory": "not/yet"}},
            "engine.weights_directory",
            "not/yet",
        ),
        (OFFLINE, "data.path", "a.jsonl"),
        (OFFLINE, "task.path", "a.jsonl"),
        (OFFLINE | {"data": ["a.jsonl", {"path": "sub/b.jsonl"}]}, "data.sets.1.path", "sub/b.jsonl"),
        (OFFLINE | {"data": ["a.jsonl", {"path": "sub/b.jsonl"}]}, "task.sets.0", "a.jsonl"),
        (OFFLINE | {"data": ["a.jsonl", {"path": "sub/b.jsonl"}]}, "task.sets.1.path", "sub/b.jsonl"),
        (OFFLINE | {"reference": "model"}, "reference", "model"),
    ],
)
def test_a_key_that_names_a_file(here: Path, values: dict[str, Any], key: str, expected: str) -> None:
    found: Any = plain(validate(values, where="here"))
    for part in key.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]
    assert found == str(here / expected)


def test_names_stay_names(here: Path) -> None:
    """A file of that name in the working directory changes nothing."""
    config: Any = plain(
        validate(ONLINE | {"model": {"path": "model", "chat_template": "plain"}, "task": OWN}, where="h")
    )
    assert config["model"]["chat_template"] == "plain"
    assert config["task"]["more"]["mode"] == "model"
    assert set(model_config.NAMED_TEMPLATES) == set(NAMED_TEMPLATES)
    compare = CompareConfig(start="model", reward="@rm", judge="rm")
    assert (compare.start, compare.reward, compare.judge) == (str(here / "model"), "@rm", str(here / "rm"))


def test_a_run_goes_on_in_another_directory(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    monkeypatch.chdir(first)
    chat_model(first / "model")
    Path("t.jinja").write_text(CHAT_TEMPLATE)
    Path("r.py").write_text("def f(completions, **columns):\n    return [float(len(str(c))) for c in completions]\n")
    for name, letters in (("a", "abcdef"), ("b", "bcdefa")):
        rows = [{"prompt": one + two, "answer": one} for one in letters for two in letters if one < two]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("recipe.yaml").write_text(
        "steps: 1\nmodel: {path: model, chat_template: t.jinja}\nalgorithm: grpo\ntrack: []\n"
        "task: {name: data, sets: [a.jsonl, {path: b.jsonl, weight: 2}], chat: true, match: exact}\n"
        "reward: {functions: [r.py:f]}\nrollout: {prompts: 2, group: 2, max_tokens: 3}\n"
        "eval: {examples: 4, max_tokens: 3}\n"
    )
    assert whet("train", "recipe.yaml", "--out", "run").code == 0
    monkeypatch.chdir(second)
    resumed = whet("train", "../first/run", "--resume", "steps=2")
    assert resumed.code == 0, resumed.err
    evaluated = whet("eval", "../first/run", "--json")
    assert evaluated.code == 0, evaluated.err
    assert json.loads(evaluated.out)["examples"] == 3  # of fifteen prompts
