"""Cutting: the end of the dialogue stays, and what is lost is told."""

from __future__ import annotations

import pytest

from whet.data.truncate import newest_turns
from whet.records import Message


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
