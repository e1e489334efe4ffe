"""Procedurally generated tasks: arithmetic, reversing words, sorting digits.

    reward = 0.8 · correct + 0.2 · partial

`partial` is the share of characters in the right position, out of the longer of the two texts. A correct answer earns
exactly 1 and a wrong one less than 0.2, so neither listing several answers nor adding text pays.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from string import ascii_lowercase
from typing import ClassVar, NamedTuple

from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.space import Problem, Space, fingerprint

CORRECT_WEIGHT = 0.8
PARTIAL_WEIGHT = 0.2


@dataclass(frozen=True, kw_only=True)
class Procedural(ABC):
    """A task whose problems are computed from their index."""

    level: int = 1  # difficulty, from 1 on
    chat: bool = False  # ask in words, and grade the end of the answer

    name: ClassVar[str]
    highest_level: ClassVar[int]
    instruction: ClassVar[str]  # with {question}; for chat
    sign: ClassVar[str] = ">"  # between question and answer otherwise

    def __post_init__(self) -> None:
        if not 1 <= self.level <= self.highest_level:
            raise UserError(f"task {self.name}: level is {self.level}, must be between 1 and {self.highest_level}")
        self._space.require_both_sides(f"task {self.name} at level {self.level}{self._variant}")

    @property
    def alphabet(self) -> str:
        frame = self.instruction.format(question="") if self.chat else self.sign
        return "".join(sorted(set(self._characters + frame)))

    @property
    def problems(self) -> int:
        """How many there are, training and held-out."""
        return sum(self._space.sizes)

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(problem) for problem in self._space.training(count, seed)]

    def held_out(self, count: int) -> list[Example]:
        return [self._example(problem) for problem in self._space.held_out(count)]

    def score(self, example: Example, text: str) -> Score:
        return mark(self._given(text), example.answer)

    def correct(self, example: Example, text: str) -> bool:
        return self._given(text) == example.answer

    def vote(self, example: Example, text: str) -> str | None:  # noqa: ARG002
        """The final answer of a completion, for a majority vote."""
        return self._given(text) or None

    def wrong_play(self, example: Example, *, seed: int) -> list[str]:
        """Near misses: a character of the answer changed, left out or added, the answer reversed, and the question."""
        answer = example.answer
        place = fingerprint("miss", seed, example.id) % len(answer)
        before, own, after = answer[:place], answer[place], answer[place + 1 :]
        other = next(character for character in self._characters if character.strip() and character != own)
        misses = (before + other + after, before + after, answer + other, answer[::-1], example.columns["question"])
        return [miss for miss in dict.fromkeys(misses) if miss and not miss.endswith(answer)]

    @property
    def _variant(self) -> str:
        """Options other than the level, for errors."""
        return ""

    @property
    @abstractmethod
    def _space(self) -> Space: ...

    @property
    @abstractmethod
    def _characters(self) -> str:
        """The characters of questions and answers."""

    @abstractmethod
    def _last(self, text: str) -> str:
        """The final answer in a chat completion."""

    def _spelled(self, question: str) -> str:
        """The question as the instruction shows it."""
        return question

    def _example(self, problem: Problem) -> Example:
        request = self.instruction.format(question=self._spelled(problem.question))
        return Example(
            id=f"{self.name}:{problem.question}",
            prompt=(Message(role="user", content=request),) if self.chat else f"{problem.question}{self.sign}",
            answer=problem.answer,
            columns={"question": problem.question, "level": self.level},
            twin=problem.twin,
        )

    def _given(self, text: str) -> str:
        return self._last(text) if self.chat else text.strip()


def mark(given: str, answer: str) -> Score:
    correct = float(given == answer)
    partial = share_in_place(given, answer)
    reward = CORRECT_WEIGHT * correct + PARTIAL_WEIGHT * partial
    return Score(reward=reward, parts={"correct": correct, "partial": partial})


def share_in_place(given: str, answer: str) -> float:
    """The share of positions with the same character, out of the longer text; 0 if both are empty."""
    longest = max(len(given), len(answer))
    same = sum(a == b for a, b in zip(given, answer, strict=False))
    return same / longest if longest else 0.0


class Kind(NamedTuple):
    """One operation, and the largest number of digits of its operands."""

    operation: str
    left_digits: int
    right_digits: int


LEVELS: dict[int, tuple[Kind, ...]] = {
    1: (Kind("+", 1, 1),),
    2: (Kind("+", 2, 2),),
    3: (Kind("+", 2, 2), Kind("-", 2, 2)),
    4: (Kind("+", 3, 3), Kind("-", 3, 3), Kind("*", 2, 1)),
    5: (Kind("+", 4, 4), Kind("-", 4, 4), Kind("*", 3, 2)),
}
# A minus after a digit is an operator: "7-12=-5" holds 7, 12 and -5.
NUMBER = re.compile(r"(?:(?<!\d)-)?\d[\d,]*(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Procedural):
    """Arithmetic with one (level 1) to four digits (level 5): + from level 1, - from level 3, * from level 4."""

    name = "arithmetic"
    highest_level = max(LEVELS)
    instruction = "What is {question}? Think if you must, and end with the number."
    sign = "="

    @property
    def _characters(self) -> str:
        return "0123456789" + "".join(kind.operation for kind in LEVELS[self.level])

    @property
    def _space(self) -> Space:
        sizes = tuple(10 ** (kind.left_digits + kind.right_digits) for kind in LEVELS[self.level])
        return Space(sizes=sizes, problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        operation, _, right_digits = LEVELS[self.level][kind]
        left, right = divmod(index, 10**right_digits)
        results = {"+": left + right, "-": left - right, "*": left * right}
        small, large = sorted((left, right))
        return Problem(
            question=f"{left}{operation}{right}", answer=str(results[operation]), twin=f"{small}{operation}{large}"
        )

    def _last(self, text: str) -> str:
        return last_number(text)


def last_number(text: str) -> str:
    """The last number in the text, without thousands separators and zero decimals; "" if there is none."""
    numbers = NUMBER.findall(text.replace("−", "-"))
    if not numbers:
        return ""
    whole, _, decimals = numbers[-1].replace(",", "").partition(".")
    return f"{whole}.{decimals}" if decimals.strip("0") else whole


@dataclass(frozen=True, kw_only=True)
class Reverse(Procedural):
    """Reversal of a made-up word of 3 (level 1) to 12 letters (level 10)."""

    letters: int = 26  # 2 … 26: size of the alphabet, from a on

    name = "reverse"
    highest_level = 10
    instruction = 'Write the letters of "{question}" in reverse order. End with the reversed word.'

    def __post_init__(self) -> None:
        if not 2 <= self.letters <= len(ascii_lowercase):
            raise UserError(f"task {self.name}: letters is {self.letters}, must be between 2 and 26")
        super().__post_init__()

    @property
    def _variant(self) -> str:
        return f" with {self.letters} letters"

    @property
    def _characters(self) -> str:
        return ascii_lowercase[: self.letters]

    @property
    def _space(self) -> Space:
        return Space(sizes=(self.letters ** (self.level + 2),), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        word = ""
        for _ in range(self.level + 2):
            index, letter = divmod(index, self.letters)
            word += ascii_lowercase[letter]
        backwards = word[::-1]
        return Problem(question=word, answer=backwards, twin=min(word, backwards))

    def _last(self, text: str) -> str:
        return last_word(text)


def last_word(text: str) -> str:
    """The last run of letters in lower case; "" if there is none."""
    words = re.findall(r"[a-z]+", text.lower())
    return str(words[-1]) if words else ""


@dataclass(frozen=True, kw_only=True)
class Sorting(Procedural):
    """Sorting of 3 (level 1) to 12 digits (level 10), smallest first; digits may repeat."""

    name = "sorting"
    highest_level = 10
    instruction = "Sort these digits from smallest to largest: {question}. End with the sorted digits."

    @property
    def _characters(self) -> str:
        return "0123456789"

    @property
    def _space(self) -> Space:
        return Space(sizes=(10 ** (self.level + 2),), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        digits = str(index).zfill(self.level + 2)
        answer = "".join(sorted(digits))
        return Problem(question=digits, answer=answer, twin=answer)

    def _spelled(self, question: str) -> str:
        return " ".join(question)

    def _last(self, text: str) -> str:
        return last_digits(text)


def last_digits(text: str) -> str:
    """The last run of digits, without spaces and commas; "" if there is none."""
    runs = re.findall(r"[0-9](?:[ ,]*[0-9])*", text)
    return re.sub(r"[ ,]", "", runs[-1]) if runs else ""
