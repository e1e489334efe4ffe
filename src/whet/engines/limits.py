"""Prompts and the context of the model that is to continue them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whet.errors import UserError
from whet.records import Prompt, Sampling

COLDEST = 1e-6  # a temperature besides 0: fp32 logits may be divided by it


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
        if prompt.limit is not None and prompt.limit < 1:
            raise UserError(f"a prompt's limit is {prompt.limit}: a completion has at least one token")
    return [_limited(prompt, context - len(prompt.tokens)) for prompt in prompts]


def above_coldest(sampling: Sampling) -> None:
    """Refuses a temperature that logits cannot be divided by."""
    if 0 < sampling.temperature < COLDEST:
        raise UserError(
            f"temperature {sampling.temperature:g} is too low to compute with: use 0 for the most likely token, or "
            f"{COLDEST:g} and above"
        )


def within_vocabulary(prompts: Sequence[Prompt], size: int) -> None:
    """Refuses ids that the model has no embedding for."""
    largest = max((max(prompt.tokens) for prompt in prompts), default=0)
    if largest >= size:
        raise UserError(
            f"a prompt holds the id {largest} and the model has {size} ids: the tokenizer does not belong to this "
            "model, copy the right one there"
        )


def _limited(prompt: Prompt, room: int) -> Prompt:
    return replace(prompt, limit=room if prompt.limit is None else min(room, prompt.limit))


def token_limit(prompt: Prompt, sampling: Sampling, context: int) -> int:
    """The most tokens that a completion of this prompt may have."""
    asked = sampling.max_tokens if prompt.limit is None else min(prompt.limit, sampling.max_tokens)
    return min(asked, context - len(prompt.tokens))
