"""Failures of a reward: which row caused one, and how many of them a run tolerates."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from whet.errors import RunFailed
from whet.records import NO_SCORE, Example, Score
from whet.tasks.grading.wire import Failure
from whet.user_code import by_lines

Ask = Callable[[Sequence[int]], list[Score] | Failure]  # scores these rows of a batch


class GradingFailed(RunFailed):
    """A reward function raised, hung, crashed or returned no number; carries the completion."""

    kind = "reward"  # of failure, in the name of its file

    def __init__(self, message: str, *, example: Example, text: str, traceback: str = "") -> None:
        super().__init__(message)
        self.example = example
        self.text = text
        self.traceback = traceback  # of the user's code, if it raised

    @property
    def culprit(self) -> dict[str, Any]:
        return {"example": self.example and asdict(self.example), "text": self.text, **by_lines(self.traceback)}


class Tolerance:
    """How many failures are allowed, and those that happened. Worker threads share it."""

    def __init__(self, allowed: int = 0) -> None:
        self.allowed = allowed
        self.used = 0  # failures that were taken before
        self._new: list[GradingFailed] = []
        self._lock = threading.Lock()

    def add(self, failure: GradingFailed) -> None:
        """Notes a failure, or raises it where it is one too many."""
        with self._lock:
            if self.used + len(self._new) >= self.allowed:
                raise failure
            self._new.append(failure)

    def take(self) -> list[GradingFailed]:
        """The failures since the last call, in an order that does not depend on which worker was first."""
        with self._lock:
            found, self._new = self._new, []
        return sorted(found, key=lambda failure: (failure.example.id, failure.text, str(failure)))


class Blame:
    """Finds the rows of one batch that make its reward fail."""

    def __init__(self, ask: Ask, examples: Sequence[Example], texts: Sequence[str], withheld: Sequence[str]) -> None:
        self.ask, self.examples, self.texts = ask, examples, texts
        self.withheld = withheld  # environment variables that the worker does not get

    def error(self, failure: Failure) -> GradingFailed:
        """The error for a failed batch, with the row that caused it."""
        return self._of_row(failure if failure.row is not None else self._search(failure))

    def tolerated(self, failure: Failure, tolerance: Tolerance) -> list[Score]:
        """Scores of the rows that do not fail, `NO_SCORE` for the others.

        Rows are asked again prompt by prompt, so that a function that compares the completions of a prompt still can;
        where a prompt fails, completion by completion, and then those together that do not fail alone.
        """
        scores = [NO_SCORE] * len(self.examples)
        rows = list(range(len(self.examples)))
        if not self._settle(rows, failure, scores, tolerance):
            for _, group in groupby(rows, key=lambda row: self.examples[row].id):
                self._settle_prompt(list(group), scores, tolerance)
        return scores

    def _settle(
        self, rows: list[int], outcome: list[Score] | Failure, scores: list[Score], tolerance: Tolerance
    ) -> bool:
        """Removes failing rows from `rows` and enters the scores of the rest; False: it is not known which fail."""
        while isinstance(outcome, Failure):
            if outcome.row is None and len(rows) > 1:
                return False
            row = rows.pop(outcome.row or 0)
            tolerance.add(self._of_row(replace(outcome, row=row)))
            outcome = self.ask(rows) if rows else []
        for row, score in zip(rows, outcome, strict=True):
            scores[row] = score
        return True

    def _settle_prompt(self, rows: list[int], scores: list[Score], tolerance: Tolerance) -> None:
        if self._settle(rows, self.ask(rows), scores, tolerance):
            return
        alone = {row: self.ask([row]) for row in rows}
        failed = {row: outcome for row, outcome in alone.items() if isinstance(outcome, Failure)}
        for row, failure in failed.items():
            tolerance.add(self._of_row(replace(failure, row=row)))
        rest = [row for row in rows if row not in failed]
        outcome = self.ask(rest) if rest else []
        if isinstance(outcome, Failure):  # only together
            for row in rest:
                tolerance.add(self._of_row(replace(outcome, row=row)))
            return
        for row, score in zip(rest, outcome, strict=True):
            scores[row] = score

    def _of_row(self, failure: Failure) -> GradingFailed:
        row, message = failure.row or 0, failure.message
        hidden = [name for name in self.withheld if name in message]
        if hidden:
            message += (
                f"; {hidden[0]} looks like a secret and is withheld from the worker: name it in reward.environment"
            )
        example, text = self.examples[row], self.texts[row]
        where = f"(example {example.id}, row {row} of {len(self.examples)})"
        return GradingFailed(f"{message} {where}", example=example, text=text, traceback=failure.traceback)

    def _search(self, failure: Failure) -> Failure:
        """The failure of the first row that fails by itself; of row 0 if rows fail only together."""
        if len(self.examples) == 1:
            return replace(failure, row=0)
        for row in range(len(self.examples)):
            outcome = self.ask([row])
            if isinstance(outcome, Failure):
                return replace(outcome, row=row)
        return replace(failure, row=0, message=f"{failure.message}; no row fails by itself, so this is the first")
