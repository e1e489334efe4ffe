"""Whatever a learner's file does, the examination ends in a sentence."""

from pathlib import Path

import pytest

from whet.learn import examination
from whet.learn.catalogue import find
from whet.learn.examination import Verdict, examine

SOLUTION = Path(__file__).with_name("solutions") / "pair_reward.py"


@pytest.fixture(scope="module", autouse=True)
def one_process():
    yield
    examination._EXAMINER.close()


def verdict(folder: Path, text: str) -> Verdict:
    file = folder / "answer.py"
    file.write_text(text, "utf-8")
    return examine(find("pair-reward"), file)


def sentence(folder: Path, text: str) -> str:
    remark = verdict(folder, text).remark
    assert remark is not None
    return remark.sentence


def test_a_right_file_is_solved_and_its_prints_are_shown(tmp_path: Path) -> None:
    found = verdict(tmp_path, "print('hello')\n" + SOLUTION.read_text("utf-8"))
    assert (found.remark, found.passed, found.printed) == (None, 3, "hello\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "line 1 is not Python"),
        ("exit()", "`exit`"),
        ("import os\nos._exit(3)", "ended with status 3"),
        ("import os\nos.kill(os.getpid(), 11)", "SIGSEGV"),
        ("1 / 0", "answer.py:1 in <module>: ZeroDivisionError"),
        ("input()", "EOFError"),
        ("x = 1", "defines no function `win_probability`"),
        ("def win_probability(a, b): return a", "unexpected keyword argument 'chosen'"),
        ("def win_probability(chosen, rejected):\n    chosen += 1\n    return chosen", "changes its arguments"),
        ("def win_probability(chosen, rejected): pass", "returns None"),
        ("def win_probability(chosen, rejected): return 'yes'", "not numbers"),
        ("def win_probability(chosen, rejected): return chosen[:, None]", "returns the shape (1, 1)"),
        ("def win_probability(chosen, rejected): return chosen / 0", "nan or inf"),
        ("def win_probability(chosen, rejected): return win_probability(chosen, rejected)", "RecursionError"),
        ("import torch\ndef win_probability(chosen, rejected): return torch.zeros(10**13)", "raises an error"),
    ],
)
def test_what_goes_wrong_is_said(tmp_path: Path, text: str, words: str) -> None:
    assert words in sentence(tmp_path, text)


def test_a_loop_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "SECONDS", 0.5)
    assert "does not come to an end within 0.5 s" in sentence(tmp_path, "while True: pass")
    monkeypatch.undo()
    assert verdict(tmp_path, SOLUTION.read_text("utf-8")).remark is None  # a new process


def test_a_file_that_sleeps_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict(tmp_path, "x = 1")  # the process is there
    monkeypatch.setattr("whet.limited_process.WAIT_SECONDS", 1.0)
    assert "waits for something" in sentence(tmp_path, "import time\ntime.sleep(600)")
