"""Arithmetic, reverse and sorting: right answers, disjoint sides, and rewards that cannot be cheated."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import UserError
from whet.records import Example, Message
from whet.tasks.check import check_task
from whet.tasks.procedural import (
    Arithmetic,
    Reverse,
    Sorting,
    last_digits,
    last_number,
    last_word,
    mark,
    share_in_place,
)

PLAIN: list[Any] = [
    *(Arithmetic(level=level) for level in range(1, 6)),
    *(Reverse(level=level) for level in (1, 3, 10)),
    *(Sorting(level=level) for level in (1, 3, 10)),
]
CHAT: list[Any] = [Arithmetic(level=4, chat=True), Reverse(level=2, chat=True), Sorting(level=2, chat=True)]
EVERY: list[Any] = [*PLAIN, *CHAT, Reverse(level=2, letters=3)]


def oracle(example: Example) -> str:
    """The right answer, by another way than the task's."""
    question = example.columns["question"]
    if example.id.startswith("arithmetic"):
        return str(eval(question))
    if example.id.startswith("reverse"):
        return "".join(reversed(question))
    return "".join(digit * question.count(digit) for digit in "0123456789")


@pytest.mark.parametrize("task", EVERY, ids=str)
def test_task_keeps_its_promises(task: Any) -> None:
    check_task(task)


@pytest.mark.parametrize("task", EVERY, ids=str)
def test_answers_agree_with_an_independent_oracle(task: Any) -> None:
    for example in (*task.draw(200, seed=(3, 1)), *task.held_out(100)):
        assert example.answer == oracle(example)


@pytest.mark.parametrize(
    ("task", "pattern"),
    [
        (Arithmetic(level=1), r"\d\+\d="),
        (Arithmetic(level=3), r"\d{1,2}[+-]\d{1,2}="),
        (Arithmetic(level=4), r"(\d{1,3}[+-]\d{1,3}|\d{1,2}\*\d)="),
        (Arithmetic(level=5), r"(\d{1,4}[+-]\d{1,4}|\d{1,3}\*\d{1,2})="),
        (Reverse(level=1), r"[a-z]{3}>"),
        (Reverse(level=4, letters=5), r"[a-e]{6}>"),
        (Sorting(level=2), r"\d{4}>"),
    ],
    ids=str,
)
def test_prompts_have_the_documented_shape(task: Any, pattern: str) -> None:
    prompts = [example.prompt for example in task.draw(300, seed=(0,))]
    assert all(re.fullmatch(pattern, prompt) for prompt in prompts)


def test_operations_of_a_level_are_equally_frequent() -> None:
    examples = Arithmetic(level=4).draw(900, seed=(5,))
    counts = [sum(op in e.columns["question"] for e in examples) for op in "+-*"]
    assert all(230 < count < 370 for count in counts)  # 300 each; five standard deviations are 71


def test_level_one_arithmetic_is_split_completely() -> None:
    """100 one-digit sums: both sides together are all of them, mirrored sums are on the same side."""
    task = Arithmetic(level=1)
    held = {e.columns["question"] for e in task.held_out(1000)}
    trained = {e.columns["question"] for e in task.draw(100 - len(held), seed=(9,))}
    assert held | trained == {f"{a}+{b}" for a in range(10) for b in range(10)}
    assert not held & trained
    assert 0 < len(held) < 25
    assert {f"{q[2]}+{q[0]}" for q in held} == held


def test_no_held_out_word_is_trained_backwards() -> None:
    task = Reverse(level=1, letters=4)
    held = {e.columns["question"] for e in task.held_out(1000)}
    trained = {e.columns["question"] for e in task.draw(64 - len(held), seed=(0,))}
    assert len(held) + len(trained) == 64
    assert not {word[::-1] for word in held} & trained


def test_no_held_out_answer_is_ever_a_training_answer_of_sorting() -> None:
    task = Sorting(level=1)
    held = task.held_out(1000)
    trained = task.draw(1000 - len(held), seed=(0,))
    assert len({e.id for e in (*held, *trained)}) == 1000
    assert not {e.answer for e in held} & {e.answer for e in trained}


def test_sides_agree_between_levels() -> None:
    """A sum that level 1 holds out is not trained at level 2 either."""
    held = {e.id for e in Arithmetic(level=1).held_out(100)}
    trained = {e.id for e in Arithmetic(level=2).draw(9000, seed=(0,))}
    assert not held & trained


def test_a_draw_repeats_nothing_before_everything_was_drawn() -> None:
    task = Arithmetic(level=1)
    side = 100 - len(task.held_out(1000))
    drawn = [e.id for e in task.draw(2 * side, seed=(1, 2))]
    assert len(set(drawn[:side])) == side
    assert sorted(drawn[:side]) == sorted(drawn[side:])
    assert drawn[:side] != drawn[side:]


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    task = Sorting(level=5)
    assert task.draw(50, seed=(4,))[:20] == task.draw(20, seed=(4,))
    assert task.draw(0, seed=(4,)) == []


@pytest.mark.parametrize("make", [Arithmetic, Reverse, Sorting])
@pytest.mark.parametrize("level", [0, -1, 11])
def test_level_out_of_range_is_refused(make: Any, level: int) -> None:
    with pytest.raises(UserError, match=r"level is -?\d+, must be between 1 and"):
        make(level=level)


def test_letters_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="letters is 27"):
        Reverse(letters=27)


def test_mark_by_hand() -> None:
    assert mark("19", "19").reward == 1.0
    assert mark("18", "19").parts == {"correct": 0.0, "partial": 0.5}
    assert mark("18", "19").reward == pytest.approx(0.1)
    assert share_in_place("1999", "19") == 0.5  # over-long text is divided by its own length
    assert share_in_place("", "19") == 0.0
    assert share_in_place("", "") == 0.0


@pytest.mark.parametrize("task", PLAIN, ids=str)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nothing_wrong_scores_as_much_as_the_right_answer(task: Any, data: st.DataObject) -> None:
    example = data.draw(st.sampled_from(task.held_out(7)))
    right = example.answer
    text = data.draw(
        st.one_of(
            st.text(max_size=20),
            st.text(alphabet=task.alphabet + " \n", max_size=20),
            st.integers(0, len(right)).map(lambda n: right[:n]),
            st.integers(2, 50).map(lambda n: right * n),
            st.integers(2, 50).map(lambda n: " ".join([right] * n)),
            st.text(alphabet=task.alphabet, min_size=1, max_size=5).map(lambda t: right + t),
            st.text(alphabet=task.alphabet, min_size=1, max_size=5).map(lambda t: t + right),
            st.permutations(list(right)).map("".join),
        )
    )
    reward = task.score(example, text).reward
    if text.strip() == right:
        assert task.correct(example, text)
        assert reward == 1.0
    else:
        assert not task.correct(example, text)
        assert 0.0 <= reward < 0.2


@pytest.mark.parametrize("task", CHAT, ids=str)
@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="0123456789abcxyz ,.-+=\n", max_size=30))
def test_chat_reward_is_full_only_for_what_counts_as_correct(task: Any, text: str) -> None:
    example = task.held_out(1)[0]
    assert (task.score(example, text).reward == 1.0) == task.correct(example, text)
    assert task.correct(example, f"{text}\nAnswer: {example.answer}")
    assert not task.correct(example, f"{example.answer}\nno: 7x")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("19", "19"),
        ("12+7 = 19.", "19"),
        ("7-12=-5", "-5"),
        ("it is −5", "-5"),
        ("about 1,234 in all", "1234"),
        ("19.0", "19"),
        ("19.50", "19.50"),
        (r"\boxed{19}", "19"),
        ("18, 19 or 20", "20"),
        ("none", ""),
        ("١٩", ""),
    ],
)
def test_last_number(text: str, number: str) -> None:
    assert last_number(text) == number


def test_last_word_and_last_digits() -> None:
    assert last_word("The answer is **TAC**.") == "tac"
    assert last_word("123 !") == ""
    assert last_digits("From 5 1 3 follows: 1, 3, 5.") == "135"
    assert last_digits("135\n") == "135"
    assert last_digits("-") == ""


def test_chat_poses_the_same_examples_as_instructions() -> None:
    plain, chat = Sorting(level=1).draw(5, seed=(0,)), Sorting(level=1, chat=True).draw(5, seed=(0,))
    assert [e.id for e in plain] == [e.id for e in chat]
    for example in chat:
        digits = " ".join(example.columns["question"])
        content = f"Sort these digits from smallest to largest: {digits}. End with the sorted digits."
        assert example.prompt == (Message(role="user", content=content),)
