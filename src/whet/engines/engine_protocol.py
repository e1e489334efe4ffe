"""The engine protocol (prompts in, completions with log-probs out) and the input checks that engines share.

Knows nothing about rewards.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from whet.errors import UserError
from whet.models.protocol import CausalLM
from whet.records import Completion, Prompt, Sampling

OnToken = Callable[[int, int, int], None]  # callback for every sampled token: prompt, sample, token
OnGroup = Callable[[int, list[Completion]], None]  # callback for a prompt whose completions are all sampled
COLDEST = 1e-6  # the lowest temperature above 0 that fp32 logits are divided by


class Engine(Protocol):
    """Samples completions with the weights of the last `sync`. `check_engine` tests an implementation."""

    @property
    def is_exact(self) -> bool:
        """Whether its log-probs equal the trainer's to 1e-5, so that they can serve as `logprobs_old`."""
        ...

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1, on_group: OnGroup | None = None
    ) -> list[list[Completion]]:
        """`count` completions of each prompt, in order.

        `on_group` is called in this thread with the number of a prompt and its completions, as soon as they are
        sampled; an engine that has all of them at once need not call it.
        """
        ...

    def sync(self, policy: CausalLM, *, version: int) -> None:
        """Samples with these weights from now on."""
        ...

    def close(self) -> None: ...


def within_context(prompts: Sequence[Prompt], context: int) -> list[Prompt]:
    """The prompts with limits that keep completions within the context; refuses one without room for a token."""
    limited = []
    for prompt in prompts:
        room = context - len(prompt.tokens)
        if not prompt.tokens:
            raise UserError("a prompt is empty: the model needs at least one token to continue")
        if room < 1:
            raise UserError(
                f"a prompt has {len(prompt.tokens)} tokens and the model's context is {context}: "
                "shorten the prompt or use a model with a longer context"
            )
        if prompt.limit is not None and prompt.limit < 1:
            raise UserError(f"a prompt's limit is {prompt.limit}: a completion has at least one token")
        limited.append(replace(prompt, limit=room if prompt.limit is None else min(room, prompt.limit)))
    return limited


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


def token_limit(prompt: Prompt, sampling: Sampling, context: int) -> int:
    """The most tokens that a completion of this prompt may have."""
    asked = sampling.max_tokens if prompt.limit is None else min(prompt.limit, sampling.max_tokens)
    return min(asked, context - len(prompt.tokens))


def up_to_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to and including the first stop string in it."""
    ends = [text.index(string) + len(string) for string in stop if string in text]
    return text[: min(ends)] if ends else text
