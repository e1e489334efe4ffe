"""`load_rows`: from the name of a file or data set to records for training, with every skipped row counted."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress, islice
from operator import attrgetter
from typing import Literal, NamedTuple, get_args

from whet.data import columns
from whet.data.columns import Columns, spaced
from whet.data.formats import (
    AUTO,
    FORMATS,
    Format,
    Kind,
    Record,
    answers_of,
    content,
    named,
    recognised,
    require_format,
)
from whet.data.similarity import assign_twins, near_duplicates
from whet.data.split import first_places
from whet.errors import UserError
from whet.files.disk_rows import DiskRows, changed, picked
from whet.files.mapping import Settings, column_names, mapped, renamed_columns, require_columns, usual_columns
from whet.files.readers import Raw
from whet.files.stored_rows import stored_rows
from whet.records import Dialogue, Message, Pair, Text
from whet.tasks.stored import RESERVED

KeepOrDrop = Literal["keep", "drop"]

LOOKED_AT = 20  # rows from which the format is recognised
NAMED = 3  # skipped rows that an error or a page names
# Reasons for which a row is broken, bounded by `max_skipped`. The filters drop valid rows, without a bound.
MALFORMED, EMPTY, ONE_SIDED = "malformed", "empty", "one-sided"
BROKEN = (MALFORMED, EMPTY, ONE_SIDED)
ALWAYS_READ = ("prompt", "answer", "twin", *RESERVED)  # never among the columns for reward functions
LARGEST_WEIGHT = 100
TIE, DUPLICATE, NEAR_DUPLICATE = "tie", "duplicate", "near duplicate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file, folder or data set, and the filters on its rows."""

    path: str  # a file, a folder of files, or a data set on the Hugging Face hub, also as name@revision
    format: str = AUTO  # a name of `formats.FORMATS`; auto goes by the columns
    columns: Mapping[str, str] = field(default_factory=dict)  # name that a format knows → column of the data
    split: str = "train"  # of a data set on the hub, or of a folder whose files are named after splits
    subset: str = ""  # of a data set on the hub: its configuration or its directory
    chat: bool = False  # format plain-text prompts as user messages
    max_skipped: float = 0.01  # the largest share of broken rows
    ties: KeepOrDrop = "drop"  # pairs with two equal sides or equal scores
    duplicates: KeepOrDrop = "drop"  # rows that repeat an earlier one
    near_duplicates: KeepOrDrop = "keep"  # rows that almost repeat an earlier one
    limit: int | None = None  # read only the first rows
    weight: float = 1.0  # how often a training row of this source comes in an epoch
    streaming: bool = False  # keep the rows in a temporary file instead of in memory
    usual_names: bool = False  # read a prompt and an answer by their usual names where no format fits
    as_prompts: bool = False  # rows are prompts: they need no answer, and their other columns are kept
    settings: Settings = "none"  # where a user writes these options, for advice in errors

    def __post_init__(self) -> None:
        if not 0 <= self.max_skipped <= 1:
            raise UserError(f"data: max_skipped is {self.max_skipped}, must be a share from 0 to 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"data: limit is {self.limit}, must be 1 or more rows")
        if not 0 < self.weight <= LARGEST_WEIGHT:
            raise UserError(f"data: weight is {self.weight}, must be above 0 and at most {LARGEST_WEIGHT}")
        filters = {"ties": self.ties, "duplicates": self.duplicates, "near_duplicates": self.near_duplicates}
        for name, choice in filters.items():
            if choice not in get_args(KeepOrDrop):
                raise UserError(f"data: {name} is {choice!r}, must be keep or drop")
        if self.streaming and self.near_duplicates == "drop":
            raise UserError("data: near duplicates are found in memory: leave near_duplicates out, or streaming")
        if self.format != AUTO:
            named(self.format)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The rows of one or more sources, and counts of those that were skipped."""

    rows: Sequence[Record]  # on disk if the first source is streamed
    placed: Sequence["Placed"] = field(repr=False)  # the same with file, line, and the columns for reward functions
    kind: Kind
    format: str  # as named or recognised; several are joined by a comma
    read: int  # rows of the files, skipped ones included
    skipped: Mapping[str, int]  # reason → count
    skipped_at: Mapping[str, tuple[str, ...]]  # reason → the first few, with file and line
    digest: str  # SHA-256 of the rows without their ids
    twins_parted: bool  # whether similar rows may land on both sides of a split: too many are similar to group all
    names: tuple[str, ...]  # of the columns, as mapped
    weights: Mapping[str, float]  # weights other than 1 by source, whose name begins the ids of its rows


class Placed(NamedTuple):
    """A record and its row."""

    where: str  # "file:line"
    record: Record
    columns: Columns  # those that its format does not read; empty unless rows are read as prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """What one source holds."""

    source: Source
    format: str
    names: tuple[str, ...]
    placed: Iterator[Placed]  # read once, row by row


class Tally:
    """Counts the rows that were read, and those that were skipped by reason; the first few with file and line."""

    def __init__(self) -> None:
        self.read = 0
        self.skipped: Counter[str] = Counter()
        self.skipped_at: dict[str, list[str]] = {}

    def skip(self, reason: str, problem: str | Callable[[], str]) -> None:
        self.skipped[reason] += 1
        named = self.skipped_at.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(problem if isinstance(problem, str) else problem())


def load_rows(*sources: Source) -> Loaded:
    """The rows of the sources, all of one kind; too many broken rows, or no valid one, is an error.

    Filters across rows, and whether rows are streamed, are those of the first source.
    """
    tally, path = Tally(), " and ".join(source.path for source in sources)
    names = [f"set{number}" for number in range(1, len(sources) + 1)] if len(sources) > 1 else [""]
    parts = [_read(source, name, tally) for source, name in zip(sources, names, strict=True)]
    kind = _one_kind(parts)
    first = sources[0]
    needs_answers = not first.as_prompts and kind != "prompts"
    every = (one for part in parts for one in part.placed)
    # In memory, leakage groups are assigned before the filters, so that runs with different filters agree on them. They
    # compare all prompts, so streamed rows have none: only equal prompts stay together in a split.
    each, is_parted = (every, True) if first.streaming else _with_twins(list(every))
    each = _answered(each, tally) if needs_answers else each
    each = _without_ties(each, tally) if first.ties == "drop" else each
    placed: Sequence[Placed] = DiskRows(each) if first.streaming else list(each)
    _check_broken(tally, path, first)
    placed = _without_duplicates(placed, tally) if first.duplicates == "drop" else placed
    placed = _without_near_duplicates(placed, tally) if first.near_duplicates == "drop" else placed
    if not placed:
        counts = ", ".join(f"{count} {reason}" for reason, count in tally.skipped.items())
        raise UserError(f"{path} has no rows left: {counts}")
    rows = changed(placed, attrgetter("record"))
    return Loaded(
        rows=rows,
        placed=placed,
        kind=kind,
        format=", ".join(dict.fromkeys(part.format for part in parts)),
        read=tally.read,
        skipped=dict(tally.skipped),
        skipped_at={reason: tuple(some) for reason, some in tally.skipped_at.items()},
        digest=digest(rows),
        twins_parted=is_parted,
        names=tuple(dict.fromkeys(name for part in parts for name in part.names)),
        weights={name or "row": one.weight for name, one in zip(names, sources, strict=True) if one.weight != 1},
    )


def _read(source: Source, name: str, tally: Tally) -> _Part:
    """The records of one source, before the filters; `name` begins their ids if there are several sources."""
    stored = stored_rows(source.path, split=source.split, subset=source.subset, limit=source.limit)
    raws = islice(stored, source.limit)
    head = list(islice(raws, LOOKED_AT))
    readable: list[Columns] = [raw.columns for _, raw in head if not raw.problem]
    if not head:
        raise UserError(f"{source.path} has no rows")
    if not readable:
        raise UserError(f"no row of {source.path} can be read: {head[0][1].problem}")
    if source.usual_names and source.format == AUTO and not source.columns:
        source = replace(source, columns=_usual(readable))
    require_columns(source.columns, readable, source.path)
    readable = [mapped(row, source.columns) for row in readable]
    layout = source.format
    if layout == AUTO:
        layout = recognised(readable, source.path, source.settings, as_prompts=source.as_prompts)
    else:
        require_format(layout, readable, source.path, source.settings)
    prefix = f"{name}-" if name else ""
    placed = _parsed(chain(head, raws), named(layout), source, prefix, tally)
    return _Part(source=source, format=layout, names=tuple(column_names(readable)), placed=placed)


def _with_twins(placed: Sequence[Placed]) -> tuple[Iterator[Placed], bool]:
    twins, is_parted = assign_twins([one.record for one in placed])
    return (one._replace(record=record) for one, record in zip(placed, twins, strict=True)), is_parted


def _usual(rows: Sequence[Columns]) -> Mapping[str, str]:
    """Where no format fits, the columns that usually hold a prompt and its answer."""
    is_known = any(form.fits(row) for row in rows for form in FORMATS.values())
    return {} if is_known else usual_columns(column_names(rows), "prompt", "answer")


def _one_kind(parts: Sequence[_Part]) -> Kind:
    kinds = {named(part.format).kind: part.source.path for part in parts}
    if len(kinds) > 1:
        held = " and ".join(f"{path} holds {kind}" for kind, path in kinds.items())
        raise UserError(f"data: {held}: sets that are mixed must hold rows of one kind")
    return named(parts[0].format).kind


def digest(rows: Iterable[Record]) -> str:
    """SHA-256 of the contents of rows, in order, without their ids."""
    found = hashlib.sha256()
    for row in rows:
        found.update(content(row).encode())
        found.update(b"\n")
    return found.hexdigest()


def _check_broken(tally: Tally, path: str, source: Source) -> None:
    broken = sum(tally.skipped[reason] for reason in BROKEN)
    if broken <= source.max_skipped * tally.read:
        return
    first = [place for reason in BROKEN for place in tally.skipped_at.get(reason, ())][:NAMED]
    more = f"; and {broken - NAMED} more" if broken > NAMED else ""
    key = {"none": "", "command": "--max-skipped", "task": "task.max_skipped"}.get(source.settings, "data.max_skipped")
    allowed = f", more than the share of {source.max_skipped:g} that {key} allows" if key else ""
    way = f"fix them, or raise {key}" if key else "fix them"
    raise UserError(f"{broken} of {tally.read} rows of {path} are broken{allowed}: {'; '.join(first)}{more} ({way})")


def _parsed(
    raws: Iterable[tuple[str, Raw]], known: Format, source: Source, prefix: str, tally: Tally
) -> Iterator[Placed]:
    """The records of all usable rows."""
    for number, (where, raw) in enumerate(raws, start=1):
        tally.read += 1
        row = mapped(raw.columns, source.columns)
        try:
            if raw.problem:
                raise UserError(raw.problem)
            records = [
                _completed(record, row, source, where) for record in known.parse(row, f"{prefix}row-{number}", where)
            ]
        except UserError as error:
            tally.skip(MALFORMED, str(error))
            continue
        missing = next(filter(None, map(_missing, records)), None)
        if missing is None:
            kept = _extras({**row, **renamed_columns(raw.columns, source.columns)}, known) if source.as_prompts else {}
            yield from (Placed(where, record, kept) for record in records)
        else:
            tally.skip(missing[0], f"{where} {missing[1]}")


def _extras(row: Columns, known: Format) -> Columns:
    """The columns of a row that its format does not read, for reward functions."""
    return {name: value for name, value in row.items() if name not in (*known.columns, *ALWAYS_READ)}


def _completed(record: Record, row: Columns, source: Source, where: str) -> Record:
    """The record with the leakage group of its `twin` column, and its prompt as a message if `chat` is set."""
    twin = columns.name(row, "twin", where)
    if twin:
        record = replace(record, twin=twin)
    if source.chat and isinstance(record.prompt, str):
        record = replace(record, prompt=(Message(role="user", content=record.prompt),))
    return record


def _missing(record: Record) -> tuple[str, str] | None:
    """Why a record is of no use, whatever it is read for: the reason to count, and the sentence."""
    prompt = record.prompt
    asked = prompt if isinstance(prompt, str) else "".join(turn.content for turn in prompt)
    if not asked.strip():
        return EMPTY, "has an empty prompt"
    if isinstance(record, Pair):
        empty = [side for side, text in (("chosen", record.chosen), ("rejected", record.rejected)) if not text.strip()]
        if len(empty) == 1:
            return ONE_SIDED, f"has an empty '{empty[0]}'"
        return (EMPTY, "is empty") if empty else None
    if isinstance(record, Dialogue | Text):
        return None
    answers = answers_of(record)
    if not answers or not all(answer.strip() for answer in answers):
        return EMPTY, "has an empty answer" if answers else "has no answers"
    return None


def _answered(placed: Iterable[Placed], tally: Tally) -> Iterator[Placed]:
    """The rows that can be imitated; as a prompt a dialogue needs no answer."""
    for one in placed:
        if isinstance(one.record, Dialogue) and not one.record.completion.strip():
            tally.skip(EMPTY, f"{one.where} has an empty answer")
        else:
            yield one


def _without_ties(placed: Iterable[Placed], tally: Tally) -> Iterator[Placed]:
    for one in placed:
        record = one.record
        if isinstance(record, Pair) and spaced(record.chosen) == spaced(record.rejected):
            tally.skip(TIE, f"{one.where} has two equal sides")
        elif isinstance(record, Pair) and record.margin == 0:
            tally.skip(TIE, f"{one.where} has two equal scores")
        else:
            yield one


def _without_duplicates(placed: Sequence[Placed], tally: Tally) -> Sequence[Placed]:
    """The rows that repeat no earlier one; memory is a few bytes per row."""
    earliest = first_places(content(one.record) for one in placed)
    is_new = bytes(place == first for place, first in enumerate(earliest))
    if 0 not in is_new:
        return placed
    for place in (place for place, new in enumerate(is_new) if not new):
        tally.skip(DUPLICATE, lambda: f"{placed[place].where} repeats {placed[earliest[place]].where}")  # noqa: B023
    return picked(placed, compress(range(len(placed)), is_new))


def _without_near_duplicates(placed: Sequence[Placed], tally: Tally) -> list[Placed]:
    kept = []
    for one, same in zip(placed, near_duplicates(one.record for one in placed), strict=True):
        if same is None:
            kept.append(one)
        else:
            tally.skip(NEAR_DUPLICATE, f"{one.where} nearly repeats {placed[same].where}")
    return kept
