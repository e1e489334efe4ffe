"""Rows of data as token rows: the end of a dialogue is kept, and what does not fit is counted."""

from __future__ import annotations

from collections.abc import Sequence

from whet.models.protocol import Tokenizer
from whet.models.text.prompt_truncation import fitting_prompt
from whet.records import Dialogue, Message, Row

Asked = str | tuple[Message, ...]


def ended(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a completion and the end of the sequence."""
    return [*tokenizer.encode(text), tokenizer.eos]


def completion_rows(tokenizer: Tokenizer, prompt: Asked, texts: Sequence[str], limit: int) -> list[Row] | None:
    """One row for each completion of a prompt, all with the same beginning; None where one of them does not fit."""
    completions = [ended(tokenizer, text) for text in texts]
    asked, _ = fitting_prompt(tokenizer, prompt, limit - max(map(len, completions)))
    return [_row(asked, completion) for completion in completions] if asked else None


def dialogue_rows(tokenizer: Tokenizer, dialogue: Dialogue, *, turns: str, limit: int) -> list[Row] | None:
    """The assistant's last turn, or all of them, as one row where the chat template allows it; None: too long.

    A template that writes earlier turns differently once others follow needs a row for each turn.
    """
    if turns == "last" or isinstance(dialogue.prompt, str):
        return completion_rows(tokenizer, dialogue.prompt, [dialogue.completion], limit)
    messages = (*dialogue.prompt, Message(role="assistant", content=dialogue.completion))
    # What opens a conversation answers nothing.
    spoken = [i for i, message in enumerate(messages) if message.role == "assistant" and i > 0]
    tokens: list[int] = []
    mask: list[bool] = []
    for turn in spoken:
        asked = tokenizer.prompt(messages[:turn])
        if asked[: len(tokens)] != tokens:
            return _apart(tokenizer, messages, spoken, limit)
        said = ended(tokenizer, messages[turn].content)
        mask += [False] * (len(asked) - len(tokens)) + [True] * len(said)
        tokens = [*asked, *said]
    if len(tokens) > limit:
        return _apart(tokenizer, messages, spoken, limit)
    return [Row(tokens=tuple(tokens), mask=tuple(mask))]


def _apart(tokenizer: Tokenizer, messages: tuple[Message, ...], spoken: Sequence[int], limit: int) -> list[Row] | None:
    """A row for each turn, each with what came before it."""
    found = [completion_rows(tokenizer, messages[:turn], [messages[turn].content], limit) for turn in spoken]
    return [row for rows in found for row in rows] if all(rows is not None for rows in found) else None  # type: ignore[union-attr]


def _row(asked: Sequence[int], completion: Sequence[int]) -> Row:
    return Row(tokens=(*asked, *completion), mask=(False,) * len(asked) + (True,) * len(completion))
