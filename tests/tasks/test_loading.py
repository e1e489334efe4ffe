"""Tasks by name, the user's own tasks, wrong options; and the package needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import whet.tasks
from whet.errors import UserError
from whet.tasks.loading import TASKS, load_task
from whet.tasks.procedural import Arithmetic

NEED_OPTIONS = ("code", "countdown_rows", "ifeval", "reasoning_gym", "rows")  # a file, or the name of a generator

OWN = '''
from whet.records import Example, Score

class Echo:
    """Says the prompt again."""
    def __init__(self, word, times: int = 2, share: float = 0.5):
        if times > 9:
            raise ValueError("too many times")
        self.name, self.word, self.times, self.share = "echo", word, times, share
    def draw(self, count, *, seed):
        return [Example(id=f"{i}", prompt=self.word, answer=self.word * self.times) for i in range(count)]
    def held_out(self, count): return []
    def score(self, example, text): return Score(reward=float(text == example.answer), parts={})
    def correct(self, example, text): return text == example.answer

class NoTask:
    pass

value = 3
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the current directory, and its name."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    (tmp_path / f"{name}_broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_names_and_classes_agree() -> None:
    for name, task_class in TASKS.items():
        if name not in NEED_OPTIONS:
            assert load_task(name, {}).name == name == task_class().name
        assert task_class.__doc__


def test_options_reach_the_task() -> None:
    assert load_task("arithmetic", {"level": 3, "chat": True}) == Arithmetic(level=3, chat=True)


def test_a_task_of_the_users_own_is_found_in_the_current_directory(own: str) -> None:
    task = load_task(f"{own}:Echo", {"word": "ab", "share": 1})
    assert task.draw(1, seed=(0,))[0].answer == "abab"
    by_file = load_task(f"{own}.py:Echo", {"word": "ab", "times": 3})
    assert by_file.draw(1, seed=(0,))[0].answer == "ababab"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arithmetics", {}, "there is no task 'arithmetics'; did you mean 'arithmetic'"),
        ("chess", {}, f"there is no task 'chess'.*known: {', '.join(TASKS)}"),
        ("arithmetic", {"levle": 2}, "no option 'levle'; did you mean 'level'.*options: level, chat"),
        ("arithmetic", {"zzz": 2}, r"no option 'zzz' \(options: level, chat\)"),
        ("arithmetic", {"level": "2"}, r"option 'level' is '2' \(str\), must be int"),
        ("arithmetic", {"level": True}, r"option 'level' is True \(bool\), must be int"),
        ("arithmetic", {"level": 2.0}, r"option 'level' is 2.0 \(float\), must be int"),
        ("arithmetic", {"chat": 1}, r"option 'chat' is 1 \(int\), must be bool"),
        ("arithmetic", {"level": 9}, "level is 9, must be between 1 and 5"),
        ("rows", {}, "task rows needs the option 'path'"),
        ("rows", {"path": "x.jsonl", "held_out_share": "a"}, "must be float"),
        ("no_such_module:Echo", {}, "importing no_such_module failed: ModuleNotFoundError"),
        ("no_such_file.py:Echo", {}, "there is no file no_such_file.py"),
        (":Echo", {}, "must look like module:name"),
        ("json:", {}, "must look like module:name"),
        ("OWN:Ecko", {}, "has no 'Ecko'; did you mean 'Echo'"),
        ("OWN:value", {}, "must name a class, not a int"),
        ("OWN:NoTask", {}, "is not a task: it needs name, draw"),
        ("OWN:Echo", {}, "needs the option 'word'"),
        ("OWN:Echo", {"word": "a", "times": 10}, r"refuses its options: \S+:8 in __init__: ValueError: too many times"),
        ("OWN:Echo", {"word": "a", "times": "10"}, "must be int"),
        ("OWN_broken:Echo", {}, r"failed: \S+\.py:1 in <module>: ZeroDivisionError: division by zero"),
        ("OWN_broken.py:Echo", {}, r"failed: \S+\.py:1 in <module>: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(own: str, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_task(name.replace("OWN", own), options)
    assert "\n" not in str(caught.value)


def test_the_package_imports_no_torch() -> None:
    folder = Path(whet.tasks.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__", "shingles"}  # which computes with numpy
    modules = ["whet.tasks", "whet.tasks.selection.mixture", *(f"whet.tasks.{name}" for name in sorted(names))]
    assert len(modules) == 13
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
