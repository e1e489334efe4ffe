"""Cutting: the end of a conversation or a prompt stays, and what is lost is told."""

from __future__ import annotations

import pytest

from tests.models.chats import CHAT, assistant, spelled, system, user
from tests.small import ALPHABET
from whet.models.text.tokenizers import character_tokenizer, fitting_prompt, newest_turns
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
    turns = newest_turns(TALK, letters, limit)
    assert (" ".join(message.content for message in turns), len(TALK) - len(turns)) == (kept, dropped)


def test_a_talk_that_begins_with_the_assistant_loses_that_first() -> None:
    turns = newest_turns((turn("assistant", "hello"), turn("user", "q")), letters, 3)
    assert [message.content for message in turns] == ["q"]


@pytest.mark.parametrize(
    ("room", "kept"),
    [
        (14, "<system>a<eos><user>b<eos><assistant>c<eos><user>d<eos><assistant>"),
        (13, "<system>a<eos><user>b<eos><assistant>c<eos><user>d<eos><assistant>"),
        (12, "<system>a<eos><user>d<eos><assistant>"),
        (7, "<system>a<eos><user>d<eos><assistant>"),
        (3, "d<eos><assistant>"),  # no turn is left to drop
        (0, ""),
        (-4, ""),
    ],
)
def test_a_prompt_loses_turns_and_then_tokens(room: int, kept: str) -> None:
    talk = (system("a"), user("b"), assistant("c"), user("d"))
    tokens, missing = fitting_prompt(CHAT, talk, room)
    assert spelled(tokens) == kept
    assert missing == 13 - len(tokens)
    assert fitting_prompt(CHAT, list(talk), room) == (tokens, missing)


@pytest.mark.parametrize(("room", "kept"), [(9, "abcd"), (4, "abcd"), (3, "bcd"), (1, "d"), (0, ""), (-1, "")])
def test_a_plain_prompt_loses_its_first_tokens(room: int, kept: str) -> None:
    plain = character_tokenizer(ALPHABET)
    tokens, missing = fitting_prompt(plain, "abcd", room)
    assert (plain.decode(tokens), missing) == (kept, 4 - len(kept))
    assert fitting_prompt(plain, "", room) == ([], 0)
