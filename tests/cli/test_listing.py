"""`whet tasks` and `whet recipes`."""

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.tiny import Whet
from whet.recipe import packaged_recipes
from whet.tasks.loading import ELSEWHERE, TASKS
from whet.tasks.procedural import Arithmetic


def test_every_task_is_listed_with_its_options(whet: Whet) -> None:
    rows = {row["name"]: row for row in json.loads(whet("tasks", "--json").out)}
    assert set(rows) == {*TASKS, *ELSEWHERE}
    assert rows["arithmetic"]["options"] == {
        "level": {"type": "int", "default": 1, "meaning": "difficulty, from 1 on"},
        "chat": {"type": "bool", "default": False, "meaning": "ask in words, and grade the end of the answer"},
    }
    assert rows["code"]["options"]["path"].keys() == {"type", "meaning"}  # needed, so it has no default
    assert whet("tasks", "list", "--json").out == whet("tasks", "--json").out
    assert rows["arithmetic"]["about"].startswith("Arithmetic with one (level 1)")
    shown = whet("tasks").out
    assert "level=1, chat=false" in shown
    assert "path=… (needed)" in shown


def test_a_task_shows_training_and_held_out_examples_and_is_checked(whet: Whet) -> None:
    found = json.loads(whet("tasks", "arithmetic", "level=2", "--count", 4, "--json").out)
    task = Arithmetic(level=2)
    assert found["checked"] is True
    assert [row["prompt"] for row in found["held_out"]] == [example.prompt for example in task.held_out(4)]
    assert [row["answer"] for row in found["training"]] == [example.answer for example in task.draw(4, seed=(0,))]
    shown = whet("tasks", "arithmetic", "level=2", "--count", 1).out
    (example,) = task.held_out(1)
    assert f"'{example.prompt}' → '{example.answer}'" in shown
    assert "check_task: passed" in shown


BROKEN = """
from dataclasses import dataclass
from whet.tasks.procedural import Arithmetic

@dataclass(frozen=True, kw_only=True)
class Leaky(Arithmetic):
    '''Trains on what it is examined in.'''

    def held_out(self, count):
        return self.draw(count, seed=(0,))
"""


def test_a_users_task_that_breaks_a_promise_is_named(whet: Whet, tmp_path: Path) -> None:
    file = tmp_path / "leaky.py"
    file.write_text(BROKEN)
    result = whet("tasks", f"{file}:Leaky", "level=2")
    assert result.code == 2
    assert "held" in result.err
    assert result.err.count("\n") == 1


def test_wrong_names_and_options_are_one_line(whet: Whet) -> None:
    for arguments, message in (
        (("tasks", "sortin"), "did you mean 'sorting'"),
        (("tasks", "rows"), "needs the option 'path'"),
        (("tasks", "arithmetic", "level=two"), "must be int"),
        (("recipes", "no-such-recipe"), "no recipe 'no-such-recipe'"),
    ):
        result = whet(*arguments)
        assert result.code == 2
        assert message in result.err
        assert result.err.count("\n") == 1


def test_recipes_are_described_by_their_first_line_and_printed_whole(whet: Whet) -> None:
    packaged = packaged_recipes()
    rows = {row["name"]: row["about"] for row in json.loads(whet("recipes", "--json").out)}
    assert set(rows) == set(packaged)
    for name, text in packaged.items():
        assert text.splitlines()[0] == f"# {rows[name]}"
        assert whet("recipes", name).out == text
        assert name in whet("recipes").out


def test_the_help_loads_neither_torch_nor_transformers() -> None:
    program = "import sys, whet.cli.app; print([m for m in ('torch', 'transformers', 'pydantic') if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_every_command_has_help_with_an_example(whet: Whet) -> None:
    for command in ("eval", "sample", "chat", "report", "explain", "tasks", "recipes"):
        result = whet(command, "--help")
        assert result.code == 0
        assert "Example" in result.out
        assert f"whet {command}" in result.out


def test_the_prompts_of_a_file_pass_the_check_without_answers(whet: Whet, tmp_path: Path) -> None:
    rows = [{"prompt": f"what is {n} + {n}?", "completion": str(2 * n)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = whet("tasks", "data", f"path={tmp_path / 'rows.jsonl'}")
    assert result.code == 0, result.err
    assert "check_task: passed" in result.out
    assert "no answers: the reward comes from elsewhere" in result.out
    (tmp_path / "same.jsonl").write_text(f"{json.dumps(rows[0])}\n{json.dumps({**rows[0], 'completion': '1'})}\n")
    refusal = whet("tasks", "data", f"path={tmp_path / 'same.jsonl'}")
    assert refusal.code == 2
    assert "none can be held out: add rows with other prompts" in refusal.err
