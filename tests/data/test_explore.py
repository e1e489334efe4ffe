"""The facts of a survey, on rows small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

from tests.data.written import assistant, user, write_lines
from whet.data.explore import Survey, explore
from whet.data.sources import Source, load_rows

PAIRS = [
    {"prompt": "one two", "chosen": "a b c", "rejected": "a", "margin": 2},
    {"prompt": "one two", "chosen": "a", "rejected": "a b c d", "margin": 1},
    {"prompt": [user("x y z"), assistant("said"), user("q")], "chosen": "k", "rejected": "l"},
    {"prompt": "one two", "chosen": "same", "rejected": "same"},
]


def surveyed(path: Path, rows: list, samples: int = 3) -> Survey:
    return explore(load_rows(Source(path=str(write_lines(path / "a.jsonl", rows)))), samples)


def test_pairs_by_hand(tmp_path: Path) -> None:
    survey = surveyed(tmp_path, PAIRS)
    assert (survey.loaded.kind, survey.loaded.read, len(survey.loaded.rows), dict(survey.loaded.skipped)) == (
        "pairs",
        4,
        3,
        {"tie": 1},
    )
    assert (survey.prompts, survey.openings) == (2, 2)
    assert dict(survey.turns) == {2: 2, 4: 1}
    assert survey.lengths["prompt"].words == (2, 2, 5)  # without the names of the speakers
    assert survey.lengths["prompt"].characters == (7, 7, 12)
    assert survey.lengths["chosen"].words == (3, 1, 1)
    assert survey.lengths["rejected"].words == (1, 4, 1)
    assert survey.differences == (2, -3, 0)
    assert survey.margins == (2.0, 1.0)
    assert survey.balance == {}


def test_verdicts_are_counted(tmp_path: Path) -> None:
    labelled = [{"prompt": f"p{i}", "completion": "c", "label": i < 3} for i in range(4)]
    assert surveyed(tmp_path, labelled).balance == {"liked": 3, "not liked": 1}
    outcomes = [{"prompt": "p", "completions": ["a", "b b", "c"], "correct": [True, False, False]}]
    survey = surveyed(tmp_path, outcomes)
    assert survey.balance == {"right": 1, "wrong": 2}
    assert survey.lengths["wrong"].words == (2, 1)
    traces = [{"prompt": "p", "completions": ["a", "b", "c"], "labels": [1, 0, -1]}]
    assert surveyed(tmp_path, traces).balance == {"good step": 1, "neutral step": 1, "bad step": 1}


def test_near_duplicates_are_counted_though_they_are_kept(tmp_path: Path) -> None:
    text = " ".join(f"w{i}" for i in range(60))
    survey = surveyed(tmp_path, [{"prompt": "p", "completion": said} for said in (text, text + " x", "else")])
    assert (len(survey.loaded.rows), survey.near_duplicates) == (3, 1)


def test_samples_are_the_same_whatever_the_order(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "chosen": f"c{i}", "rejected": f"r{i}"} for i in range(40)]
    one, other = surveyed(tmp_path, rows), surveyed(tmp_path, rows[::-1])
    assert [sample.prompt for sample in one.samples] == [sample.prompt for sample in other.samples]
    assert len({sample.prompt for sample in one.samples}) == 3
    number = one.samples[0].prompt[1:]
    assert one.samples[0].answers == (("chosen", f"c{number}"), ("rejected", f"r{number}"))
