"""A task from rows with the columns `prompt`, `answer` and any others."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

from whet import files
from whet.errors import UserError
from whet.files.mapping import Columns, column_names, mapped, renamed_columns, require_columns, suggestion
from whet.files.stored_rows import stored_rows
from whet.records import Example, Message, Score
from whet.tasks.matching import Matcher
from whet.tasks.space import HELD_OUT_SHARE, epoch_places, first_held_out, held_out_sides

RESERVED = ("prompts", "completions")  # argument names of reward functions
LOOKED_AT = 20  # rows in which the columns of a mapping are looked for


Sides = tuple[Sequence[Example], Sequence[Example]]  # for training and for evaluation, in row order


class StoredTask(ABC):
    """A task whose examples are rows of a file or data set."""

    @cached_property
    @abstractmethod
    def _sides(self) -> Sides:
        """The training and the evaluation examples; on disk if the rows are streamed."""

    @property
    def sides(self) -> Sides:
        return self._sides

    @property
    def training_rows(self) -> int:
        """The training examples of an epoch."""
        return len(self._sides[0])

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        """The training examples in shuffled epochs; the seed ends with the step, from 1."""
        training, (*run, step) = self._sides[0], seed
        if not training:
            raise UserError("all prompts of the task are held out and none is left to train on: lower held_out_share")
        places = epoch_places(len(training), (step - 1) * count, count, "training", *run)
        return [training[place] for place in places]

    def held_out(self, count: int) -> list[Example]:
        return first_held_out(self._sides[1], count)


def split_examples(examples: Sequence[Example], keys: Iterable[str], share: float, rows: int | None) -> Sides:
    """The examples of both sides; those with the same key stay together."""
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example, side in zip(examples, held_out_sides(keys, share, rows), strict=True):
        sides[side].append(example)
    return sides


class FittedTask(StoredTask):
    """A stored task with other examples: those that fit a model, or shortened ones. The rest is the task's own."""

    def __init__(self, task: StoredTask, sides: Sides) -> None:
        self._task, self._fitted = task, sides

    @cached_property
    def _sides(self) -> Sides:
        return self._fitted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


@dataclass(frozen=True, kw_only=True)
class RowsTask(StoredTask):
    """Rows with `prompt`, `answer` and other columns, graded by match with `answer`."""

    path: str  # a file, a folder of files, or a data set on the hub
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # prompt or answer → column of the data
    match: str = "exact"  # how a completion gives the answer: exact, number, boxed, choice, regex, maths
    pattern: str = ""  # of match: regex
    held_out_share: float = HELD_OUT_SHARE  # of the prompts, by their hash; 0 trains on all rows, 1 on none
    held_out_rows: int | None = None  # in place of a share
    chat: bool = False  # format plain-text prompts as user messages
    limit: int | None = None  # read only the first rows
    max_prompt_tokens: int | None = None  # None: what leaves room for a token in the model's context
    overlong_prompts: str = "filter"  # leave longer prompts out; or "truncate": the oldest turns and tokens go first

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share <= 1:
            raise UserError(f"task rows: held_out_share is {self.held_out_share}, must be from 0 to 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"task rows: limit is {self.limit}, must be 1 or more rows")
        _ = self._matcher
        training, evaluation = self._sides
        if not training and not evaluation:
            raise UserError(f"{self.path} has no rows")
        if not evaluation and (self.held_out_share > 0 if self.held_out_rows is None else self.held_out_rows > 0):
            raise UserError(
                f"{self.path} has one prompt only, or too few rows to hold some out: add rows, or train on all of them "
                "without evaluation (held_out_rows=0, eval.every_steps=0)"
            )

    @property
    def name(self) -> str:
        return "rows"

    def score(self, example: Example, text: str) -> Score:
        right = float(self.correct(example, text) or False)
        return Score(reward=right, parts={"correct": right})

    def correct(self, example: Example, text: str) -> bool | None:
        return None if example.answer == "" else self._matcher.is_right(example.answer, text)

    def vote(self, example: Example, text: str) -> str | None:  # noqa: ARG002
        """The answer that a completion gives, for a majority vote."""
        return self._matcher.vote(text)

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(way=self.match, pattern=self.pattern)

    @cached_property
    def _sides(self) -> Sides:
        examples = [self._formatted(example) for example in self._examples()]
        prompts = (_prompt_text(example.prompt) for example in examples)
        return split_examples(examples, prompts, self.held_out_share, self.held_out_rows)

    def _examples(self) -> Iterator[Example]:
        rows = islice(_rows(self.path), self.limit)
        head = list(islice(rows, LOOKED_AT))
        if self.columns and head:
            require_columns(self.columns, [row for _, _, row in head], self.path)
        return (self._example(row, place, where) for place, where, row in chain(head, rows))

    def _example(self, row: Columns, place: str, where: str) -> Example:
        example = _example(mapped(row, self.columns), place, where)
        also = {name: value for name, value in renamed_columns(row, self.columns).items() if name not in RESERVED}
        return replace(example, columns={**example.columns, **also})

    def _formatted(self, example: Example) -> Example:
        if not self.chat or not isinstance(example.prompt, str):
            return example
        return replace(example, prompt=(Message(role="user", content=example.prompt),))


def _rows(path: str) -> Iterable[tuple[str, str, Columns]]:
    """Each row with its id and its "file:line"; a broken one is an error."""
    seen: Counter[int] = Counter()
    for where, raw in stored_rows(path):
        if raw.problem:
            raise UserError(raw.problem)
        seen[raw.line] += 1
        again = f"-{seen[raw.line]}" if seen[raw.line] > 1 else ""  # of another file, or of a list in one line
        yield f"row-{raw.line}{again}", where, raw.columns


def _example(row: Columns, row_id: str, where: str) -> Example:
    others = dict(row)
    if "prompt" not in others:
        write = suggestion(column_names([row]), "prompt", settings="task")
        raise UserError(
            f"{where} has no 'prompt' (it has: {', '.join(row) or 'nothing'})" + (f": write {write}" if write else "")
        )
    prompt = files.prompt(others.pop("prompt"), where)
    answer = files.answer_text(others.pop("answer", None), "answer", where)
    for name in RESERVED:
        if name in others:
            raise UserError(f"{where}: the column name '{name}' is reserved: rename it")
    return Example(id=row_id, prompt=prompt, answer=answer, columns=others)


def _prompt_text(prompt: str | tuple[Message, ...]) -> str:
    """The text that is hashed for the split; plain text and a conversation always differ."""
    return prompt if isinstance(prompt, str) else json.dumps([[m.role, m.content] for m in prompt])
