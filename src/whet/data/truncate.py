"""Conversations that are too long: what is dropped is the oldest, and the caller is told how much."""

from __future__ import annotations

from collections.abc import Callable

from whet.records import Message


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
