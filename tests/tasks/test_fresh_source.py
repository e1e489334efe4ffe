"""A user's code is what its file says now, whatever bytecode lies beside it."""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path

import pytest

from whet.imports import load_named
from whet.records import Example
from whet.tasks.grading.graders import make_grader

OLD, NEW = "def f(completions): return [1.0]\n", "def f(completions): return [2.0]\n"


def edited(path: Path) -> None:
    """A file that was run, and then edited within the second and without a change of its size."""
    path.write_text(OLD)
    os.utime(path, (1e9, 1e9))
    py_compile.compile(str(path), doraise=True)
    path.write_text(NEW)
    os.utime(path, (1e9, 1e9))


def test_a_file_is_compiled_from_its_source(tmp_path: Path) -> None:
    edited(tmp_path / "rewards.py")
    kept = {path: path.read_bytes() for path in (tmp_path / "__pycache__").iterdir()}
    grader = make_grader("arithmetic", {}, [(f"{tmp_path / 'rewards.py'}:f", 1.0)], 20.0)
    assert grader.grade([Example(id="e", prompt="p", answer="a")], ["a"])[0].reward == 2.0
    grader.close()
    assert {path: path.read_bytes() for path in (tmp_path / "__pycache__").iterdir()} == kept


@pytest.mark.parametrize("name", ["fresh_module", "fresh_package.inner"])
def test_so_is_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    edited(path)
    before = list(sys.meta_path)
    found = load_named(f"{name}:f", "reward function")
    assert callable(found)
    assert found([]) == [2.0]
    assert sys.meta_path == before
    assert sys.modules[name].__file__ == str(path)
    assert load_named(f"{name}:f", "reward function") is found
