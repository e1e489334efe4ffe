"""What a user's reward functions and tasks print is kept in the run, and where they fail is told with file and line."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.refusal import refused, write_recipe
from tests.cli.tiny import Whet

REWARDS = """
import os, sys

print("loaded")

def chatty(completions, **columns):
    print("on stdout")
    sys.stderr.write("on stderr\\n")
    os.system("echo from a program")
    return [float(len(text)) for text in completions]

def lookup(row):
    return row["x"]

def short(completions, **columns):
    return [lookup({}) for text in completions]

def dies(completions, **columns):
    print("last words", flush=True)
    os._exit(3)
"""
TASK = """
from dataclasses import dataclass
from whet.tasks.procedural import Sorting

print("task loaded")

@dataclass(frozen=True)
class Mine(Sorting):
    def correct(self, example, text):
        print("correct?", example.id)
        return super().correct(example, text)
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "own.py").write_text(TASK)
    return write_recipe(tmp_path)


def test_prints_are_kept_in_the_run_and_the_final_lines_name_the_log(
    whet: Whet, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"HOME": str(recipe.parent), "PATH": os.environ["PATH"], "MY_TOKEN": "x"})
    own = ("reward.functions=['rewards.py:chatty']", "task.name=own.py:Mine")
    result = whet("train", recipe, *own, "--json")
    assert result.code == 0, result.err
    json.loads(result.out)
    secret = "do not see MY_TOKEN, which looks like a secret: name it in reward.environment if they need it"
    assert secret in result.err
    (log,) = recipe.parent.glob("runs/*/user_output.log")
    lines = log.read_text().splitlines()
    assert lines.count("loaded") == 1
    assert (
        lines.count("on stdout") == lines.count("on stderr") == lines.count("from a program") == 4
    )  # 2 steps, 2 evaluations
    assert sum(line.startswith("correct? ") for line in lines) == 2 * 4  # 2 evaluations of 4 examples
    assert not any(words in result.err for words in ("loaded", "on std", "from a program", "correct?"))
    assert f"what reward functions and tasks printed: {log.relative_to(recipe.parent)}" in result.err


def test_a_silent_run_has_no_log(whet: Whet, recipe: Path) -> None:
    result = whet("train", recipe)
    assert "printed" not in result.err
    assert list(recipe.parent.glob("runs/*/user_output*")) == []


def test_the_failure_file_has_the_traceback_and_the_sentence_its_last_line(whet: Whet, recipe: Path) -> None:
    message = refused(whet, "train", recipe, "reward.functions=['rewards.py:short']", code=1)
    assert "evaluation before training: reward function short failed at rewards.py:13 in lookup: " in message
    assert ": KeyError: 'x' (example" in message
    (evidence,) = recipe.parent.glob("runs/*/failures/reward-001.json")
    trace = json.loads(evidence.read_text())["traceback"]
    assert trace[0] == "Traceback (most recent call last):"
    assert [line.split(", line ")[1] for line in trace if "rewards.py" in line] == [
        "16, in short", "16, in <listcomp>", "13, in lookup"
    ]  # fmt: skip
    assert '    return row["x"]' in trace
    assert trace[-1] == "KeyError: 'x'"
    assert not any("whet" in line for line in trace if line.startswith("  File"))  # the user's frames alone


def test_the_last_words_of_a_worker_are_kept(whet: Whet, recipe: Path) -> None:
    refused(whet, "train", recipe, "reward.functions=['rewards.py:dies']", code=1)
    (log,) = recipe.parent.glob("runs/*/user_output.log")
    assert "last words\n" in log.read_text()
