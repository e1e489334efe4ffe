"""Cutting: the end of the dialogue stays, and what is lost is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.data.truncate import fit, newest_turns
from whet.errors import UserError
from whet.records import Message


def test_the_start_of_the_prompt_goes_first() -> None:
    fitted = fit([1, 2, 3, 4, 5], [[6, 7], [8]], 5)
    assert (fitted.prompt, fitted.completions) == ((3, 4, 5), ((6, 7), (8,)))
    assert (fitted.cut_prompt, fitted.cut_completions) == (2, (0, 0))


def test_a_completion_that_is_too_long_by_itself_is_cut_and_told() -> None:
    fitted = fit([1, 2, 3], [[4, 5, 6, 7], [8]], 4)
    assert (fitted.prompt, fitted.completions) == ((3,), ((4, 5, 6), (8,)))
    assert (fitted.cut_prompt, fitted.cut_completions) == (2, (1, 0))


def test_what_fits_is_left_alone() -> None:
    fitted = fit([1, 2], [[3], [4, 5]], 4)
    assert (fitted.prompt, fitted.completions, fitted.cut_prompt, fitted.cut_completions) == (
        (1, 2),
        ((3,), (4, 5)),
        0,
        (0, 0),
    )


TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=3), st.integers(2, 16))
def test_nothing_is_lost_that_is_not_told_and_no_more_than_needed(
    prompt: list[int], completions: list[list[int]], limit: int
) -> None:
    fitted = fit(prompt, completions, limit)
    assert tuple(prompt[fitted.cut_prompt :]) == fitted.prompt != ()
    for whole, kept, cut in zip(completions, fitted.completions, fitted.cut_completions, strict=True):
        assert tuple(whole[: len(whole) - cut]) == kept != ()
        assert len(fitted.prompt) + len(kept) <= limit
        assert not cut or len(fitted.prompt) == 1  # the answer is cut only when no more of the prompt can be
    longest = max(map(len, fitted.completions))
    assert not fitted.cut_prompt or len(fitted.prompt) + longest == limit


def test_a_row_without_room_is_refused() -> None:
    with pytest.raises(UserError, match="cut to 1 tokens"):
        fit([1], [[2]], 1)
    with pytest.raises(UserError, match="a prompt has no tokens"):
        fit([], [[2]], 4)


def turn(role: str, content: str) -> Message:
    return Message(role=role, content=content)


TALK = (
    turn("system", "ss"),
    turn("user", "aaaa"),
    turn("assistant", "bbbb"),
    turn("user", "cccc"),
    turn("assistant", "dddd"),
    turn("user", "eeee"),
)


def letters(turns: tuple[Message, ...]) -> int:
    return sum(len(message.content) for message in turns)


@pytest.mark.parametrize(
    ("limit", "kept", "dropped"),
    [
        (22, "ss aaaa bbbb cccc dddd eeee", 0),
        (21, "ss cccc dddd eeee", 2),
        (14, "ss cccc dddd eeee", 2),
        (13, "ss eeee", 4),
        (6, "ss eeee", 4),
        (1, "ss eeee", 4),  # the last question stays, however long
    ],
)
def test_the_oldest_turns_go_first_and_the_system_message_stays(limit: int, kept: str, dropped: int) -> None:
    turns, count = newest_turns(TALK, letters, limit)
    assert (" ".join(message.content for message in turns), count) == (kept, dropped)


def test_a_talk_that_begins_with_the_assistant_loses_that_first() -> None:
    turns, count = newest_turns((turn("assistant", "hello"), turn("user", "q")), letters, 3)
    assert ([message.content for message in turns], count) == (["q"], 1)
