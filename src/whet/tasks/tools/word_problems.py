"""Word problems with a calculator: those of a file, as GSM8K has them, or problems of our own made from their number.

reward = correct: 1 if the final answer of the turn that calls no tool equals that of the problem, else 0
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from whet.records import Example, Message, Score
from whet.tasks.loading import load_task
from whet.tasks.matching import Matcher
from whet.tasks.protocol import Task
from whet.tasks.space import HELD_OUT_SHARE, Problem, Space, fingerprint
from whet.tasks.tools.tool_task import WithTools

NAMES = ("Ada", "Ben", "Chloe", "Dev", "Eva", "Finn", "Gita", "Hugo")
THINGS = ("apples", "stamps", "marbles", "pencils", "cards", "shells")
LEAST, NUMBERS = 12, 40  # the numbers of a problem, too large to multiply by heart
INSTRUCTION = r"Use the calculator where it helps, and put your final answer within \boxed{}."


class Story(NamedTuple):
    """A kind of problem: its text with names and numbers, and its answer by the numbers."""

    text: str
    answer: Callable[[int, int, int], int]


STORIES = (
    Story("{name} buys {a} boxes with {b} {things} each and gives {c} away. How many {things} are left?",
          lambda a, b, c: a * b - c),
    Story("{name} has {a} {things}. {other} has {b} times as many, and finds {c} more. How many have both together?",
          lambda a, b, c: a + a * b + c),
    Story("A ticket costs ${a}. {name} sells {b} tickets on Monday and {c} on Tuesday. How many dollars come in?",
          lambda a, b, c: a * (b + c)),
    Story("{name} reads {a} pages a day for {b} days, and {other} reads {c} pages a day as long. How many pages "
          "more or fewer than {other} has {name} read? Give a negative number for fewer.", lambda a, b, c: b * (a - c)),
    Story("A hall has {a} rows of {b} chairs and {c} chairs along the wall. {name} puts a card on every chair but one. "
          "How many cards are that?", lambda a, b, c: a * b + c - 1),
    Story("{name} saves ${a} a week for {b} weeks, then spends ${c} and half of what is left, rounded down to a "
          "dollar. How many dollars remain?", lambda a, b, c: (a * b - c) - (a * b - c) // 2),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WordProblems(WithTools):
    """Word problems with a calculator, of a file or made here."""

    path: str = ""  # rows with `question` and `answer`, as GSM8K has them; empty: problems made here
    held_out_share: float = HELD_OUT_SHARE  # of the rows of a file
    limit: int | None = None  # read only the first rows

    name = "word_problems"

    @cached_property
    def _inner(self) -> Task:
        if not self.path:
            return Stories()
        options: dict[str, Any] = {"path": self.path, "held_out_share": self.held_out_share, "limit": self.limit}
        return load_task("maths", {**options, "instruction": INSTRUCTION, "last_number": True})


class Stories:
    """Problems of several kinds, with names and numbers by their index."""

    name = "stories"

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [_example(problem) for problem in self._space.training(count, seed)]

    def held_out(self, count: int) -> list[Example]:
        return [_example(problem) for problem in self._space.held_out(count)]

    def score(self, example: Example, text: str) -> Score:
        right = float(self.correct(example, text))
        return Score(reward=right, parts={"correct": right})

    def correct(self, example: Example, text: str) -> bool:
        return self._matcher.is_right(example.answer, text)

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(way="maths", last_number=True)

    @cached_property
    def _space(self) -> Space:
        return Space(sizes=(NUMBERS**3,) * len(STORIES), problem=_problem)


def _problem(kind: int, index: int) -> Problem:
    a, b, c = (LEAST + index // NUMBERS**power % NUMBERS for power in range(3))
    first = fingerprint("names", kind, index)
    name, other = NAMES[first % len(NAMES)], NAMES[(first + 1) % len(NAMES)]
    text = STORIES[kind].text.format(name=name, other=other, things=THINGS[first // 8 % len(THINGS)], a=a, b=b, c=c)
    return Problem(question=text, answer=str(STORIES[kind].answer(a, b, c)), twin=f"{kind}: {a} {b} {c}")


def _example(problem: Problem) -> Example:
    return Example(
        id=f"stories:{problem.twin}",
        prompt=(Message(role="user", content=f"{problem.question}\n{INSTRUCTION}"),),
        answer=f"\\boxed{{{problem.answer}}}",
        columns={"question": problem.question},
        twin=problem.twin,
    )
