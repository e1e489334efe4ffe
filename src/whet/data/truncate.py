"""Rows that are too long: what is dropped is the oldest, and the caller is told how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whet.errors import UserError
from whet.records import Message

LEAST_PROMPT = 1  # the first token of a sequence is never trained, so a completion needs one before it


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A prompt and its completions, each of which fits with it into the limit."""

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    cut_prompt: int  # tokens that the prompt lost at its start
    cut_completions: tuple[int, ...]  # tokens that each completion lost at its end


def fit(prompt: Sequence[int], completions: Sequence[Sequence[int]], limit: int) -> Fitted:
    """The tokens cut to the limit: first the start of the prompt, the same for all completions of a row.

    A completion loses its end only where it is too long by itself; `cut_completions` says so, because it then ends
    without its end-of-sequence token and a loop may rather leave the row out.
    """
    if limit <= LEAST_PROMPT:
        raise UserError(f"data: a row is cut to {limit} tokens, but needs one of the prompt and one of the completion")
    if not prompt:
        raise UserError("data: a prompt has no tokens, so the first of its completion would have nothing before it")
    longest = max(len(completion) for completion in completions)
    kept = tuple(prompt[-max(LEAST_PROMPT, limit - longest) :])
    room = limit - len(kept)
    return Fitted(
        prompt=kept,
        completions=tuple(tuple(completion[:room]) for completion in completions),
        cut_prompt=len(prompt) - len(kept),
        cut_completions=tuple(max(0, len(completion) - room) for completion in completions),
    )


def newest_turns(
    turns: tuple[Message, ...], length: Callable[[tuple[Message, ...]], int], limit: int
) -> tuple[tuple[Message, ...], int]:
    """The longest end of a conversation that fits the limit, and how many messages were dropped before it.

    System messages stay, what remains begins with a user's message, and the last user's message is never dropped:
    where that alone is too long, `fit` cuts its tokens.
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
