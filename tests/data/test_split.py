"""Sides by the prompt: no prompt on both, no matter how rows repeat, grow or continue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.real import real
from whet.data.formats import prompt_key
from whet.data.sources import Source, load_rows
from whet.data.split import clustering, opening, salt_of, split_rows
from whet.errors import UserError
from whet.records import Dialogue, Labelled, Message, Pair
from whet.tasks.space import LEAST_HELD_OUT, fingerprint, is_held_out


def pair(i: int, prompt: str | tuple[Message, ...]) -> Pair:
    return Pair(id=str(i), prompt=prompt, chosen=f"a{i}", rejected=f"b{i}")


def talk(*said: str) -> tuple[Message, ...]:
    return tuple(Message(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(said))


PROMPTS = st.one_of(
    st.text(min_size=1, max_size=3),
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3).map(lambda s: talk(*s)),
)


@given(st.lists(PROMPTS, min_size=2, max_size=60), st.floats(0.01, 0.9))
def test_no_prompt_and_no_opening_is_on_both_sides(prompts: list, share: float) -> None:
    rows = [pair(i, prompt) for i, prompt in enumerate(prompts)]
    if len({prompt_key(row) for row in rows}) < 2:
        return
    training, held_out = split_rows(rows, share)
    assert sorted(row.id for row in (*training, *held_out)) == sorted(row.id for row in rows)
    assert not {prompt_key(row) for row in training} & {prompt_key(row) for row in held_out}
    assert training
    assert held_out
    if len({opening(row) for row in rows}) > 1:
        assert not {opening(row) for row in training} & {opening(row) for row in held_out}


def test_a_side_never_changes_when_rows_are_added_or_shuffled() -> None:
    rows = [pair(i, f"p{i}") for i in range(500)]
    held_out = {row.id for row in split_rows(rows)[1]}
    assert {row.id for row in split_rows(rows[::-1])[1]} == held_out
    assert {row.id for row in split_rows([*rows, *(pair(i, f"p{i}") for i in range(500, 900))])[1]} >= held_out
    assert 25 <= len(held_out) <= 80  # 50 expected


def test_the_side_is_a_hash_of_the_prompt_and_nothing_else() -> None:
    rows = [pair(i, f"p{i}") for i in range(500)]
    training, held_out = split_rows(rows)
    assert held_out == [row for row in rows if is_held_out(row.prompt, 0.1)]
    assert training == [row for row in rows if not is_held_out(row.prompt, 0.1)]


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_a_side_that_chance_leaves_empty_gets_the_row_at_its_end_of_another_order(first: int) -> None:
    """Of five rows a share of 1e-9 holds out none and one of 1 − 1e-9 all: an order by hash says which one moves."""
    rows = [pair(i, f"p{first + i}") for i in range(5)]
    ordered = sorted(rows, key=lambda row: fingerprint("side", row.prompt))
    assert split_rows(rows, 1e-9)[1] == ordered[:1]
    assert split_rows(rows, 1 - 1e-9)[0] == ordered[-1:]


def test_a_text_a_message_and_a_longer_talk_with_the_same_beginning_stay_together() -> None:
    for i in range(50):
        same = [
            pair(0, f"why {i}?"),
            pair(1, talk(f"why  {i}?\n")),
            pair(2, talk(f"why {i}?", "because", "and then?")),
            pair(3, (Message(role="system", content="be kind"), *talk(f"why {i}?"))),
            Dialogue(id="4", prompt=talk(f"why {i}?"), completion="because"),
        ]
        others = [pair(10 + j, f"other {j}") for j in range(20)]
        sides = split_rows([*same, *others], 0.5)
        assert sorted(sum(row in same for row in side) for side in sides) == [0, 5]


def test_one_opening_for_all_rows_falls_back_to_whole_prompts() -> None:
    rows = [pair(i, talk("Let us begin.", "Yes?", f"question {i}")) for i in range(100)]
    training, held_out = split_rows(rows)
    assert 2 <= len(held_out) <= 25
    assert len(training) + len(held_out) == 100


def test_where_no_user_speaks_the_first_message_opens_and_of_nothing_nothing() -> None:
    system = Message(role="system", content="be  kind")
    assert opening(pair(0, (system, *talk("why?")))) == "why?"
    assert opening(pair(0, (system, Message(role="assistant", content="yes?")))) == "be kind"
    assert opening(pair(0, ())) == ""


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(UserError, match="all rows have the same prompt or twin"):
        split_rows([pair(0, "p"), pair(1, "p")])
    with pytest.raises(UserError, match=r"held_out_share is 1\.1, must be from 0 to 1"):
        split_rows([], 1.1)
    assert split_rows([pair(0, "p")], 1) == ([], [pair(0, "p")])
    assert split_rows([pair(0, "p")], 0) == ([pair(0, "p")], [])


def test_real_conversations_that_recur_stay_on_one_side() -> None:
    names = ["helpful-base", "harmless-base", "helpful-rejection-sampled"]
    rows = [row for name in names for row in load_rows(Source(path=real(f"hh-rlhf/{name}.test.jsonl.gz"))).rows]
    openings = [opening(row) for row in rows]
    assert len(openings) - len(set(openings)) > 100  # so there is something to get wrong
    training, held_out = split_rows(rows)
    assert not {opening(row) for row in training} & {opening(row) for row in held_out}
    assert 0.08 < len(held_out) / len(rows) < 0.12
    cluster = clustering(rows)
    assert len({cluster(row) for row in held_out}) < len({row.prompt for row in held_out})


def test_twins_are_parted_by_their_name_and_not_by_their_prompts():
    rows = [replace(pair(i, f"p{i}"), twin=f"t{i % 100}") for i in range(400)]
    for salt in ("", "salt"):
        training, held_out = split_rows(rows, 0.3, salt=salt)
        assert not {row.twin for row in training} & {row.twin for row in held_out}
        assert 4 * len({row.twin for row in held_out}) == len(held_out)
        assert 60 < len(held_out) < 180  # 120 expected
    more = split_rows([*rows, *(replace(pair(i, f"p{i}"), twin=f"t{i % 150}") for i in range(400, 800))], 0.3)[1]
    assert {row.id for row in more} >= {row.id for row in split_rows(rows, 0.3)[1]}


def test_a_cluster_are_rows_with_the_same_twin_or_the_same_beginning():
    rows = [
        pair(0, "why?"),
        pair(1, talk("why? ", "because", "and then?")),
        replace(pair(2, "other words"), twin="t"),
        replace(pair(3, "more words"), twin="t"),
        pair(4, "t"),  # a prompt that is spelled as a twin is none
    ]
    cluster = clustering(rows)
    alike = [[cluster(a) == cluster(b) for b in rows] for a in rows]
    first, second, third = [True, True, False, False, False], [False, False, True, True, False], [False] * 4 + [True]
    assert alike == [first, first, second, second, third]


def test_one_opening_for_all_rows_makes_no_cluster():
    """What the split parts counts by itself, too."""
    rows = [pair(i, talk("Let us begin.", "Yes?", f"question {i // 2}")) for i in range(100)]
    assert len({clustering(rows)(row) for row in rows}) == 50


@given(st.lists(st.tuples(PROMPTS, st.sampled_from(["", "", "s", "t"])), min_size=2, max_size=60))
def test_clusters_are_never_parted(given_rows):
    rows = [replace(pair(i, prompt), twin=twin) for i, (prompt, twin) in enumerate(given_rows)]
    cluster = clustering(rows)
    if len({cluster(row) for row in rows}) > 1:
        training, held_out = split_rows(rows, 0.4)
        assert not {cluster(row) for row in training} & {cluster(row) for row in held_out}


def test_rows_that_a_task_made_are_not_all_on_the_side_that_it_drew_them_from():
    """A task parts its examples by a hash of their twin; the rows of its training side have two sides of their own."""
    twins = [f"t{i}" for i in range(1000)]
    drawn = [replace(pair(i, f"p{i}"), twin=twin) for i, twin in enumerate(twins) if not is_held_out(twin, 0.2)]
    assert 100 < len(split_rows(drawn, 0.2)[1]) < 220  # 160 expected


def test_rows_that_a_run_made_from_training_prompts_are_split_anew(tmp_path):
    prompts = [Labelled(id=str(i), prompt=f"question {i}", completion="a", label=True) for i in range(2000)]
    training, held_out = split_rows(prompts, 0.2)
    assert 300 < len(held_out) < 500
    # By the same hash all of them stand on the training side.
    assert len(split_rows(training, 0.2)[1]) == LEAST_HELD_OUT
    (tmp_path / "rows.jsonl").write_text("")
    for path in (tmp_path, tmp_path / "rows.jsonl"):
        assert 200 < len(split_rows(training, 0.2, salt=salt_of(str(path)))[1]) < 450
    assert salt_of("pairs.jsonl") == ""
    assert salt_of(str(tmp_path)) == "made by a run "  # another salt would move rows that others have trained on


def test_a_number_of_rows_is_held_out_exactly_or_as_near_as_conversations_allow():
    rows = [pair(i, f"p{i}") for i in range(500)]
    for count in (1, 7, 300, 499):
        assert len(split_rows(rows, held_out_rows=count)[1]) == count
    with pytest.raises(UserError, match="held_out_rows is 5000 and there are 500 rows: hold fewer out"):
        split_rows(rows, held_out_rows=5000)
    assert split_rows(rows, held_out_rows=0) == (rows, [])
    fewer, more = ({row.id for row in split_rows(rows, held_out_rows=count)[1]} for count in (7, 70))
    assert fewer < more
    triples = [pair(i, f"p{i // 3}") for i in range(60)]
    assert [len(split_rows(triples, held_out_rows=count)[1]) for count in (3, 4, 6)] == [3, 3, 6]
    with pytest.raises(UserError, match="with the same prompt or twin are too many, so none can be held out: add rows"):
        split_rows(triples, held_out_rows=2)
    for wrong in (-1, 0.5, "ten", True):
        with pytest.raises(UserError, match=f"held_out_rows is {wrong!r}, must be a number of rows"):
            split_rows(rows, held_out_rows=wrong)


def test_a_share_of_a_small_set_is_eight_prompts_or_a_quarter():
    for size, least in ((4, 1), (20, 5), (31, 7), (32, 8), (60, 8)):
        rows = [pair(i, f"p{i}") for i in range(size)]
        assert len(split_rows(rows, 1e-9)[1]) == least
        assert len(split_rows(rows, 0.5)[1]) >= least
