"""docs/debugging.md: its commands do what it says, with the files that it shows."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from whet.doctor.causes import CAUSES
from whet.recipe import read_recipe

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "debugging.md").read_text("utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
FILES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FIRST = re.findall(r"^  1\. ([\w-]+): (.+)$", PAGE, re.MULTILINE)  # the likeliest cause of each case, in words
RUNS = [shlex.split(line)[2:] for line in COMMANDS if line.startswith("whet train")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "rewards.py").write_text("\n\n".join(FILES), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_recipes_and_causes_are_those_of_the_library(folder):
    assert len(FIRST) == 3
    for cause, sentence in FIRST:
        assert CAUSES[cause].sentence == sentence
    assert len(RUNS) == 7
    for recipe, *keys in RUNS:
        read_recipe(recipe, [key for key in keys if "=" in key])


@pytest.mark.slow
def test_every_case_breaks_is_diagnosed_and_works_again(folder):
    """Seven runs of half a minute. The broken ones are those that the page asks the doctor about."""

    def whet(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "whet", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )

    causes = iter(FIRST)
    for number, arguments in enumerate(RUNS):
        done = whet("train", *arguments)
        assert done.returncode == 0, done.stderr
        examined = whet("doctor", "@last", "--json")
        diagnosis = json.loads(examined.stdout)
        (run,) = (path for path in (folder / "runs").glob("*") if path.name == Path(done.stdout.strip()).name)
        accuracy = [row for row in map(json.loads, (run / "metrics.jsonl").open()) if "eval/accuracy" in row]
        if number in (1, 3, 5):
            cause, _ = next(causes)
            assert diagnosis["causes"][0]["name"] == cause
            assert accuracy[-1]["eval/accuracy"] < 0.1
            assert examined.returncode > 0
        else:
            assert accuracy[-1]["eval/accuracy"] > 0.75
            assert examined.returncode == 0, diagnosis
