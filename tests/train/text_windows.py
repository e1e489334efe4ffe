"""A small task of real text: a window of it is the prompt, what follows it the answer."""

from collections.abc import Iterator
from dataclasses import dataclass

from whet.records import Example, Score

TEXT = "the cat sat on the mat and the rat ran at the cat; " * 6
HELD_OUT = "a hat sat on that rat, and the mat ran; "


@dataclass(frozen=True)
class Windows:
    """`context` characters, then `length` more."""

    context: int = 4
    length: int = 8
    name: str = "windows"

    @property
    def alphabet(self) -> str:
        return "".join(sorted(set(TEXT + HELD_OUT)))

    def training_text(self) -> Iterator[str]:
        yield TEXT

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        places = [(31 * sum(seed) + 17 * n) % (len(TEXT) - self.context - self.length) for n in range(count)]
        return [self._window(TEXT, place) for place in places]

    def held_out(self, count: int) -> list[Example]:
        return [self._window(HELD_OUT, place, "held-out-") for place in range(min(count, 20))]

    def score(self, example: Example, text: str) -> Score:
        return Score(reward=float(text == example.answer), parts={})

    def correct(self, example: Example, text: str) -> bool | None:
        return text.startswith(example.answer)

    def _window(self, text: str, place: int, kind: str = "") -> Example:
        middle = place + self.context
        return Example(id=f"{kind}{place}", prompt=text[place:middle], answer=text[middle : middle + self.length])
