"""Every known-bad reward is caught, with the finding that says what is wrong; sound ones pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.bench import known_bad
from tests.tasks.puzzles.test_connections import PUZZLES
from whet.tasks.bench import Report, check_reward

FILE = Path(known_bad.__file__)


def names(report: Report) -> set[str]:
    return {finding.check for finding in report.failed}


def check(reward: str | Callable[..., Any], **more: Any) -> Report:
    return check_reward(reward, {"level": 2}, task="arithmetic", examples=8, **more)


@pytest.mark.parametrize(
    ("function", "caught"),
    [
        ("substring", {"list", "embedded", "contradiction", "hedge"}),
        ("any_word", {"list", "contradiction", "hedge"}),
        ("length", {"format", "repeat", "long text", "long and gold"}),
        ("evaluated", {"code"}),
        ("first_number", {"contradiction"}),
        ("prefix", {"empty", "truncated"}),
        ("counted", {"repeat"}),
        ("prompt_words", {"echo", "gold"}),
        ("form_only", {"format", "other answers"}),
        ("drawn", {"determinism"}),
        ("by_place", {"order"}),
        ("by_batch", {"batch"}),
        ("crashing", {"crash"}),
        ("mutating", {"arguments"}),
        ("undefined", {"range"}),
        ("gigantic", {"range"}),
        ("spelled", {"type"}),
        ("nearly", {"no answer"}),
        ("polite", {"no answer"}),
        ("wordy", {"long reasoning"}),
        ("flat", {"constant"}),
        ("unreachable", {"gold"}),
    ],
)
def test_a_bad_reward_is_caught_and_named(function: str, caught: set[str]) -> None:
    report = check(getattr(known_bad, function))  # an object: graded in this process
    assert caught <= names(report), report
    assert report.verdict.startswith("failed (")
    assert all(finding.fix for finding in report.failed)


@pytest.mark.parametrize(
    ("function", "caught", "sentence"),
    [
        ("remembered", "determinism", "remembers earlier calls"),
        ("hashed", "process", "another process gives another score"),
        ("mutating", "arguments", "changes its arguments"),
    ],
)
def test_a_bad_reward_is_caught_in_other_processes(function: str, caught: str, sentence: str) -> None:
    report = check(f"{FILE}:{function}")
    (finding,) = report.failed
    assert finding.check == caught
    assert sentence in finding.sentence


def test_a_reward_that_hangs_is_stopped() -> None:
    found = {finding.check: finding.sentence for finding in check(f"{FILE}:hanging", seconds=2.0).failed}
    assert "took longer than 2 s and was stopped" in found["hang"]


@pytest.mark.parametrize("function", ["first_number", "drawn", "crashing", "mutating", "undefined", "by_batch"])
def test_one_fault_is_one_finding(function: str) -> None:
    assert len(check(getattr(known_bad, function)).failed) == 1


def test_a_finding_shows_the_completion_that_scores() -> None:
    (finding,) = check(known_bad.first_number).failed
    right, wrong = finding.completion.split("\n\n")
    left, _, added = finding.example.removeprefix("arithmetic:").partition("+")
    assert int(right) == int(left) + int(added) != int(wrong)
    assert finding.score == finding.gold == 1
    assert "100% of the examples" in finding.sentence


def test_a_sound_reward_passes_here_and_in_other_processes() -> None:
    here, there = check(known_bad.sound), check(f"{FILE}:sound")
    assert here.is_passed
    assert there.is_passed, there.failed
    assert (here.gold_mean, here.wrong_most) == (there.gold_mean, there.wrong_most) == (1.0, 0.0)
    assert "another process" in next(one.sentence for one in there.findings if one.check == "determinism")


def test_a_report_is_determined_by_the_seed() -> None:
    one, same, other = (check(known_bad.substring, seed=seed) for seed in (3, 3, 4))
    assert one.findings == same.findings
    assert one.findings != other.findings


def test_the_form_of_right_answers_can_be_named() -> None:
    assert check(known_bad.unreachable, gold="The result: [{answer}]").is_passed


@pytest.mark.parametrize("options", [{}, {"chat": True}], ids=str)
def test_the_old_hanoi_reward_is_caught(options: dict[str, Any]) -> None:
    report = check_reward(known_bad.OldHanoi(**options), examples=8)
    (found,) = [finding for finding in report.failed if finding.check == "legal play"]
    assert found.score is not None
    assert found.score > 1 == found.gold  # legal moves that lead nowhere score above the solution
    assert "solutions only" in found.fix


def test_the_old_connections_reward_is_caught(tmp_path: Path) -> None:
    (tmp_path / "puzzles.json").write_text(json.dumps(PUZZLES))
    report = check_reward(f"{FILE}:OldConnections", {"path": str(tmp_path / "puzzles.json")}, examples=8)
    (found,) = [finding for finding in report.failed if finding.check == "legal play"]
    assert found.completion.count(",") == 3  # one group by itself
    assert found.score == found.gold == 1


def test_a_leak_that_differs_in_case_is_caught(tmp_path: Path) -> None:
    rows = [{"prompt": f"how many are {n} and {n}?", "answer": str(2 * n)} for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = check_reward(known_bad.Leaky(path=str(tmp_path / "rows.jsonl")))
    (found,) = report.failed
    assert found.check == "leak"
    assert "2 of" in found.sentence
    assert "but for case and spaces" in found.sentence
