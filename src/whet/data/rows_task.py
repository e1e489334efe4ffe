"""Rows with a `prompt`, an `answer` and any other columns as a task: `data` with stricter defaults."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from whet.data.sources import Loaded
from whet.data.task import DataTask
from whet.records import Example


@dataclass(frozen=True, kw_only=True)
class RowsTask(DataTask):
    """Rows with `prompt`, `answer` and other columns, scored by a match with `answer`; every row must be readable."""

    repeats: ClassVar[bool] = True  # rows with the same prompt may differ in their answers and other columns
    format: str = "prompts"  # as data.format
    match: str = "exact"  # how a completion gives the answer: exact, number, boxed, choice, regex, maths
    max_skipped: float = 0.0  # share of broken rows above which reading is refused

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._sides  # broken rows are refused before a run begins

    @property
    def name(self) -> str:
        return "rows"

    def _matchable(self, examples: Sequence[Example], loaded: Loaded, side: str) -> Sequence[Example]:  # noqa: ARG002
        """All of them: a row without an answer is never correct by match, and may be scored by reward functions."""
        return examples
