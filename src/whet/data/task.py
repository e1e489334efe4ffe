"""The prompts of a data set as a task, without a metric: the reward comes from elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from whet.data.formats import Record, answers_of
from whet.data.sources import Source, load_rows
from whet.data.split import salt_of, split_rows
from whet.records import Example, Score
from whet.tasks.rows import StoredTask
from whet.tasks.space import HELD_OUT_SHARE


@dataclass(frozen=True, kw_only=True)
class DataTask(StoredTask):
    """Prompts of a file or data set without reference answers: a reward has to come from elsewhere."""

    path: str
    format: str = "auto"
    split: str = "train"
    subset: str = ""
    chat: bool = False
    held_out_share: float = HELD_OUT_SHARE
    max_skipped: float = 0.01
    limit: int | None = None  # read only the first rows

    @property
    def name(self) -> str:
        return "data"

    def score(self, example: Example, text: str) -> Score:  # noqa: ARG002 - the protocol's signature
        return Score(reward=0.0, parts={})

    def correct(self, example: Example, text: str) -> None:
        """No completion is right or wrong."""

    @cached_property
    def _sides(self) -> tuple[list[Example], list[Example]]:
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "held_out_share"}
        loaded = load_rows(Source(**options))
        training, evaluation = (
            _examples(side) for side in split_rows(loaded.rows, self.held_out_share, salt=salt_of(self.path))
        )
        return training, evaluation


def _examples(rows: Sequence[Record]) -> list[Example]:
    """One example per distinct prompt; its answer is the first completion in the data."""
    found: dict[object, Example] = {}
    for row in rows:
        asked = row.prompt
        found.setdefault(asked, Example(id=row.id, prompt=asked, answer=answers_of(row)[0], twin=row.twin))
    return list(found.values())
