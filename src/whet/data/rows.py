"""Accessors that work on every kind of record: prompt, answers, whole content. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator

from whet.data.formats import Record
from whet.records import Dialogue, Labelled, Message, Outcomes, Pair


def answers_of(row: Record) -> tuple[str, ...]:
    """What was answered: every completion of the row, or every step."""
    match row:
        case Dialogue() | Labelled():
            return (row.completion,)
        case Pair():
            return (row.chosen, row.rejected)
        case Outcomes():
            return row.completions
    return row.steps


def verdicts_of(row: Record) -> tuple[float | None, ...]:
    """What was judged: the margin or the labels; nothing in a dialogue."""
    match row:
        case Dialogue():
            return ()
        case Pair():
            return (row.margin,)
        case Labelled():
            return (row.label,)
        case Outcomes():
            return row.correct
    return row.labels


def turns_of(row: Record) -> int:
    """How many messages stand before the last answer and with it."""
    prompt = row.prompt
    return 2 if isinstance(prompt, str) else len(prompt) + 1


def prompt_text(row: Record) -> str:
    """The prompt as characters; a text and a conversation of the same words are different prompts."""
    prompt = row.prompt
    return prompt if isinstance(prompt, str) else json.dumps(list(_spoken(prompt)), ensure_ascii=False)


def readable_prompt(row: Record) -> str:
    """The prompt as a person reads it."""
    prompt = row.prompt
    return prompt if isinstance(prompt, str) else "\n".join(f"{turn.role}: {turn.content}" for turn in prompt)


def content(row: Record) -> str:
    """All that the row says, without its id: equal for rows that teach the same."""
    parts = [type(row).__name__, prompt_text(row), answers_of(row), verdicts_of(row)]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def spaced(text: str) -> str:
    """The text with one space wherever there was white space."""
    return " ".join(text.split())


def _spoken(turns: tuple[Message, ...]) -> Iterator[tuple[str, str]]:
    return ((turn.role, turn.content) for turn in turns)
