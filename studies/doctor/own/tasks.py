"""Tasks of the study: most have a mistake in their prompts."""

from dataclasses import dataclass, replace
from string import ascii_lowercase

from whet.records import Example, Message
from whet.tasks.procedural import Reverse, Sorting


@dataclass(frozen=True, kw_only=True)
class FewSorting(Sorting):
    """Trains on `prompts` prompts again and again."""

    prompts: int = 4

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        few = super().draw(self.prompts, seed=(0,))
        return [few[(sum(seed) + place) % len(few)] for place in range(count)]


@dataclass(frozen=True, kw_only=True)
class FewReverse(Reverse):
    """Trains on `prompts` prompts again and again."""

    prompts: int = 4

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        few = super().draw(self.prompts, seed=(0,))
        return [few[(sum(seed) + place) % len(few)] for place in range(count)]


@dataclass(frozen=True, kw_only=True)
class SeenSorting(Sorting):
    """Evaluates on prompts that are trained on: the split was made after rows had been copied."""

    seen: int = 40

    def held_out(self, count: int) -> list[Example]:
        return super().draw(min(count, self.seen), seed=(0,))

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        held, fresh = self.held_out(self.seen), super().draw(count, seed=seed)
        return [held[(seed[-1] * count + place) % len(held)] if place % 2 else one for place, one in enumerate(fresh)]


@dataclass(frozen=True, kw_only=True)
class ShownReverse(Reverse):
    """Prompts that show the answer: the column of the answer was joined into them."""

    @property
    def alphabet(self) -> str:
        return "".join(sorted({*super().alphabet, "="}))

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [_shown(one) for one in super().draw(count, seed=seed)]

    def held_out(self, count: int) -> list[Example]:
        return [_shown(one) for one in super().held_out(count)]


def _shown(one: Example) -> Example:
    return replace(one, prompt=f"{one.columns['question']}={one.answer}>")


@dataclass(frozen=True, kw_only=True)
class ChatReverse(Reverse):
    """Words to reverse, as messages: the chat template writes the prompt."""

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [_asked(one) for one in super().draw(count, seed=seed)]

    def held_out(self, count: int) -> list[Example]:
        return [_asked(one) for one in super().held_out(count)]


def _asked(one: Example) -> Example:
    return replace(one, prompt=(Message(role="user", content=str(one.prompt)),))


@dataclass(frozen=True, kw_only=True)
class Shifted(Reverse):
    """Nothing is wrong with it: every letter of a word gives way to the next of its letters, the last to the first."""

    name = "shifted"

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._shifted(one) for one in super().draw(count, seed=seed)]

    def held_out(self, count: int) -> list[Example]:
        return [self._shifted(one) for one in super().held_out(count)]

    def _shifted(self, one: Example) -> Example:
        letters = ascii_lowercase[: self.letters]
        following = str.maketrans(letters, letters[1:] + letters[0])
        return replace(one, answer=one.columns["question"].translate(following))


@dataclass(frozen=True, kw_only=True)
class FewShifted(Shifted):
    """Trains on `prompts` prompts again and again."""

    prompts: int = 4

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        few = super().draw(self.prompts, seed=(0,))
        return [few[(sum(seed) + place) % len(few)] for place in range(count)]
