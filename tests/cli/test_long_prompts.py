"""Commands and the Python API on files with prompts that are longer than the model's context."""

import json
from pathlib import Path

import pytest
import torch

import whet as library
from tests.cli.refusal import refused
from tests.cli.tiny import Whet, bigram_model
from whet.config.pipeline import CompareConfig
from whet.data.task import DataTask
from whet.train.experiments.contest import run_contest

CONTEXT = 32


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """After a one comes a two, and then the end."""
    return bigram_model(tmp_path / "model", {"1": {"2": 1.0}}, alphabet="12", context=CONTEXT)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Forty prompts of 1 to 40 characters; those of 32 and more leave no room in the context."""
    rows = [{"prompt": "1" * n, "answer": "2"} for n in range(1, 41)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize("task", ["data", "rows"])
def test_evaluation_and_sampling_leave_them_out_and_say_so(whet: Whet, model: Path, file: Path, task: str) -> None:
    options = ("--task", task, f"path={file}", "match=exact", "held_out_rows=30", "--max-tokens", 4)
    result = whet("eval", model, *options, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    lengths = sorted(len(answer["prompt"]) for answer in found["answers"])
    assert found["accuracy"]["mean"] == 1.0
    assert lengths[-1] < CONTEXT
    left_out = 30 - len(lengths)
    first, second = result.err.splitlines()
    assert first.startswith(f"note: {left_out} of 30 prompts have more than 31 tokens (the longest ")
    assert "and are left out: " in first
    cut = sum(length > CONTEXT - 4 for length in lengths)
    assert second.startswith(f"note: completions of {cut} of {len(lengths)} prompts may end before 4 tokens: ")
    sampled = whet("sample", model, *options, "--examples", 30, "--count", 1, "--json")
    rows = json.loads(sampled.out)["prompts"]
    assert (sorted(len(row["prompt"]) for row in rows), sampled.err) == (lengths, result.err)
    truncated = whet("eval", model, *options, "overlong_prompts=truncate", "--json")
    assert len(json.loads(truncated.out)["answers"]) == 30


def test_the_python_api_warns(model: Path, file: Path) -> None:
    task = {"name": "data", "path": str(file), "match": "exact", "held_out_rows": 30}
    with pytest.warns(UserWarning, match="of 30 prompts have more than 31 tokens") as seen:
        found = library.evaluate(model, task)
    assert len(seen) == 1  # nothing on the default of max_tokens
    assert seen[0].filename == __file__
    assert max(len(answer.prompt) for answer in found.answers) < CONTEXT
    with pytest.warns(UserWarning, match=r"completions of 1 of 2 prompts may end before 20 tokens") as seen:
        completions = library.load(model).generate(["1" * 3, "1" * 30], max_tokens=20)
    assert seen[0].filename == __file__
    assert [one[0].text for one in completions] == ["2", "2"]


def test_a_typed_prompt_that_does_not_fit_is_one_sentence(whet: Whet, model: Path) -> None:
    line = refused(whet, "sample", model, "1" * 33)
    assert line.startswith("a prompt has 33 tokens and the model's context is 32: shorten the prompt")
    beyond = whet("sample", model, "111", "--max-tokens", 99, "--count", 1)
    assert beyond.code == 0
    assert beyond.err == (
        "note: max_tokens is 99 and the context has 32 tokens, prompt included: completions end there; "
        "lower max_tokens\n"
    )
    assert whet("sample", model, "111", "--count", 1).err == ""  # the default ends at the context


def test_rows_are_collected_from_those_that_fit(whet: Whet, model: Path, file: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "collect.yaml"
    recipe.write_text(
        f"loop: collect\nsteps: 3\nmodel: {model}\ntask: {{name: data, path: {file}, match: exact}}\nselect: best\n"
        "rollout: {prompts: 16, group: 1, max_tokens: 2}\n"
    )
    result = whet("train", recipe, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    assert "prompts have more than 31 tokens" in result.err
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert rows
    assert max(len(row["prompt"]) for row in rows) < CONTEXT


def test_methods_are_compared_on_prompts_that_fit(
    model: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.train.experiments.contest.write_page", lambda directory: None)
    settings = CompareConfig(start=str(model), prompts=30, max_tokens=2)
    notes: list[str] = []
    found = run_contest(
        settings,
        DataTask(path=str(file), match="exact", held_out_rows=30),
        {("same", 0): model},
        tmp_path / "comparison",
        device=torch.device("cpu"),
        seed=0,
        title="methods",
        failures={},
        note=notes.append,
    )
    left_out = 30 - found["prompts"]
    assert left_out > 0
    assert notes[0].startswith(f"note: {left_out} of 30 prompts have more than 31 tokens")
