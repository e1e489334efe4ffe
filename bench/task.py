"""The task of the whole-step measurements: prompts of a known number of tokens, and a reward that costs nothing.

Imports no torch: the worker that grades loads this file.
"""

from __future__ import annotations

from random import Random

from whet.records import Example, Score

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# One token each in the vocabularies of SmolLM2, Qwen and GPT-2, with and without a space in front.
COMMON = (
    "the and for that with this from have not are but they you all can her was one our out day get has him his how man "
    "new now old see two way who boy did its let put say she too use water long little very after words called just "
    "where most know over such time only people first also could other than then them some these would make like"
)


def word(index: int) -> str:
    """A word of five letters for every id: what the bench's own tokeniser reads as that one id."""
    letters = []
    for _ in range(5):
        index, letter = divmod(index, len(LETTERS))
        letters.append(LETTERS[letter])
    return "".join(letters)


def reward(text: str) -> float:
    """The share of the letter e: cheap, and different for nearly every completion."""
    return text.count("e") / max(1, len(text))


class Words:
    """Prompts of `words` words: of the `size` words of the bench's own tokeniser, or common English ones."""

    name = "words"

    def __init__(self, words: int = 128, size: int = 0) -> None:
        self.words, self.size = words, size

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        """New prompts at every step."""
        random = Random(repr(seed))
        return [self._example(random, f"train-{'-'.join(map(str, seed))}-{index}") for index in range(count)]

    def held_out(self, count: int) -> list[Example]:
        """Prompts that no seed of `draw` names."""
        random = Random("held out")
        return [self._example(random, f"held-out-{index}") for index in range(count)]

    def score(self, example: Example, text: str) -> Score:  # noqa: ARG002 (the same for every example)
        """The share of the letter e."""
        return Score(reward=reward(text), parts={"e": reward(text)})

    def correct(self, example: Example, text: str) -> bool:  # noqa: ARG002
        """Nobody looks at the accuracy of a measurement of speed."""
        return text.startswith("e")

    def _example(self, random: Random, name: str) -> Example:
        if self.size:
            words = [word(random.randrange(1, self.size)) for _ in range(self.words)]
        else:
            words = random.choices(COMMON.split(), k=self.words)
        return Example(id=name, prompt=" ".join(words), answer="e")
