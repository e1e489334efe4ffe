"""Countdown: an expression of given numbers, each used once, that makes a target.

reward = 1     if the expression has the target's value and uses each number exactly once
         0.1   if it uses each number exactly once and has another value
         0     otherwise
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from whet.records import Example, Score
from whet.tasks.procedural import Procedural
from whet.tasks.puzzles.expressions import NotAnExpression, read_expression
from whet.tasks.puzzles.final_answer import final_answer
from whet.tasks.space import Problem, Space, fingerprint

OPERATIONS = "+-*/"
LEGAL = 0.1
INSTRUCTION = (
    "{question} You may use +, -, *, / and brackets, and must use each number exactly once. Answer with one expression "
    "between <answer> and </answer>, for example <answer>(1 + 2) * 3</answer>."
)
EQUATION = re.compile(r"^(.*?)=\s*(-?\d[\d,]*(?:\.\d*)?)\s*$", re.DOTALL)  # an expression and what it is said to make


class Size(NamedTuple):
    """How many numbers, and the largest of them."""

    numbers: int
    largest: int


LEVELS = {1: Size(3, 9), 2: Size(3, 25), 3: Size(4, 25), 4: Size(3, 99), 5: Size(4, 99)}


@dataclass(frozen=True, kw_only=True)
class Countdown(Procedural):
    """Countdown with 3 numbers up to 9 (level 1) to 4 numbers up to 99 (level 5)."""

    name = "countdown"
    highest_level = max(LEVELS)
    instruction = INSTRUCTION

    @property
    def _characters(self) -> str:
        return "".join(chr(code) for code in range(32, 127)) if self.chat else "0123456789,:()" + OPERATIONS

    @property
    def _space(self) -> Space:
        numbers, largest = LEVELS[self.level]
        return Space(sizes=(largest**numbers,), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        """The numbers of an index, and a target that operations in an order, both chosen by a hash, make of them."""
        assert kind == 0
        count, largest = LEVELS[self.level]
        numbers = []
        for _ in range(count):
            index, number = divmod(index, largest)
            numbers.append(number + 1)
        chosen = fingerprint("countdown", *numbers)
        operations = [OPERATIONS[chosen // len(OPERATIONS) ** place % len(OPERATIONS)] for place in range(count - 1)]
        order = sorted(range(count), key=lambda place: fingerprint("order", *numbers, place))
        value, text = numbers[order[0]], str(numbers[order[0]])
        for operation, place in zip(operations, order[1:], strict=True):
            number = numbers[place]
            value, text = _applied(operation, value, text, number)
        given = ",".join(map(str, numbers))
        return Problem(question=f"{given}:{value}", answer=text, twin=",".join(map(str, sorted(numbers))))

    def _spelled(self, question: str) -> str:
        return spelled(question)

    def _last(self, text: str) -> str:
        return final_answer(text)

    def score(self, example: Example, text: str) -> Score:
        return countdown_score(self._given(text), str(example.columns["question"]))

    def correct(self, example: Example, text: str) -> bool:
        return self.score(example, text).parts["correct"] == 1

    def wrong_play(self, example: Example, *, seed: int) -> list[str]:
        """Expressions of the given numbers with another value, and the target made of other numbers."""
        given, _, target = str(example.columns["question"]).partition(":")
        numbers = sorted(given.split(","), key=lambda number: fingerprint("order", seed, example.id, number))
        legal = [sign.join(numbers) for sign in OPERATIONS] + [f"({numbers[0]}-{numbers[1]})*{'+'.join(numbers[2:])}"]
        missed = [text for text in legal if read_expression(text).value != int(target)]
        return [*missed, target, f"{target}+0", f"{example.answer}+1-1", f"{given} = {target}"]


def spelled(question: str) -> str:
    """A question such as 3,5,2:16 in words."""
    numbers, _, target = question.partition(":")
    return f"Make {target} from the numbers {numbers.replace(',', ', ')}."


def countdown_score(answer: str, question: str) -> Score:
    """The score of an expression for a question such as 3,5,2:16."""
    given, _, target = question.partition(":")
    legal, right = grade(answer, [int(number) for number in given.split(",")], int(target))
    return Score(reward=1.0 if right else LEGAL * legal, parts={"correct": float(right), "legal": float(legal)})


def grade(answer: str, numbers: list[int], target: int) -> tuple[bool, bool]:
    """Whether an expression uses each number exactly once, and whether it makes the target too."""
    said = EQUATION.match(answer)
    try:
        expression = read_expression(said[1] if said else answer)
    except NotAnExpression:
        return False, False
    legal = sorted(expression.numbers) == sorted(numbers)
    is_true = said is None or Fraction(said[2].replace(",", "").rstrip(".")) == expression.value
    return legal, legal and expression.value == target and is_true


def _applied(operation: str, value: int, text: str, number: int) -> tuple[int, str]:
    """The value and text of a further operation on a number; of one that makes no whole number above 0, a sum."""
    inner = text if text.isdigit() else f"({text})"
    if operation == "/" and value % number == 0:
        return value // number, f"{inner}/{number}"
    if operation == "-" and value != number:
        return abs(value - number), f"{inner}-{number}" if value > number else f"{number}-{inner}"
    if operation == "*":
        return value * number, f"{inner}*{number}"
    return value + number, f"{inner}+{number}"
