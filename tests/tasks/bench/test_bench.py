"""What the bench does beside the known-bad rewards: objects, rows without answers, abstaining, open-ended tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.real import real
from tests.tasks.bench.known_bad import is_right, sound, texts_of
from whet.data.rows_task import RowsTask
from whet.errors import UserError
from whet.records import Example, Score
from whet.tasks.bench import Report, check_reward
from whet.tasks.bench.attack_texts import Target, contradicted, embedded, hedged, hollow, listed, truncated
from whet.tasks.bench.attacks import ATTACKS
from whet.tasks.bench.leaks import leaks
from whet.tasks.bench.probing import _kind
from whet.tasks.bench.subjects import subject_of
from whet.tasks.procedural import Arithmetic


def outcome(report: Report, check: str) -> str:
    return next(finding.outcome for finding in report.findings if finding.check == check)


def written(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


TARGET = Target(
    example=Example(id="x", prompt="What is 6*7? Answer as <result>N</result>.", answer="42"),
    answer="42",
    gold="<result>42</result>",
    reward=1.0,
    forms=("<result>{answer}</result>",),
    others=("7", "8", "9"),
    wrong=("7",),
    plays=(),
)


def test_attacks_are_made_of_the_form_of_an_answer() -> None:
    assert contradicted(TARGET) == ["<result>42</result>\n\n<result>7</result>"]
    assert hedged(TARGET) == ["<result>42 or 7</result>", "<result>7 or 42</result>"]
    assert listed(TARGET)[:2] == ["8, 42, 9, 7", "<result>8, 42, 9, 7</result>"]  # a wrong one is last
    assert embedded(TARGET) == ["<result>734291</result>", "<result>4291</result>"]
    assert truncated(TARGET) == ["<result>4</result>"]
    assert {"<result></result>", "<result>asdf</result>", "\\boxed{}", "#### asdf"} <= set(hollow(TARGET))
    assert not any("42" in text for text in hollow(TARGET))


def test_a_function_may_want_the_final_answer_of_a_solution(tmp_path: Path) -> None:
    """As rows of GSM8K have it: the answer is a text that ends with #### and a number, and a box is asked for."""
    rows = [
        {"prompt": f"{n} and {3 * n} of item {n}?", "answer": f"They are {4 * n}.\n#### {4 * n}"} for n in range(40)
    ]

    def boxed(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        wanted = [f"\\boxed{{{text.rpartition('#### ')[2]}}}" for text in answer]
        return [float(text.strip() == box) for text, box in zip(texts_of(completions), wanted, strict=True)]

    report = check_reward(boxed, {"path": written(tmp_path, rows)}, task="rows", examples=6)
    assert report.is_passed, report.failed
    assert report.gold_mean == 1


def test_the_tags_of_a_prompt_are_tried_as_forms(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {n}+1? Answer as <result>N</result>.", "answer": str(n + 1)} for n in range(40)]

    def tagged(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        return [float(f"<result>{a}</result>" == t) for t, a in zip(texts_of(completions), answer, strict=True)]

    report = check_reward(tagged, {"path": written(tmp_path, rows)}, task="rows", examples=6)
    assert report.is_passed, report.failed
    assert "in the form '<result>{answer}</result>'" in next(f.sentence for f in report.findings if f.check == "gold")


def test_an_abstaining_and_an_asynchronous_function() -> None:
    async def graded(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
        pairs = zip(texts_of(completions), answer, strict=True)
        return [None if not text.strip() else is_right(text, right) for text, right in pairs]

    report = check_reward(graded, task=Arithmetic(), examples=4)
    assert report.is_passed, report.failed
    assert outcome(report, "empty") == "note"  # no score, so nothing to compare


def test_rows_without_answers_are_checked_for_behaviour_alone(tmp_path: Path) -> None:
    rows = [{"prompt": f"Write about the number {n}.", "answer": ""} for n in range(40)]
    options = {"path": written(tmp_path, rows)}

    def brief(completions: list[Any], **_: Any) -> list[float]:
        return [1.0 / (1 + len(text)) for text in texts_of(completions)]

    report = check_reward(brief, options, task="rows", examples=4)
    assert report.is_passed, report.failed
    assert "without right answers" in report.verdict

    def fragile(completions: list[Any], **_: Any) -> list[float]:
        return [1.0 / len(text) for text in texts_of(completions)]

    assert [finding.check for finding in check_reward(fragile, options, task="rows", examples=4).failed] == ["crash"]


@dataclass(frozen=True, kw_only=True)
class Mentions(RowsTask):
    """Any text that mentions the answer is right: a constraint, not a final answer."""

    is_open_ended: bool = True

    def correct(self, example: Example, text: str) -> bool:
        return example.answer in text.split()


def test_an_open_ended_task_is_spared_attacks_on_the_final_answer(tmp_path: Path) -> None:
    rows = [{"prompt": f"Write a sentence with word number {n}.", "answer": f"word{n}"} for n in range(40)]
    path = written(tmp_path, rows)
    assert check_reward(Mentions(path=path), examples=6).is_passed
    strict = check_reward(Mentions(path=path, is_open_ended=False), examples=6)
    assert {"list", "contradiction"} <= {finding.check for finding in strict.failed}
    assert check_reward(Mentions(path=path, is_open_ended=False), examples=6, open_ended=True).is_passed


@dataclass(frozen=True, kw_only=True)
class Scribbling(Arithmetic):
    """Writes into the columns of its examples."""

    def score(self, example: Example, text: str) -> Score:
        example.columns["seen"] = True  # type: ignore[index]
        return super().score(example, text)


def test_a_task_that_changes_its_examples_is_caught() -> None:
    assert "arguments" in {finding.check for finding in check_reward(Scribbling(), examples=4).failed}


def test_a_broken_contract_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n"
        "from whet.tasks.procedural import Arithmetic\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Leaky(Arithmetic):\n"
        "    def held_out(self, count):\n        return self.draw(count, seed=(0,))\n"
    )
    report = check_reward(f"{tmp_path / 'own.py'}:Leaky", {"level": 2}, examples=4)
    found = {finding.check: finding.sentence for finding in report.failed}
    assert found["contract"].startswith("the held-out example arithmetic:")
    assert "share an id with a training example" in found["leak"]


@pytest.mark.parametrize("method", ["draw", "held_out", "wrong_play"])
def test_a_task_that_raises_is_one_sentence(method: str) -> None:
    def fails(*_: Any, **__: Any) -> list[Any]:
        raise ValueError("bad thing")

    task = Arithmetic(level=2)
    object.__setattr__(task, method, fails)
    with pytest.raises(UserError, match=f"^{method} raises ValueError: bad thing$"):
        check_reward(task, examples=4)


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=10))
def test_attacks_are_made_of_any_answer(answer: str, wrong: str) -> None:
    example = Example(id="x", prompt="p", answer=answer)
    target = replace(TARGET, example=example, answer=answer, gold=answer, forms=("{answer}",), wrong=(wrong,))
    for attack in ATTACKS:
        assert all(isinstance(text, str) for text in attack.texts(target))
    assert not any(answer in text for text in hollow(target))
    assert all(text.endswith(wrong) for text in (*contradicted(target), *listed(target)))
    assert not any(text == answer for text in (*truncated(target), *embedded(target)))


def test_near_duplicates_across_the_split_are_a_leak() -> None:
    words = [f"word{n} has thing{n} beside part{n} under lid{n} behind door{n} above" for n in range(30)]
    rows = [Example(id=str(n), prompt=f"In {text} how many are there?", answer=str(n)) for n, text in enumerate(words)]

    class Task(Arithmetic):
        def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
            return rows[:20]

        def held_out(self, count: int) -> list[Example]:
            return [*rows[20:], replace(rows[3], id="again", prompt=f"{rows[3].prompt} Tell me.")][:count]

    (found,) = leaks(Task(), seed=0)
    assert "1 of 11 held-out examples nearly repeat a training example with the same answer, e.g. again and 3" in (
        found.sentence
    )
    assert leaks(Arithmetic(level=2, chat=True), seed=0)[0].outcome == "passed"  # a template is no duplicate


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("reward function f took longer than 10 s and was stopped: see reward.time_limit_seconds", "hang"),
        ("reward function f gave nan for row 3", "range"),
        ("reward function f gave 1e+300 for row 3, beyond ±1e+15, where training overflows: scale it down", "range"),
        ("the score of task x gave reward = inf for row 0", "range"),
        ("reward function f gave a str for row 1, not a number or None", "type"),
        ("reward function f gave 3 rewards for 4 completions", "type"),
        ("reward function f gave a dict, not a list of numbers", "type"),
        ("reward function f failed at x.py:3 in f: ValueError: nan", "crash"),
    ],
)
def test_failures_are_told_apart(message: str, kind: str) -> None:
    assert _kind(message) == kind


def test_a_task_that_is_an_object_of_a_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("from whet.tasks.procedural import Sorting\n\ntask = Sorting(level=2)\n")
    subject = subject_of(f"{tmp_path / 'made.py'}:task")
    assert subject.is_here
    assert subject.task.draw(1, seed=(0, 1))[0].columns["level"] == 2


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(UserError, match="two are needed"):
        check_reward("sorting", examples=1)


@pytest.mark.parametrize(
    ("name", "columns", "match"),
    [
        ("gsm8k/test.jsonl.gz", {"prompt": "question"}, "number"),
        ("math500/test.jsonl.gz", {"prompt": "problem", "answer": "solution"}, "boxed"),
    ],
)
def test_published_rows_pass(name: str, columns: dict[str, str], match: str) -> None:
    report = check_reward(RowsTask(path=real(name), columns=columns, match=match), examples=12)
    assert report.is_passed, report.failed


def test_the_function_that_is_checked_sees_the_columns_of_its_rows() -> None:
    levels = []

    def noted(completions: list[Any], answer: list[str], level: list[int], **_: Any) -> list[float]:
        levels.extend(level)
        return sound(completions, answer)

    assert check_reward(noted, {"level": 3}, task="arithmetic", examples=4).is_passed
    assert set(levels) == {3}
