"""Tasks whose environments are scripts; worker processes load them by name."""

from collections.abc import Sequence
from dataclasses import dataclass

from whet.records import Example, Message, Score

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


@dataclass(frozen=True, kw_only=True)
class Unpaid(Scripted):
    """The same without rewards for turns."""

    lines: Sequence[tuple[str, float]] = (("+1", 0.0), ("+2", 0.0), ("=3", 0.0))
