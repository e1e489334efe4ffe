"""Rewards of texts, each asked for once."""

from collections.abc import Sequence
from typing import Protocol

from whet.redteam.cases import Prompt


class Reward(Protocol):
    """A reward model, or any other function of prompts and completions: higher is better."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[str], /) -> list[float]:
        """One reward each."""
        ...


class Asked:
    """A reward that remembers what it was asked."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.texts = 0  # that were scored
        self._known: dict[tuple[Prompt, str], float] = {}

    def of(self, pairs: Sequence[tuple[Prompt, str]]) -> list[float]:
        """The reward of each (prompt, completion)."""
        new = list(dict.fromkeys(pair for pair in pairs if pair not in self._known))
        if new:
            self.texts += len(new)
            scores = self.reward.score([prompt for prompt, _ in new], [text for _, text in new])
            self._known |= dict(zip(new, map(float, scores), strict=True))
        return [self._known[pair] for pair in pairs]
