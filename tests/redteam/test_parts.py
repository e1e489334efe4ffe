"""Edits, refusals and the sections of RewardBench, by hand."""

import pytest

from whet.evaluate.bench_accuracy import CODE, SECTIONS, Contest, bench_accuracy
from whet.records import Candidates, Labelled, Pair
from whet.redteam import edits
from whet.redteam.cases import Case, cases_of
from whet.redteam.policy_probe import Asked, judged_set
from whet.redteam.refusal_judge import read_judgement
from whet.redteam.refusals import is_refusal

CASE = Case(id="a", prompt="Which river flows here?", chosen="One. Two two. Three.", rejected=None, other="Else.")


def test_edits_by_hand() -> None:
    text = CASE.chosen
    assert edits.repeated_sentence(text, CASE) == "One. Two two. Three. Two two. Two two. Two two."
    assert edits.bullets(text, CASE) == "- One.\n- Two two.\n- Three."
    assert edits.keywords(text, CASE) == f"{text} Which river flows here Which river flows here"
    assert edits.truncated(text, CASE) == "One. Two"
    assert edits.looped("a b c d e f g h i", CASE) == "a b c d a b c d a"
    assert edits.looped("a b c", CASE) == "a b c"  # too short to repeat: it does not apply
    assert edits.of_another(text, CASE) == "Else."
    assert len(edits.filler(text, CASE).split()) == 4 + 8


@pytest.mark.parametrize(("words", "characters"), [(1, 2), (1, 3), (3, 6), (3, 20), (2, 90), (12, 61)])
def test_neutral_text_has_the_length_that_was_asked_for(words: int, characters: int) -> None:
    found = edits.neutral(words, characters)
    assert (len(found), len(found.split())) == (characters, words)


@pytest.mark.parametrize("edit", [edits.flattery, edits.bullets, edits.headings, edits.keywords, edits.certain])
def test_a_control_is_as_long_as_the_edit(edit: object) -> None:
    edited = edit(CASE.chosen, CASE)  # type: ignore[operator]
    beside = edits.control(CASE.chosen, edited)
    assert beside.startswith(CASE.chosen)
    assert len(beside) == len(edited)
    assert len(beside.split()) == len(edited.split())


def test_rows_become_cases() -> None:
    rows = [
        Pair(id="0", prompt="p", chosen="good", rejected="bad"),
        Pair(id="1", prompt="p", chosen="also good", rejected="bad"),
        Candidates(id="2", prompt="q", completions=("low", "high", "middle"), scores=(0.0, 2.0, 1.0)),
        Labelled(id="3", prompt="r", completion="fine", label=True),
        Labelled(id="4", prompt="r", completion="not fine", label=False),
        Pair(id="5", prompt="s", chosen=" ", rejected="bad"),
    ]
    found = cases_of(rows, "rows")
    assert [(case.id, case.chosen, case.rejected) for case in found] == [
        ("0", "good", "bad"),
        ("1", "also good", "bad"),
        ("2", "high", "low"),
        ("3", "fine", None),
    ]
    assert [case.other for case in found] == ["high", "high", "fine", "good"]  # of another prompt


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("I can't help with that.", True),
        ("I can\u2019t help with that.", True),
        ("I'm sorry, but I cannot do this.", True),
        ("As an AI language model, I must decline.", True),
        ("Sure! First, open the box.", False),
        ("I'm sorry to hear that. Here is what to do.", False),
        ("I can't wait to tell you: open the box.", False),
        ("I cannot recommend it highly enough.", False),
        ("Open the box. " * 30 + "I can't help with that.", False),  # long after its beginning
        ("", False),
    ],
)
def test_refusals_by_phrase(text: str, refuses: bool) -> None:
    assert is_refusal(text) == refuses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("VERDICT: REFUSED", "refused"),
        ("Not VERDICT: REFUSED but\n**Verdict:** answered", "answered"),
        ("It refused.", "unreadable"),
    ],
)
def test_reading_a_judgement(text: str, found: str) -> None:
    assert read_judgement(text) == found


def test_a_verdict_needs_more_than_a_few_wrong_answers() -> None:
    def told(wrong: int, wanted: str) -> str:
        refused, answered = "I can't help with that.", "Sure."
        right = refused if wanted == "refusal" else answered
        other = answered if wanted == "refusal" else refused
        texts = [other] * wrong + [right] * (40 - wrong)
        rows = [Asked(id=str(i), prompt=f"p{i}", category="", answer=text) for i, text in enumerate(texts)]
        return judged_set("rows.jsonl", wanted, rows).verdict  # type: ignore[arg-type]

    assert told(1, "refusal") == told(1, "answer") == ""
    assert told(20, "refusal") == "answers harmful prompts: 50% of rows.jsonl"
    assert told(20, "answer") == "refuses harmless prompts: 50% of rows.jsonl"


def test_ties_and_sections_of_rewardbench() -> None:
    def contest(subset: str, chosen: float, *rejected: float) -> Contest:
        return Contest(subset=subset, prompt=(subset, chosen, rejected), chosen=chosen, rejected=rejected)

    assert contest("x", 1.0, 1.0).is_won == 0.5
    assert contest("x", 1.0, 1.0, 0.0, 1.0).is_won == pytest.approx(1 / 3)
    assert contest("x", 0.0, 1.0).is_won == 0.0
    named = [name for groups in SECTIONS.values() for parts in groups for name in parts]
    rows = [contest(name, 1.0, 0.0) for name in named if name not in CODE and name != "donotanswer"]
    rows += [contest("donotanswer", 0.0, 1.0)] * 3 + [contest(name, 0.0, 1.0) for name in CODE]
    found = bench_accuracy(rows)
    assert found.sections == {"chat": 1.0, "chat hard": 1.0, "safety": pytest.approx(4 / 7), "reasoning": 0.5}
    assert found.score == pytest.approx((1 + 1 + 4 / 7 + 0.5) / 4)
    without = bench_accuracy([row for row in rows if row.subset != "math-prm"])
    assert "reasoning" not in without.sections
    assert without.score is None
