"""Rows of data as token rows: the end of a dialogue is kept, and what does not fit is counted."""

from __future__ import annotations

from collections.abc import Sequence

from whet.data.truncate import newest_turns
from whet.models.protocol import Tokenizer
from whet.records import Dialogue, Message, Row, Trace

Asked = str | tuple[Message, ...]


def ended(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a completion and the end of the sequence."""
    return [*tokenizer.encode(text), tokenizer.eos]


def completion_rows(tokenizer: Tokenizer, prompt: Asked, texts: Sequence[str], limit: int) -> list[Row] | None:
    """One row for each completion of a prompt, all with the same beginning; None where one of them does not fit."""
    completions = [ended(tokenizer, text) for text in texts]
    asked = fitting_prompt(tokenizer, prompt, limit - max(map(len, completions)))
    return None if asked is None else [_row(asked, completion) for completion in completions]


def fitting_prompt(tokenizer: Tokenizer, prompt: Asked, room: int) -> list[int] | None:
    """The ids of a prompt, its oldest turns left out as far as they must be, then its first ids; None: no room."""
    if room < 1:
        return None
    if not isinstance(prompt, str):
        prompt, _ = newest_turns(prompt, lambda turns: len(tokenizer.prompt(turns)), room)
    return tokenizer.prompt(prompt)[-room:] or None


def dialogue_rows(tokenizer: Tokenizer, dialogue: Dialogue, *, turns: str, limit: int) -> list[Row] | None:
    """The assistant's last turn, or all of them, as one row where the chat template allows it; None: too long.

    A template that writes earlier turns differently once others follow needs a row for each turn.
    """
    # What opens a conversation answers nothing.
    spoken = [i for i, message in enumerate(dialogue.messages) if message.role == "assistant" and i > 0]
    if turns == "last":
        last = spoken[-1]
        return completion_rows(tokenizer, dialogue.messages[:last], [dialogue.messages[last].content], limit)
    tokens: list[int] = []
    mask: list[bool] = []
    for turn in spoken:
        asked = tokenizer.prompt(dialogue.messages[:turn])
        if asked[: len(tokens)] != tokens:
            return _apart(tokenizer, dialogue, spoken, limit)
        said = ended(tokenizer, dialogue.messages[turn].content)
        mask += [False] * (len(asked) - len(tokens)) + [True] * len(said)
        tokens = [*asked, *said]
    if len(tokens) > limit:
        return _apart(tokenizer, dialogue, spoken, limit)
    return [Row(tokens=tuple(tokens), mask=tuple(mask))]


def _apart(tokenizer: Tokenizer, dialogue: Dialogue, spoken: Sequence[int], limit: int) -> list[Row] | None:
    """A row for each turn, each with what came before it."""
    found = [
        completion_rows(tokenizer, dialogue.messages[:turn], [dialogue.messages[turn].content], limit)
        for turn in spoken
    ]
    return [row for rows in found for row in rows] if all(rows is not None for rows in found) else None  # type: ignore[union-attr]


def trace_row(tokenizer: Tokenizer, trace: Trace, *, separator: str, limit: int) -> Row | None:
    """A solution with every step's last token marked; None where it does not fit."""
    steps = [tokenizer.encode(step + separator) for step in trace.steps]
    asked = fitting_prompt(tokenizer, trace.prompt, limit - sum(map(len, steps)))
    if asked is None:
        return None
    ends = [place == len(step) - 1 for step in steps for place in range(len(step))]
    return Row(tokens=(*asked, *(token for step in steps for token in step)), mask=(*[False] * len(asked), *ends))


def _row(asked: Sequence[int], completion: Sequence[int]) -> Row:
    return Row(tokens=(*asked, *completion), mask=(False,) * len(asked) + (True,) * len(completion))
