"""Rows that give each other away are named alike: against brute force, in any order, and on the real files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.real import real
from tests.data.written import write_lines
from whet.data.formats import Record
from whet.data.similarity import assign_twins
from whet.data.sources import Source, load_rows
from whet.data.split import opening, split_rows
from whet.records import Labelled, Message, Outcomes, Pair, Trace

STEP = "we subtract the first from the second one"  # 41 characters


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"w{draw.randrange(10**6)}" for _ in range(count)]


def pair(number: int, prompt: Any, **more: Any) -> Pair:
    return Pair(id=str(number), prompt=prompt, chosen=f"a{number}", rejected=f"b{number}", **more)


def trace(number: int, prompt: str, *steps: str) -> Trace:
    return Trace(id=str(number), prompt=prompt, steps=steps, labels=(1,) * len(steps))


def strangers(count: int = 60) -> list[Pair]:
    return [pair(1000 + i, " ".join(words(12, 1000 + i))) for i in range(count)]


def together(*rows: Record) -> bool:
    """Whether these rows, among many others, have one name, and none of the others has a name."""
    found, is_parted = assign_twins([*rows, *strangers()])
    assert not any(row.twin for row in found[len(rows) :])
    assert not is_parted
    return len({row.twin or row.id for row in found[: len(rows)]}) == 1


def test_one_changed_word_of_twenty_is_the_same_problem_and_two_are_another() -> None:
    asked = words(20, 0)  # 16 runs of five words; a change in the middle spoils 5 of them
    once = [*asked[:9], "changed", *asked[10:]]
    twice = [*once[:14], "too", *once[15:]]
    assert together(pair(0, " ".join(asked)), pair(1, " ".join(once)))  # 11 of 21 runs are shared
    assert not together(pair(0, " ".join(asked)), pair(1, " ".join(twice)))  # 6 of 26


def test_capitals_punctuation_and_the_kind_of_prompt_do_not_matter() -> None:
    asked = " ".join(words(9, 0))
    message = (Message(role="system", content="be kind"), Message(role="user", content=f"{asked.upper()}?!"))
    label = Labelled(id="1", prompt=message, completion="x", label=True)
    assert together(pair(0, asked), label, Outcomes(id="2", prompt=asked, completions=("y",), correct=(True,)))


def test_short_prompts_are_the_same_only_word_for_word() -> None:
    assert not together(pair(0, "3 + 5 ="), pair(1, "3 - 5 ="))
    assert assign_twins([pair(0, "a b c d"), pair(1, "a b c d"), pair(2, "x")])[0][0].twin == ""  # identical prompts


def test_a_long_step_in_common_joins_two_traces() -> None:
    one, other = (" ".join(words(12, seed)) for seed in (0, 1))
    assert len(STEP) == 41
    assert together(trace(0, one, "a", f"2. {STEP}"), trace(1, other, f"Step 11:  {STEP.capitalize()}\n", "b"))
    assert not together(trace(0, one, STEP[2:]), trace(1, other, STEP[2:]))  # 39 characters
    assert not together(pair(0, one), pair(1, other), trace(2, STEP, STEP))


def test_words_of_a_template_are_no_likeness() -> None:
    """Thirty prompts of one form are thirty prompts, which is told; five that agree in a form of their own are not."""
    form, question = " ".join(words(60, 0)), [" ".join(words(8, 100 + i)) for i in range(100)]
    many = [pair(i, f"{form} {question[i]}") for i in range(30)]
    few = [pair(i, f"{' '.join(words(60, 1))} {question[i]}") for i in range(30, 35)]
    said = [trace(i, question[i], STEP) for i in range(40, 65)]
    found, is_parted = assign_twins([*many, *few, *said, *strangers(100)])
    assert is_parted  # 56 of 72 runs are shared, by too many
    assert not assign_twins([*few, *said, *strangers(100)])[1]
    assert {row.twin for row in found[:30]} == {""}
    assert len({row.twin for row in found[30:35]}) == 1
    assert found[30].twin
    assert {row.twin for row in found[35:]} == {""}


def test_a_form_that_is_the_lesser_part_of_prompts_parts_nothing() -> None:
    form = " ".join(words(12, 0))
    rows = [pair(i, f"{form} {' '.join(words(20, 100 + i))}") for i in range(30)]  # 8 of 48 runs
    found, is_parted = assign_twins([*rows, *strangers()])
    assert not any(row.twin for row in found)
    assert not is_parted


def copies(count: int, length: int, seed: int, *, last: bool = False) -> list[Pair]:
    """One prompt again and again, each time with another word changed: the last one, or any."""
    asked, draw = words(length, seed), random.Random(seed)
    texts = []
    for i in range(count):
        place = length - 1 if last else draw.randrange(length)
        texts.append(" ".join([*asked[:place], f"changed{i}", *asked[place + 1 :]]))
    return [pair(1000 * seed + i, text) for i, text in enumerate(texts)]


def test_long_prompts_that_share_nearly_everything_are_one_however_many_they_are() -> None:
    for many in (copies(25, 30, 7, last=True), copies(29, 100, 7)):  # 25 of 27 runs; at least 86 of 106
        found, is_parted = assign_twins([*many, *strangers(600)])
        assert len({row.twin for row in found[: len(many)]}) == 1
        assert found[0].twin
        assert not any(row.twin for row in found[len(many) :])
        assert not is_parted


def test_many_short_prompts_that_differ_in_a_word_are_a_form_and_that_is_told() -> None:
    """The 23 words have 19 runs, of which 18 are shared; with one word more they are long enough to be one."""
    for length, is_form in ((23, True), (24, False)):
        found, is_parted = assign_twins([*copies(25, length, 7, last=True), *strangers(600)])
        assert ({row.twin for row in found[:25]} == {""}) is is_form
        assert is_parted is is_form


def test_so_many_repetitions_that_they_would_be_half_of_the_data_are_parted_and_told() -> None:
    found, is_parted = assign_twins([*copies(40, 30, 7, last=True), *strangers(40)])
    assert {row.twin for row in found} == {""}
    assert is_parted


def test_what_hangs_together_too_far_changes_nothing_elsewhere() -> None:
    """A chain through half of the file comes apart; ten copies, whose words are not so rare, stay together."""
    text = words(1200, 0)
    links = [pair(i, " ".join(text[4 * i : 4 * i + 20])) for i in range(290)]
    others = [*copies(10, 30, 7), *copies(25, 60, 8, last=True), *strangers(500)]
    alone, is_parted = assign_twins(others)
    assert not is_parted
    assert Counter(row.twin for row in alone if row.twin).most_common() == [
        (alone[10].twin, 25),
        (alone[0].twin, 10),
    ]
    among, is_parted = assign_twins([*links, *others])
    assert is_parted
    assert among[290:] == alone


def grams(row: Record) -> set[tuple[str, ...]]:
    said = str(row.prompt).split()
    return {tuple(said[i : i + 5]) for i in range(len(said) - 4)}


def test_crowds_are_found_as_by_comparing_all_with_all() -> None:
    """Families of 15 to 40 prompts of one form, with fewer or more words of their own, up to all of them."""
    for seed in range(8):
        draw = random.Random(seed)
        rows: list[Record] = []
        for family in range(10):
            form = words(draw.randrange(24, 80), 100 * seed + family)
            own = draw.choice((1, 3, 8, 30))
            for i in range(draw.randrange(15, 40)):
                start = draw.choice((0, 0, len(form) - 3))
                said = [*form[:start], *words(draw.randrange(1, own + 1), 1000 * family + i), *form[start:]]
                rows.append(pair(len(rows), " ".join(said)))
        found, is_parted = assign_twins([*rows, *strangers(600)])
        name = [row.twin or row.id for row in found]
        held = [grams(row) for row in rows]
        alike = {
            (one, other): len(held[one] & held[other]) / len(held[one] | held[other])
            for one, other in combinations(range(len(rows)), 2)
        }
        same = [
            both for both, index in alike.items() if index >= 0.8 and min(len(held[both[0]]), len(held[both[1]])) >= 20
        ]
        assert len(same) > 100
        # Not all are compared with all, so a few may be missed, but then that is told.
        assert sum(name[one] == name[other] for one, other in same) > 0.97 * len(same)
        assert is_parted is any(index >= 0.5 and name[one] != name[other] for (one, other), index in alike.items())


def test_a_chain_never_swallows_the_data() -> None:
    """Each prompt repeats the half of the one before: all hang together, and there would be nothing to hold out."""
    text = words(1200, 0)
    rows = [pair(i, " ".join(text[4 * i : 4 * i + 20])) for i in range(290)]  # 12 of 20 runs, 4 words further on
    found, is_parted = assign_twins(rows)
    sizes = Counter(row.twin or row.id for row in found)
    assert max(sizes.values()) <= 20
    assert is_parted
    _, held_out = split_rows(found, 0.2)
    assert 0.1 < len(held_out) / len(rows) < 0.3
    assert together(*rows[:2])  # by themselves they are twins


def test_what_the_data_calls_twins_are_twins_and_lend_their_name() -> None:
    texts = [" ".join(words(12, seed)) for seed in range(3)]
    rows = [pair(0, texts[0], twin="x"), pair(1, texts[1], twin="x"), pair(2, texts[1]), pair(3, texts[2], twin="y")]
    assert [row.twin for row in assign_twins(rows)[0]] == ["x", "x", "x", "y"]
    all_one = [pair(i, f"question {i}", twin="the same") for i in range(50)]
    assert {row.twin for row in assign_twins(all_one)[0]} == {"the same"}  # what is sure has no limit


def test_no_rows_have_no_twins() -> None:
    assert assign_twins([]) == ([], False)


def naive(rows: list[Trace]) -> set[frozenset[str]]:
    """The clusters by comparing all with all; nothing here is so frequent that it would not count."""

    def grams(text: str) -> set[tuple[str, ...]]:
        said = text.lower().split()
        return {tuple(said[i : i + 5]) for i in range(len(said) - 4)}

    def linked(one: Trace, other: Trace) -> bool:
        a, b = grams(str(one.prompt)), grams(str(other.prompt))
        alike = bool(a | b) and len(a & b) / len(a | b) >= 0.5
        steps = {step for step in one.steps if len(step) >= 40} & set(other.steps)
        return one.prompt == other.prompt or alike or bool(steps) or (one.twin == other.twin != "")

    clusters = {row.id: {row.id} for row in rows}
    for one, other in combinations(rows, 2):
        if linked(one, other) and clusters[one.id] is not clusters[other.id]:
            clusters[one.id] |= clusters[other.id]
            for name in clusters[one.id]:
                clusters[name] = clusters[one.id]
    return {frozenset(found) for found in clusters.values()}


LONG = [f"step number {i} says something that is long enough" for i in range(6)]
TRACES = st.builds(
    lambda prompt, steps, twin: (prompt, tuple(steps), twin),
    st.lists(st.sampled_from("abc"), min_size=3, max_size=8).map(" ".join),
    st.lists(st.sampled_from([*LONG, "short"]), max_size=2),
    st.sampled_from(["", "", "", "t", "u"]),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(TRACES, min_size=1, max_size=16), st.randoms(use_true_random=False))
def test_clusters_are_those_of_brute_force_in_any_order_and_never_parted(drawn: list, shuffler: random.Random) -> None:
    rows = [
        Trace(id=str(i), prompt=prompt, steps=steps, labels=(1,) * len(steps), twin=twin)
        for i, (prompt, steps, twin) in enumerate(drawn)
    ]
    rows += [trace(1000 + i, " ".join(words(6, i))) for i in range(20)]  # so that half of the rows is enough for all
    found, is_parted = assign_twins(rows)
    assert not is_parted
    assert [replace(row, twin=drawn[0][2]) for row in found[:1]] == rows[:1]  # nothing else has changed
    named: dict[str, set[str]] = {}
    for row in found:
        named.setdefault(row.twin or str(row.prompt), set()).add(row.id)
    assert set(map(frozenset, named.values())) == naive(rows)
    again, _ = assign_twins(shuffler.sample(rows, len(rows)))
    assert {row.id: row.twin for row in again} == {row.id: row.twin for row in found}
    training, held_out = split_rows(found, 0.3)
    sides = [{row.id for row in side} for side in (training, held_out)]
    assert all(cluster <= sides[0] or cluster <= sides[1] for cluster in naive(rows))


def test_names_are_the_same_in_every_process() -> None:
    code = (
        "from whet.data.similarity import assign_twins; from whet.records import Pair; "
        "rows = [Pair(id=str(i), prompt=f'one two three four five six {i % 7} {i}', chosen='a', rejected='b')"
        " for i in range(90)]; print([row.twin for row in assign_twins(rows)[0]])"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]


def test_filters_do_not_decide_what_belongs_together(tmp_path) -> None:
    """A tie links two prompts that are not alike; dropped or not, they stay on one side."""
    asked = words(24, 0)
    one, middle, other = (" ".join(asked[start : start + 14]) for start in (0, 3, 6))
    rows = [
        {"prompt": one, "chosen": "a", "rejected": "b"},
        {"prompt": middle, "chosen": "c", "rejected": "c"},
        {"prompt": other, "chosen": "d", "rejected": "e"},
        *({"prompt": row.prompt, "chosen": "x", "rejected": "y"} for row in strangers()),
    ]
    path = str(write_lines(tmp_path / "a.jsonl", rows))
    kept, dropped = (load_rows(Source(path=path, ties=ties)).rows for ties in ("keep", "drop"))
    assert len(kept) == len(dropped) + 1
    assert {row.id: row.twin for row in dropped}.items() <= {row.id: row.twin for row in kept}.items()
    assert dropped[0].twin == dropped[1].twin != ""
    assert not together(pair(0, one), pair(1, other))


def long_steps(row: Record) -> set[str]:
    assert isinstance(row, Trace)
    said = (" ".join(step.lower().split()).lstrip("0123456789. ") for step in row.steps)
    return {step for step in said if len(step) >= 40}


def leaks(rows: list[Record], share: float) -> tuple[int, int]:
    """Held-out traces that share a long step with a training one, and all of them."""
    training, held_out = split_rows(rows, share)
    seen = {step for row in training for step in long_steps(row)}
    return sum(bool(long_steps(row) & seen) for row in held_out), len(held_out)


def test_no_long_step_of_prmbench_is_on_both_sides() -> None:
    """Without exception: not one of its steps of 40 characters stands in so many problems that it would not count."""
    loaded = load_rows(Source(path=real("prmbench/prmbench_all.jsonl.xz"), max_skipped=0.02))
    assert not loaded.twins_parted
    rows = loaded.rows
    for share in (0.05, 0.1, 0.3):
        leaking, held_out = leaks(list(rows), share)
        assert leaking == 0
        assert 0.8 * share < held_out / len(rows) < 1.2 * share
    by_prompt = [replace(row, twin="") for row in rows]
    leaking, held_out = leaks(by_prompt, 0.1)
    assert leaking > held_out / 2  # so there is something to get wrong
    sizes = Counter(row.twin or opening(row) for row in rows)
    assert max(sizes.values()) < 0.01 * len(rows)  # 69 of 9403


def test_real_dialogues_are_few_clusters_and_the_share_stays() -> None:
    for name in ("helpful-base", "harmless-base", "helpful-rejection-sampled"):
        loaded = load_rows(Source(path=real(f"hh-rlhf/{name}.test.jsonl.gz")))
        assert loaded.twins_parted  # one question about forty people or towns
        rows = loaded.rows
        named = [row for row in rows if row.twin]
        assert 10 < len(named) < 0.05 * len(rows)
        assert max(Counter(row.twin for row in named).values()) <= 6
        assert 0.08 < len(split_rows(rows)[1]) / len(rows) < 0.12
