"""Prompts that are too long: the oldest is left out, by training and by scoring alike, so that both read the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whet.models.protocol import Tokenizer
from whet.records import Message

Prompt = str | Sequence[Message]


def fitting_prompt(tokenizer: Tokenizer, prompt: Prompt, room: int) -> tuple[list[int], int]:
    """At most `room` ids of a prompt, and how many of it are missing; none where there is no room or no prompt.

    The oldest turns go first, as far as they must, then the first ids of what is left.
    """
    whole = tokenizer.prompt(prompt)
    if len(whole) <= room:
        return whole, 0
    if room < 1:
        return [], len(whole)
    newest = whole
    if not isinstance(prompt, str):
        turns, _ = newest_turns(tuple(prompt), lambda some: len(tokenizer.prompt(some)), room)
        newest = tokenizer.prompt(turns)
    kept = newest[-room:]
    return kept, len(whole) - len(kept)


def newest_turns(
    turns: tuple[Message, ...], length: Callable[[tuple[Message, ...]], int], limit: int
) -> tuple[tuple[Message, ...], int]:
    """The longest end of a conversation that fits the limit, and how many messages were dropped before it.

    System messages stay, what remains begins with a user's message, and the last user's message is never dropped:
    where that alone is too long, the caller cuts its tokens.
    """
    system = tuple(turn for turn in turns if turn.role == "system")
    spoken = tuple(turn for turn in turns if turn.role != "system")
    starts = [place for place, turn in enumerate(spoken) if turn.role == "user"]
    # As it came first, which may begin with the assistant; then from each user's message on.
    for start in (0, *(place for place in starts if place > 0)):
        kept = (*system, *spoken[start:]) if start else turns
        if length(kept) <= limit or not any(place > start for place in starts):
            return kept, len(turns) - len(kept)
    return turns, 0
