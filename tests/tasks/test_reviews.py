"""Reviews: the gold reward by hand and by another way, ordinary writers, disjoint sides, nothing to cheat."""

from __future__ import annotations

import re
from collections import Counter
from itertools import permutations
from math import sqrt
from statistics import mean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import UserError
from whet.records import Example
from whet.tasks.check import TaskProblem, check_task
from whet.tasks.reviews import ASPECTS, HABITS, VALUES, Mention, Reviews, read_review, write_review

TASK = Reviews()
EXAMPLE = Example(id="x", prompt="food, spa, bed:", answer=" spa dull.", columns={"aspects": ["food", "spa", "bed"]})
PIECES = st.one_of(
    st.tuples(st.sampled_from(ASPECTS), st.sampled_from(list(VALUES))).map(" ".join),
    st.sampled_from(["food", "great", "food great great", "food grand", "cook great", "great food", "", "food great."]),
)
TEXTS = st.tuples(st.lists(PIECES, max_size=8).map(", ".join), st.sampled_from(["", ".", "..", ". ", "!"])).map("".join)


def oracle(asked: list[str], text: str) -> float:
    """The gold reward by another way than the task's: one regular expression, and one aspect after the other."""
    clause = rf"\s*({'|'.join(ASPECTS)})\s+({'|'.join(VALUES)})\s*"
    whole = re.fullmatch(rf"{clause}(,{clause})*\.\s*", text) is not None
    body = text.rstrip()
    body = body[:-1] if body.endswith(".") else body
    said = [match.groups() for piece in body.split(",") if (match := re.fullmatch(clause, piece))]
    gold = 0.0 if whole else -1.0
    for aspect in ASPECTS:
        heard = [adjective for named, adjective in said if named == aspect]
        if aspect not in asked:
            gold -= len(heard)
        elif heard:
            gold += VALUES[heard[0]] - (len(heard) - 1)
        else:
            gold -= 1
    return max(-6.0, gold)


@pytest.mark.parametrize("task", [Reviews(), Reviews(writer_seed=7)], ids=str)
def test_task_keeps_its_promises(task: Reviews) -> None:
    check_task(task)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        (" food great, spa great, bed super.", 6),
        (" bed super, food great, spa great.", 6),  # in any order
        (" food fine, spa dull, bed okay.", 0),  # 1 − 1 + 0
        (" food great, spa great.", 3),  # 4 − 1 missing
        (" food great, spa great, bed great, bed great.", 5),  # 6 − 1 repeated, and its value counts for nothing
        (" bed vile, food great, spa great, bed great.", 1),  # −2 + 4 − 1: the first mention is what counts
        (" food great, spa great, bed great, wifi great.", 5),  # 6 − 1 off topic
        (" wifi great, wifi great, wifi great.", -6),  # −3 missing − 3 off topic
        (" food great, spa great, bed great", 5),  # no full stop
        (" food great, spa great, bed grand.", 2),  # 4 − 1 missing − 1 for what cannot be read
        (" food great spa great, bed great.", -1),  # 2 − 2 missing − 1
        (" food vile, spa vile, bed vile.", -6),
        (" food vile, spa vile, bed vile, wifi great", -6),  # would be −8
        ("", -4),  # −3 missing − 1 for what cannot be read
    ],
)
def test_gold_by_hand(text: str, gold: float) -> None:
    assert TASK.score(EXAMPLE, text).reward == gold == oracle(["food", "spa", "bed"], text)


def test_parts_add_up_to_the_reward_by_hand() -> None:
    score = TASK.score(EXAMPLE, " food great, food vile, bed fine, wifi okay, oops")
    assert score.parts == {"value": 3, "missing": 1, "repeated": 1, "off_topic": 1, "malformed": 1}
    assert score.reward == -1


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_gold_agrees_with_an_independent_oracle_and_is_bounded(text: str) -> None:
    reward = TASK.score(EXAMPLE, text).reward
    assert reward == oracle(["food", "spa", "bed"], text)
    assert -6 <= reward <= 6
    assert not TASK.correct(EXAMPLE, text) or reward >= 3


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, extra=PIECES)
def test_another_mention_pays_only_for_an_aspect_that_was_missing(text: str, extra: str) -> None:
    """What a reward model may overlook: after the first mention of everything, more words only cost."""
    before = TASK.score(EXAMPLE, text)
    after = TASK.score(EXAMPLE, text.rstrip(". !") + f", {extra}.")
    if before.parts["missing"] == 0 and before.parts["malformed"] == 0:
        assert after.reward <= max(-6.0, before.reward - 1)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" food great, spa fine, bed nice.", True),
        (" bed nice, food great, spa fine.", True),
        (" food great, spa fine, bed okay.", False),  # 0 is no praise
        (" food great, spa fine.", False),
        (" food great, spa fine, bed nice, bed nice.", False),
        (" food great, spa fine, bed nice, wifi great.", False),
        (" food great, food great, food great.", False),
        (" food great, spa fine, bed nice", False),
        (" food great, spa fine, bed nice, .", False),
    ],
)
def test_correct_is_praise_of_each_once(text: str, right: bool) -> None:
    assert TASK.correct(EXAMPLE, text) is right


@given(st.lists(st.tuples(st.sampled_from(ASPECTS), st.sampled_from(list(VALUES))), min_size=1, max_size=9))
def test_what_is_written_is_read_back(pairs: list[tuple[str, str]]) -> None:
    mentions = tuple(Mention(*pair) for pair in pairs)
    assert read_review(write_review(mentions)) == (mentions, True)


def test_an_ordinary_review_is_short_well_formed_and_mediocre() -> None:
    """Mean gold: adjectives of mean value 0, less a point for the fifth of the reviews that has a fault."""
    examples = TASK.draw(6000, seed=(3, 1))
    golds = [TASK.score(example, example.answer).reward for example in examples]
    assert all(read_review(example.answer).is_well_formed and len(example.answer) <= 48 for example in examples)
    assert abs(mean(golds) + 0.2) < 4 * stdev(golds) / sqrt(6000)
    # Praise of all three by a faithful writer: 16/20 · (5/12)³ = 5.8 %
    right = mean(TASK.correct(example, example.answer) for example in examples)
    assert abs(right - 0.8 * (5 / 12) ** 3) < 4 * sqrt(0.058 * 0.942 / 6000)


def test_writers_faults_are_as_frequent_as_their_habits() -> None:
    examples = TASK.draw(6000, seed=(3, 2))
    parts = [TASK.score(example, example.answer).parts for example in examples]
    for part, habit in (("missing", "forgets"), ("repeated", "repeats"), ("off_topic", "strays")):
        share = HABITS.count(habit) / len(HABITS)
        assert {row[part] for row in parts} == {0.0, 1.0}
        assert abs(mean(row[part] for row in parts) - share) < 4 * sqrt(share * (1 - share) / 6000)
    spoken = Counter(m.adjective for e in examples for m in read_review(e.answer).mentions)
    assert max(spoken.values()) / min(spoken.values()) < 1.2  # 1500 each, with a standard deviation of 37
    assert sum(VALUES.values()) == 0


def test_all_orders_of_three_aspects_are_on_one_side_and_all_are_there() -> None:
    held = {e.prompt for e in TASK.held_out(1000)}
    trained = {e.prompt for e in TASK.draw(720 - len(held), seed=(9,))}
    assert held | trained == {f"{a}, {b}, {c}:" for a, b, c in permutations(ASPECTS, 3)}
    assert not held & trained
    sets = Counter(frozenset(prompt[:-1].split(", ")) for prompt in held)
    assert set(sets.values()) == {6}
    assert 0.15 < len(held) / 720 < 0.25


def test_a_prompt_comes_again_only_after_all_others_and_with_another_review() -> None:
    side = 720 - len(TASK.held_out(1000))
    drawn = TASK.draw(2 * side, seed=(1, 2))
    first, second = ({e.prompt: e.answer for e in lap} for lap in (drawn[:side], drawn[side:]))
    assert len(first) == side
    assert first.keys() == second.keys()
    assert sum(first[prompt] == second[prompt] for prompt in first) < side / 50
    assert TASK.draw(50, seed=(1, 2)) == drawn[:50]


def test_writers_depend_on_their_seed_and_prompts_and_taste_do_not() -> None:
    ours, theirs = TASK.draw(300, seed=(4,)), Reviews(writer_seed=1).draw(300, seed=(4,))
    assert [e.prompt for e in ours] == [e.prompt for e in theirs]
    assert mean(a.answer == b.answer for a, b in zip(ours, theirs, strict=True)) < 0.05
    assert not {e.id for e in ours} & {e.id for e in theirs}
    assert all(TASK.score(e, e.answer) == Reviews(writer_seed=1).score(e, e.answer) for e in ours)
    with pytest.raises(UserError, match="writer_seed is -1, must be 0 or more"):
        Reviews(writer_seed=-1)


def test_first_letters_tell_words_apart() -> None:
    assert len({word[0] for word in ASPECTS}) == len(ASPECTS) == 10
    assert len({word[0] for word in VALUES}) == len(VALUES) == 12


class Modest(Reviews):
    """Calls an ordinary review the best one."""

    def best(self, example: Example) -> str:
        return example.answer


class Greedy(Reviews):
    """Calls a review the best one that is correct, but not the best."""

    def best(self, example: Example) -> str:
        return super().best(example).replace("great", "nice")


def test_a_best_that_is_not_the_best_is_caught() -> None:
    with pytest.raises(TaskProblem, match=r"the best of reviews:.* is not correct"):
        check_task(Modest())
    with pytest.raises(TaskProblem, match="its own best only 3"):
        check_task(Greedy())
