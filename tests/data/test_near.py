"""Near duplicates against a brute-force oracle, and in linear time."""

from __future__ import annotations

import random
import time

import pytest

from tests.data.written import write_lines
from whet.data.similarity import SIMILAR, near_duplicates
from whet.data.sources import Source, load_rows
from whet.records import Dialogue, Labelled, Message, Pair

WORDS = [f"w{i}" for i in range(2000)]


def dialogue(i: int, asked: str, said: str) -> Dialogue:
    return Dialogue(id=str(i), prompt=(Message(role="user", content=asked),), completion=said)


def shingles(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))}


def jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other)


def altered(text: str, count: int, draw: random.Random) -> str:
    words = text.split()
    for place in draw.sample(range(len(words)), count):
        words[place] = "new"
    return " ".join(words)


def test_they_are_those_that_the_jaccard_index_says() -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=200)) for _ in range(60)]
    texts += [altered(draw.choice(texts), draw.choice([0, 1, 2, 6, 12]), draw) for _ in range(140)]
    rows = [dialogue(i, "the same question for all of them", text) for i, text in enumerate(texts)]
    found = list(near_duplicates(rows))
    kept: list[int] = []
    sets = [shingles(text) for text in texts]
    for number in range(len(texts)):
        expected = [other for other in kept if jaccard(sets[number], sets[other]) >= SIMILAR]
        assert (found[number] in expected) if expected else found[number] is None
        if not expected:
            kept.append(number)
    assert 80 < len(kept) < 170  # both sorts are there


def test_prompt_and_answers_are_compared_apart() -> None:
    long, other = " ".join(WORDS[:300]), " ".join(WORDS[300:600])
    said = "yes that is what I would do here"
    rows = [dialogue(0, long, said), dialogue(1, long, "no do not do that at all please"), dialogue(2, other, said)]
    assert list(near_duplicates(rows)) == [None, None, None]
    assert list(near_duplicates([rows[0], dialogue(1, long.upper(), said + "!")])) == [None, 0]


def test_swapped_sides_and_other_labels_are_no_repetitions() -> None:
    a, b = " ".join(WORDS[:50]), " ".join(WORDS[50:100])
    pairs = [Pair(id="0", prompt="q", chosen=a, rejected=b), Pair(id="1", prompt="q", chosen=b, rejected=a)]
    assert list(near_duplicates(pairs)) == [None, None]
    labelled = [Labelled(id=str(i), prompt="q", completion=a, label=bool(i % 2)) for i in range(3)]
    assert list(near_duplicates(labelled)) == [None, None, 0]


def test_a_thousand_copies_cost_as_much_as_a_thousand_others() -> None:
    text = " ".join(WORDS[:150])
    copies = [dialogue(i, "q", text) for i in range(1000)]
    began = time.perf_counter()
    assert list(near_duplicates(copies)) == [None] + [0] * 999
    assert time.perf_counter() - began < 10


def test_they_are_dropped_where_the_source_says_so(tmp_path) -> None:
    text = " ".join(WORDS[:100])
    rows = [{"prompt": "q", "completion": said} for said in (text, text + " and one more", "something else")]
    path = str(write_lines(tmp_path / "a.jsonl", rows))
    assert len(load_rows(Source(path=path)).rows) == 3
    loaded = load_rows(Source(path=path, near_duplicates="drop"))
    assert [row.id for row in loaded.rows] == ["row-1", "row-3"]
    assert loaded.skipped_at["near duplicate"] == (f"{path}:2 nearly repeats {path}:1",)


@pytest.mark.parametrize("text", ["", "one", "?!", "one two three four five"])
def test_short_texts_are_compared_whole(text: str) -> None:
    assert list(near_duplicates([dialogue(0, "q", text), dialogue(1, "q", text)])) == [None, 0]
    assert list(near_duplicates([dialogue(0, "q", text), dialogue(1, "q", text + " other")])) == [None, None]
