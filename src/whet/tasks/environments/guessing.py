"""Number guessing: a secret number, guesses, and whether it is higher or lower. Bisection always finds it in time.

    reward = 0.5 · found + 0.5 · knowledge

`knowledge` is paid turn by turn: what a guess says of the secret, in bits, out of all that there are to know. A guess
in the middle of the numbers that are left says most. As many guesses are allowed as bisection needs at worst. All
numbers are written with as many digits as the highest one: a policy that begins at random would otherwise settle on
short ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from whet.errors import UserError
from whet.records import Example, Score
from whet.tasks.space import Problem, Space, fingerprint

FOUND_WEIGHT = 0.5
KNOWLEDGE_WEIGHT = 0.5
HIGHEST_LEVEL = 8
GAMES = 10_000  # each with a secret of its own, which its number does not tell
HIGHER, LOWER, NO_GUESS, RIGHT = "+", "-", "?", "="
SIGN = ":"  # after the number of the game


@dataclass(frozen=True, kw_only=True)
class Guessing:
    """Find a number from "higher" (+) and "lower" (-), in as few guesses as bisection needs."""

    level: int = 1  # 1 … 8: numbers from 1 to 2^(level + 2) − 1, with zeros in front, and level + 2 guesses

    name = "guessing"

    def __post_init__(self) -> None:
        if not 1 <= self.level <= HIGHEST_LEVEL:
            raise UserError(f"task guessing: level is {self.level}, must be between 1 and {HIGHEST_LEVEL}")

    @property
    def guesses(self) -> int:
        return self.level + 2

    @property
    def highest(self) -> int:
        return int(2**self.guesses) - 1

    @property
    def alphabet(self) -> str:
        return "".join(sorted("0123456789" + HIGHER + LOWER + NO_GUESS + RIGHT + SIGN))

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(problem) for problem in self._space.training(count, seed)]

    def held_out(self, count: int) -> list[Example]:
        return [self._example(problem) for problem in self._space.held_out(count)]

    def score(self, example: Example, text: str) -> Score:
        found = float(self.correct(example, text))
        return Score(reward=FOUND_WEIGHT * found, parts={"correct": found})

    def correct(self, example: Example, text: str) -> bool:
        return text == example.answer

    def environment(self) -> "GuessingGame":
        return GuessingGame(highest=self.highest, guesses=self.guesses)

    def move(self, example: Example, texts: Sequence[str]) -> str:
        """The middle of the numbers that are left after these guesses."""
        game = self.environment()
        game.reset(example)
        for text in texts:
            game.step(text)
        return self._written((game.low + game.high) // 2)

    @cached_property
    def _space(self) -> Space:
        return Space(sizes=(GAMES,), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        question = f"{index:0{len(str(GAMES - 1))}d}"
        secret = 1 + fingerprint("secret", self.highest, index) % self.highest
        return Problem(question=question, answer=self._written(secret), twin=question)

    def _written(self, number: int) -> str:
        return f"{number:0{len(str(self.highest))}d}"

    def _example(self, problem: Problem) -> Example:
        columns = {"question": problem.question, "level": self.level}
        return Example(
            id=f"{self.name}:{problem.question}",
            prompt=f"{problem.question}{SIGN}",
            answer=problem.answer,
            columns=columns,
            twin=problem.twin,
        )


class GuessingGame:
    """One game. Its outcome is the newest guess."""

    def __init__(self, *, highest: int, guesses: int) -> None:
        self.low, self.high = 1, highest  # between them is the secret, as far as the guesses tell
        self._all, self._guesses = highest, guesses
        self._secret = self._used = 0
        self._last = ""

    def reset(self, example: Example) -> str:
        self.low, self.high, self._used, self._last = 1, self._all, 0, ""
        self._secret = int(example.answer)
        return ""

    def step(self, text: str) -> tuple[str, float, bool]:
        self._used += 1
        is_last = self._used >= self._guesses
        if not (text.isascii() and text.isdecimal() and len(text) == len(str(self._all))):
            return NO_GUESS, 0.0, is_last
        self._last, guess = text, int(text)
        before = self.high - self.low + 1
        if guess == self._secret:
            self.low = self.high = guess
            answer = RIGHT
        elif guess < self._secret:
            self.low = max(self.low, guess + 1)
            answer = HIGHER
        else:
            self.high = min(self.high, guess - 1)
            answer = LOWER
        learned = math.log(before / (self.high - self.low + 1), self._all)
        return answer, KNOWLEDGE_WEIGHT * learned, is_last or answer == RIGHT

    def outcome(self) -> str:
        return self._last
