"""Tasks whose environments are scripts, and an engine that says what it is told to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.records import Completion, Example, Message, Prompt, Sampling, Score

ALPHABET = "0123456789+=>abcdefgh"


class Script:
    """Answers the n-th turn with the n-th of its lines; the last is the end."""

    def __init__(self, lines: Sequence[tuple[str, float]], opening: str = "") -> None:
        self.lines, self.opening, self.heard = lines, opening, list[str]()

    def reset(self, example: Example) -> str:
        self.heard = []
        return self.opening

    def step(self, text: str) -> tuple[str, float, bool]:
        self.heard.append(text)
        observation, reward = self.lines[len(self.heard) - 1]
        return observation, reward, len(self.heard) == len(self.lines)


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """A task played in turns; it grades the last text."""

    lines: Sequence[tuple[str, float]] = (("+1", 0.25), ("+2", 0.0), ("=3", 0.5))
    opening: str = ""
    chat: bool = False

    name = "scripted"
    alphabet = ALPHABET

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(number) for number in range(count)]

    def held_out(self, count: int) -> list[Example]:
        return [self._example(100 + number) for number in range(count)]

    def score(self, example: Example, text: str) -> Score:
        return Score(reward=float(len(text) % 2), parts={"odd": float(len(text) % 2)})

    def correct(self, example: Example, text: str) -> bool:
        return text == example.answer

    def environment(self) -> Script:
        return Script(self.lines, self.opening)

    def _example(self, number: int) -> Example:
        text = f"{number}>"
        prompt = (Message(role="user", content=text),) if self.chat else text
        return Example(id=str(number), prompt=prompt, answer="a")


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

