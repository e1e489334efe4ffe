"""The engine protocol: prompts in, completions with log-probs out. Knows nothing about rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from whet.models.protocol import CausalLM
from whet.records import Completion, Prompt, Sampling

OnToken = Callable[[int, int, int], None]  # prompt, sample, token: told of every token as it is sampled


class Engine(Protocol):
    """Turns prompts into completions with the weights it was last given. `check_engine` tests an implementation."""

    @property
    def is_exact(self) -> bool:
        """Whether its log-probs are the trainer's to 1e-5, so that training may take them for its own."""
        ...

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1) -> list[list[Completion]]:
        """`count` completions of each prompt, in order."""
        ...

    def sync(self, policy: CausalLM, *, version: int) -> None:
        """From now on sample with these weights."""
        ...

    def close(self) -> None: ...
