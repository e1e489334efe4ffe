"""A run on a mixture of tasks: shares, rewards and accuracies of each, and its files.

The model answers every prompt with "2", so all metrics are known.
"""

import json
from pathlib import Path

import pytest

from tests.cli.tiny import Whet, bigram_model
from whet.models.text.tokenizers import EOS
from whet.runs.directory import RunDirectory

RECIPE = """
steps: 3
algorithm: grpo
model: model
rollout: {prompts: 4, group: 2, max_tokens: 2, temperature: 0.001}
optimizer: {lr: 1.0e-12}
eval: {every_steps: 3, examples: 6, max_tokens: 2}
save: {every_steps: 100}
track: []
device: cpu
task:
  name: mixture
  tasks:
    - {name: rows, label: easy, path: easy.jsonl, weight: 3, held_out_rows: 4}
    - {name: rows, label: hard, path: hard.jsonl, held_out_rows: 3, max_prompt_tokens: 3}
"""


@pytest.fixture
def run(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.chdir(tmp_path)
    bigram_model(tmp_path / "model", {">": {"2": 1.0}, "2": {EOS: 1.0}}, alphabet="0123456789>")
    for name, answer, start in (("easy", "2", 10), ("hard", "3", 50)):
        prompts = [*(f"{start + n}>" for n in range(12)), *(["12345>"] if name == "hard" else [])]
        rows = [json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt in prompts]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    (tmp_path / "mixed.yaml").write_text(RECIPE)
    result = whet("train", "mixed.yaml", "--runs", "runs")
    assert result.code == 0, result.err
    assert "prompts: a mixture of easy 75%, hard 25%" in result.err
    assert "hard: note: 1 of 13 prompts have more than 3 tokens" in result.err
    (path,) = (tmp_path / "runs").iterdir()
    return RunDirectory.open(path, is_writer=False)


def test_a_run_reports_every_task(whet: Whet, run: RunDirectory) -> None:
    rows = run.metrics()
    for row in rows[1:]:
        assert {key: row[key] for key in row if key.startswith("tasks/")} == {
            "tasks/easy/correct": 1.0,
            "tasks/easy/reward": 1.0,
            "tasks/easy/share": 0.75,
            "tasks/hard/correct": 0.0,
            "tasks/hard/reward": 0.0,
            "tasks/hard/share": 0.25,
        }
        assert row["reward/mean"] == 0.75
    last = rows[-1]
    assert last["eval/accuracy"] == last["eval/reward"] == 0.5
    assert (last["eval/prompts"], last["eval/easy/prompts"], last["eval/hard/prompts"]) == (6, 3, 3)
    assert (last["eval/easy/accuracy"], last["eval/hard/accuracy"]) == (1, 0)
    assert (last["eval/easy/reward"], last["eval/hard/reward"]) == (1, 0)
    inputs = run.inputs()
    assert inputs is not None
    assert {key for key in inputs.known if key.startswith("task")} == {"task.tasks.0.path", "task.tasks.1.path"}
    shown = whet("eval", run.path)
    assert shown.code == 0, shown.err
    cells = [[cell.strip() for cell in line.split("│")] for line in shown.out.splitlines()]
    values = {row[1]: row[2] for row in cells if len(row) > 2}
    assert (values["accuracy on easy"], values["accuracy on hard"]) == ("100.0%", "0.0%")
    assert (values["reward on easy"], values["reward on hard"]) == ("1", "0")
    found = json.loads(whet("eval", run.path, "--json").out)
    assert found["tasks"]["hard"]["eval/accuracy"] == 0
    assert found["tasks"]["easy"]["eval/prompts"] == 3
