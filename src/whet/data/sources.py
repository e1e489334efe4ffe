"""`load_rows`: from the name of a file or data set to records for training, with every skipped row counted."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Literal, NamedTuple, get_args

from whet.data import columns
from whet.data.columns import Columns, spaced
from whet.data.formats import AUTO, FORMATS, Format, Kind, Record, answers_of, content, named, recognised
from whet.data.similarity import assign_twins, near_duplicates
from whet.errors import UserError
from whet.files.mapping import Settings, column_names, mapped, renamed_columns, require_columns, usual_columns
from whet.files.readers import Raw
from whet.files.stored_rows import stored_rows
from whet.records import Dialogue, Message, Pair, Text
from whet.tasks.rows import RESERVED

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
        if self.format != AUTO:
            named(self.format)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The rows of one or more sources, and counts of those that were skipped."""

    rows: tuple[Record, ...]
    kind: Kind
    format: str  # as named or recognised; several are joined by a comma
    read: int  # rows of the files, skipped ones included
    skipped: Mapping[str, int]  # reason → count
    skipped_at: Mapping[str, tuple[str, ...]]  # reason → the first few, with file and line
    digest: str  # SHA-256 of the rows without their ids
    twins_parted: bool  # whether similar rows may land on both sides of a split: too many are similar to group all
    names: tuple[str, ...]  # of the columns, as mapped
    extras: Mapping[str, Columns]  # row id → the columns that its format does not read, if they are kept
    weights: Mapping[str, float]  # row id → weight of its source; a missing one is 1


class Placed(NamedTuple):
    """A record and its row."""

    where: str  # "file:line"
    record: Record
    columns: Columns


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """What one source holds."""

    source: Source
    format: str
    names: tuple[str, ...]
    placed: list[Placed]
    read: int


Skips = dict[str, list[str]]  # reason → the skipped rows, each starting with file and line


def load_rows(*sources: Source) -> Loaded:
    """The rows of the sources, all of one kind; too many broken rows, or no valid one, is an error.

    Filters across rows are those of the first source.
    """
    skips: Skips = {}
    prefixes = [f"set{number}-" for number in range(1, len(sources) + 1)] if len(sources) > 1 else [""]
    parts = [_read(source, prefix, skips) for source, prefix in zip(sources, prefixes, strict=True)]
    kind = _one_kind(parts)
    placed = [one for part in parts for one in part.placed]
    # Before the filters, so that runs with different filters agree on the leakage groups.
    twins, is_parted = assign_twins([one.record for one in placed])
    placed = [one._replace(record=record) for one, record in zip(placed, twins, strict=True)]
    if not sources[0].as_prompts and kind != "prompts":
        placed = _drop(placed, EMPTY, (_unanswered(one.record) for one in placed), skips)
    read = sum(part.read for part in parts)
    path = " and ".join(source.path for source in sources)
    _check_broken(skips, read, path, sources[0])
    placed = _filtered(placed, sources[0], skips)
    if not placed:
        counts = ", ".join(f"{len(places)} {reason}" for reason, places in skips.items())
        raise UserError(f"{path} has no rows left: {counts}")
    rows = tuple(one.record for one in placed)
    return Loaded(
        rows=rows,
        kind=kind,
        format=", ".join(dict.fromkeys(part.format for part in parts)),
        read=read,
        skipped={reason: len(places) for reason, places in skips.items()},
        skipped_at={reason: tuple(places[:NAMED]) for reason, places in skips.items()},
        digest=digest(rows),
        twins_parted=is_parted,
        names=tuple(dict.fromkeys(name for part in parts for name in part.names)),
        extras={one.record.id: one.columns for one in placed if one.columns},
        weights={one.record.id: part.source.weight for part in parts if part.source.weight != 1 for one in part.placed},
    )


def _read(source: Source, prefix: str, skips: Skips) -> _Part:
    """The records of one source, before the filters."""
    raws = islice(stored_rows(source.path, split=source.split, subset=source.subset), source.limit)
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
    name = source.format
    if name == AUTO:
        name = recognised(readable, source.path, source.settings, as_prompts=source.as_prompts)
    placed, read = _parsed(chain(head, raws), named(name), source, prefix, skips)
    return _Part(source=source, format=name, names=tuple(column_names(readable)), placed=placed, read=read)


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


def _check_broken(skips: Skips, read: int, path: str, source: Source) -> None:
    broken = [place for reason in BROKEN for place in skips.get(reason, ())]
    if len(broken) <= source.max_skipped * read:
        return
    more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    key = {"none": "", "command": "--max-skipped", "task": "task.max_skipped"}.get(source.settings, "data.max_skipped")
    allowed = f", more than the share of {source.max_skipped:g} that {key} allows" if key else ""
    way = f"fix them, or raise {key}" if key else "fix them"
    raise UserError(
        f"{len(broken)} of {read} rows of {path} are broken{allowed}: {'; '.join(broken[:NAMED])}{more} ({way})"
    )


def _parsed(
    raws: Iterable[tuple[str, Raw]], known: Format, source: Source, prefix: str, skips: Skips
) -> tuple[list[Placed], int]:
    """The records of all usable rows, and the number of rows."""
    placed: list[Placed] = []
    read = 0
    for where, raw in raws:
        read += 1
        row = mapped(raw.columns, source.columns)
        try:
            if raw.problem:
                raise UserError(raw.problem)
            records = [
                _completed(record, row, source, where) for record in known.parse(row, f"{prefix}row-{read}", where)
            ]
        except UserError as error:
            skips.setdefault(MALFORMED, []).append(str(error))
            continue
        missing = next(filter(None, map(_missing, records)), None)
        if missing is None:
            kept = _extras({**row, **renamed_columns(raw.columns, source.columns)}, known) if source.as_prompts else {}
            placed += [Placed(where, record, kept) for record in records]
        else:
            skips.setdefault(missing[0], []).append(f"{where} {missing[1]}")
    return placed, read


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


def _unanswered(record: Record) -> str | None:
    """What a dialogue lacks that is to be imitated; as a prompt it needs no answer."""
    return "has an empty answer" if isinstance(record, Dialogue) and not record.completion.strip() else None


def _filtered(placed: list[Placed], source: Source, skips: Skips) -> list[Placed]:
    if source.ties == "drop":
        placed = _drop(placed, TIE, _ties(placed), skips)
    if source.duplicates == "drop":
        placed = _drop(placed, DUPLICATE, _duplicates(placed), skips)
    if source.near_duplicates == "drop":
        earlier = near_duplicates(one.record for one in placed)
        problems = (None if same is None else f"nearly repeats {placed[same].where}" for same in earlier)
        placed = _drop(placed, NEAR_DUPLICATE, problems, skips)
    return placed


def _drop(placed: list[Placed], reason: str, problems: Iterable[str | None], skips: Skips) -> list[Placed]:
    kept = []
    for one, problem in zip(placed, problems, strict=True):
        if problem is None:
            kept.append(one)
        else:
            skips.setdefault(reason, []).append(f"{one.where} {problem}")
    return kept


def _ties(placed: Iterable[Placed]) -> Iterator[str | None]:
    for _, record, _ in placed:
        if isinstance(record, Pair) and spaced(record.chosen) == spaced(record.rejected):
            yield "has two equal sides"
        else:
            yield "has two equal scores" if isinstance(record, Pair) and record.margin == 0 else None


def _duplicates(placed: Iterable[Placed]) -> Iterator[str | None]:
    first: dict[bytes, str] = {}
    for where, record, _ in placed:
        key = hashlib.sha256(content(record).encode()).digest()
        yield f"repeats {first[key]}" if key in first else None
        first.setdefault(key, where)
