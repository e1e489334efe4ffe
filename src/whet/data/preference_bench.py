"""Rows of benchmarks for reward models: a prompt, one chosen answer, rejected ones, and the subset they belong to."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from whet.data import columns
from whet.data.columns import Columns, Prompt
from whet.errors import UserError
from whet.files.stored_rows import stored_rows
from whet.records import Message

VERDICTS = {"A>B": ("response_A", "response_B"), "B>A": ("response_B", "response_A")}
WHOLE = "all"  # subset of rows that state none


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One row: the chosen answer should score above all of the rejected ones."""

    id: str
    subset: str
    prompt: Prompt
    chosen: str
    rejected: tuple[str, ...]


def bench_rows(path: str, *, most: int | None, chat: bool) -> list[BenchRow]:
    """The first rows of a file; `chat` reads plain prompts as a user's message."""
    found = list(islice(_rows(path, chat=chat), most))
    if not found:
        raise UserError(f"{path} has no rows")
    return found


def _rows(path: str, *, chat: bool) -> Iterator[BenchRow]:
    for number, (where, raw) in enumerate(stored_rows(path)):
        if raw.problem:
            raise UserError(raw.problem)
        row = _judgebench(raw.columns, where) if "response_A" in raw.columns else _rewardbench(raw.columns, where)
        prompt: Prompt = row[1]
        if isinstance(prompt, str) and chat:
            prompt = (Message(role="user", content=prompt),)
        yield BenchRow(id=f"row-{number}", subset=row[0] or WHOLE, prompt=prompt, chosen=row[2], rejected=row[3])


def _rewardbench(row: Columns, where: str) -> tuple[str, Prompt, str, tuple[str, ...]]:
    """`prompt`, `chosen`, `rejected` and `subset`; RewardBench 2 has lists, with one chosen answer."""
    chosen, rejected = (_answers(row, side, where) for side in ("chosen", "rejected"))
    if len(chosen) != 1:
        raise UserError(f"{where}: 'chosen' has {len(chosen)} answers, and rows with one are compared: leave it out")
    return columns.optional_text(row, "subset", where), columns.prompt(row, where), chosen[0], rejected


def _judgebench(row: Columns, where: str) -> tuple[str, Prompt, str, tuple[str, ...]]:
    """`question`, `response_A`, `response_B`, `label` (A>B or B>A) and `source`."""
    label = columns.text(row, "label", where)
    if label not in VERDICTS:
        raise UserError(f"{where}: 'label' is {label!r}, must be A>B or B>A")
    better, worse = (columns.text(row, name, where) for name in VERDICTS[label])
    return columns.optional_text(row, "source", where), columns.text(row, "question", where), better, (worse,)


def _answers(row: Columns, side: str, where: str) -> tuple[str, ...]:
    value = row.get(side)
    found = columns.texts(row, side, where) if isinstance(value, list) else (columns.text(row, side, where),)
    if not found:
        raise UserError(f"{where}: '{side}' has no answer")
    return found
