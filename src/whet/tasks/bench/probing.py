"""Grading of completions that may break a reward: what raises, hangs or gives no number becomes a record."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from whet.errors import RunFailed
from whet.records import Example
from whet.tasks.bench.subjects import Subject
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.protocol import Grader

BATCH = 64  # completions graded together
BATCH_CHARACTERS = 400_000
MOST_PROBLEMS = 12  # of one attack; its other completions are not graded
MOST_HANGS = 1  # of all: each costs the time limit, and one is proof
# As `tasks/grading` words them.
HUNG = re.compile(r"took longer than \S+ s and was stopped")
OUT_OF_RANGE = re.compile(r" gave (?:\S+ = )?-?(?:nan|inf)\b| gave .*, beyond ±")
WRONG_TYPE = re.compile(r" gave (?:a \w+|.* rewards) for | gave a \w+, not a | gave an? \w+, not ")


class Attempt(NamedTuple):
    example: Example
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A completion that the reward could not score."""

    kind: str  # hang, range, type or crash
    message: str
    attempt: Attempt


class Probe:
    """A grader that survives its reward, and counts."""

    def __init__(self, subject: Subject, seconds: float) -> None:
        self._grader: Grader = subject.grader(seconds)
        self._may_abstain = bool(subject.rewards)
        self.problems: list[Problem] = []
        self.graded, self.seconds = 0, 0.0

    @property
    def hangs(self) -> int:
        return sum(problem.kind == "hang" for problem in self.problems)

    def scores(self, attempts: Sequence[Attempt]) -> list[float | None]:
        """The reward of each; None where it has none: the function abstained, or could not score it."""
        found: dict[int, float | None] = {}
        before = len(self.problems)
        for batch in _batches(attempts):
            waiting = list(batch)
            while waiting and len(self.problems) - before < MOST_PROBLEMS and self.hangs < MOST_HANGS:
                problem, scores = self._attempted([attempts[place] for place in waiting])
                if problem is None:
                    found.update(zip(waiting, scores, strict=True))
                    break
                self.problems.append(problem)
                del waiting[[attempts[place] for place in waiting].index(problem.attempt)]
        return [found.get(place) for place in range(len(attempts))]

    def close(self) -> None:
        self._grader.close()

    def _attempted(self, batch: Sequence[Attempt]) -> tuple[Problem | None, list[float | None]]:
        began = time.perf_counter()
        try:
            scores = self._grader.grade([one.example for one in batch], [one.text for one in batch])
        except GradingFailed as error:
            attempt = Attempt(error.example, error.text)
            return Problem(kind=_kind(str(error)), message=str(error), attempt=attempt), []
        except RunFailed as error:  # it broke the protocol of its worker
            return Problem(kind="crash", message=str(error), attempt=batch[0]), []
        self.seconds += time.perf_counter() - began
        self.graded += len(batch)
        return None, [None if self._may_abstain and not score.parts else score.reward for score in scores]


def _kind(message: str) -> str:
    kinds = {"hang": HUNG, "range": OUT_OF_RANGE, "type": WRONG_TYPE}
    return next((kind for kind, pattern in kinds.items() if pattern.search(message)), "crash")


def _batches(attempts: Sequence[Attempt]) -> Iterator[list[int]]:
    batch: list[int] = []
    characters = 0
    for place, attempt in enumerate(attempts):
        if batch and (len(batch) == BATCH or characters + len(attempt.text) > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(place)
        characters += len(attempt.text)
    if batch:
        yield batch
