"""Prompts and the context of the model that is to continue them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whet.errors import UserError
from whet.records import Prompt


def within_context(prompts: Sequence[Prompt], context: int) -> list[Prompt]:
    """The prompts, none of whose completions may go beyond the context; one without room for a token is refused."""
    for prompt in prompts:
        if not prompt.tokens:
            raise UserError("a prompt is empty: the model needs at least one token to continue")
        if len(prompt.tokens) >= context:
            raise UserError(
                f"a prompt has {len(prompt.tokens)} tokens and the model's context is {context}: "
                "shorten the prompt or use a model with a longer context"
            )
    return [_limited(prompt, context - len(prompt.tokens)) for prompt in prompts]


def _limited(prompt: Prompt, room: int) -> Prompt:
    return replace(prompt, limit=room if prompt.limit is None else min(room, prompt.limit))
