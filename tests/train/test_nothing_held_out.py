"""Training on all rows: nothing held out and no evaluation; with evaluations, one sentence says what to do."""

import json
from pathlib import Path

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet, bigram_model
from whet.runs.directory import RunDirectory

ONLINE = (
    "task: {name: TASK, path: ROWS, match: exact}\nalgorithm: grpo\nrollout: {prompts: 4, group: 2, max_tokens: 2}\n"
)
OFFLINE = "loop: offline\ndata: ROWS\nobjective: OBJECTIVE\nbatch_size: 4\n"
NO_EVALUATION = "eval.every_steps=0"
TOLD = (
    "is 0, so nothing is held out for the evaluations: hold some rows out, name a file to evaluate on (eval.data), or"
)


@pytest.fixture
def recipe(tmp_path: Path):
    model = bigram_model(tmp_path / "model", {"1": {"2": 0.5, "1": 0.5}}, alphabet="12")

    def write(text: str, rows: list[dict[str, str]]) -> Path:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        path = tmp_path / "recipe.yaml"
        shared = f"steps: 3\nmodel: {model}\neval: {{examples: 4, max_tokens: 2}}\ntrack: []\n"
        path.write_text(shared + text.replace("ROWS", str(tmp_path / "rows.jsonl")))
        return path

    return write


@pytest.mark.parametrize("key", ["held_out_rows=0", "held_out_share=0"])
@pytest.mark.parametrize("task", ["data", "rows"])
def test_online(whet: Whet, tmp_path: Path, recipe, task: str, key: str) -> None:
    path = recipe(ONLINE.replace("TASK", task), [{"prompt": "1" * n, "answer": "2"} for n in range(1, 13)])
    line = refused(whet, "train", path, f"task.{key}", "--out", tmp_path / "out")
    assert f"task.{key.removesuffix('=0')} {TOLD}" in line
    result = whet("train", path, f"task.{key}", NO_EVALUATION, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    run = RunDirectory.open(tmp_path / "out", is_writer=False)
    assert {row["prompt"] for step in (1, 2, 3) for row in run.rollouts(step)} == {"1" * n for n in range(1, 13)}
    assert not any(name.startswith("eval/") for row in run.metrics() for name in row)
    told = refused(whet, "eval", tmp_path / "out")
    assert told.startswith(f"task {task} has no held-out examples: hold some out (held_out_rows=100, of a file)")
    assert whet("eval", tmp_path / "out", "held_out_rows=2", "--json").code == 0


@pytest.mark.parametrize("objective", ["sft", "dpo", "bradley_terry"])
@pytest.mark.parametrize("key", ["held_out_rows=0", "held_out_share=0"])
def test_offline(whet: Whet, tmp_path: Path, recipe, objective: str, key: str) -> None:
    rows = [{"prompt": "1" * n, "chosen": "2", "rejected": "11"} for n in range(1, 13)]
    path = recipe(OFFLINE.replace("OBJECTIVE", objective), rows)
    line = refused(whet, "train", path, f"data.{key}", "--out", tmp_path / "out")
    assert f"data.{key.removesuffix('=0')} {TOLD}" in line
    result = whet("train", path, f"data.{key}", NO_EVALUATION, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    assert "12 pairs to learn from, all rows of the data" in result.err
    assert RunDirectory.open(tmp_path / "out", is_writer=False).finished


def test_all_rows_are_learned_from_and_a_task_of_its_own_evaluates(whet: Whet, tmp_path: Path, recipe) -> None:
    rows = [{"prompt": "1" * n, "completion": "2", "answer": "2"} for n in range(1, 13)]
    path = recipe(OFFLINE.replace("OBJECTIVE", "sft"), rows)
    task = f"task={{name: rows, path: {tmp_path / 'rows.jsonl'}, held_out_rows: 4}}"
    result = whet("train", path, "data.held_out_rows=0", task, "eval.every_steps=3", "--out", tmp_path / "out")
    assert result.code == 0, result.err
    measured = RunDirectory.open(tmp_path / "out", is_writer=False).metrics()[-1]
    assert "eval/accuracy" in measured
    assert "eval/loss" not in measured


@pytest.mark.parametrize("text", [ONLINE.replace("TASK", "rows"), ONLINE.replace("TASK", "data"), OFFLINE])
def test_the_advice_for_one_prompt_works(whet: Whet, tmp_path: Path, recipe, text: str) -> None:
    path = recipe(text.replace("OBJECTIVE", "sft"), [{"prompt": "1", "answer": "2"}] * 3)
    line = refused(whet, "train", path, "--out", tmp_path / "out")
    assert line.endswith("or train on all of them without evaluation (held_out_rows=0, eval.every_steps=0)")
    key = "data.held_out_rows=0" if text == OFFLINE else "task.held_out_rows=0"
    result = whet("train", path, key, NO_EVALUATION, "--out", tmp_path / "out")
    assert result.code == 0, result.err


def test_a_reward_model_that_is_not_evaluated_is_analysed_at_its_end(whet: Whet, tmp_path: Path, recipe) -> None:
    rows = [{"prompt": "1" * n, "chosen": "2", "rejected": "11"} for n in range(1, 13)]
    path = recipe(OFFLINE.replace("OBJECTIVE", "bradley_terry"), rows)
    result = whet("train", path, NO_EVALUATION, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    assert "analysis: " in result.err
    told = refused(whet, "train", path, "data.held_out_rows=0")
    assert "data.held_out_rows is 0" in told
