"""An engine that says what it is told to."""

from collections.abc import Sequence
from typing import Any

from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.records import Completion, Prompt, Sampling


class Puppet:
    """Says the same texts in every conversation, turn by turn, and remembers its prompts."""

    is_exact = True

    def __init__(self, tokenizer: HuggingFaceTokenizer, says: Sequence[str]) -> None:
        self.tokenizer, self.says = tokenizer, says
        self.rounds: list[list[Prompt]] = []

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1, on_group: Any = None
    ) -> list[list[Completion]]:
        said = self.says[len(self.rounds)]
        self.rounds.append(list(prompts))
        return [[self._said(said, prompt, sampling)] * count for prompt in prompts]

    def sync(self, policy: Any, *, version: int) -> None:
        """Has no weights."""

    def close(self) -> None:
        """Owns nothing."""

    def _said(self, text: str, prompt: Prompt, sampling: Sampling) -> Completion:
        whole = [*self.tokenizer.encode(text), self.tokenizer.eos]
        limit = sampling.max_tokens if prompt.limit is None else min(prompt.limit, sampling.max_tokens)
        ids = whole[:limit]
        logprobs = tuple(-0.5 - place for place in range(len(ids)))
        finish = "stop" if len(ids) == len(whole) else "length"
        return Completion(tokens=tuple(ids), logprobs=logprobs, text=self.tokenizer.decode(ids), finish=finish)
