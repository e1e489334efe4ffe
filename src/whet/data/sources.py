"""`load_rows`: from the name of a file or data set to records for training, with every skipped row counted."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal, get_args

from whet.data import columns
from whet.data.columns import spaced
from whet.data.formats import AUTO, Format, Kind, Record, answers_of, content, named, recognised
from whet.data.hub import cached_rows, is_hub_name
from whet.data.readers import ROWS, Raw, is_file_name, read_file
from whet.data.similarity import assign_twins, near_duplicates
from whet.errors import UserError
from whet.records import Message, Pair

KeepOrDrop = Literal["keep", "drop"]

LOOKED_AT = 20  # rows from which the format is recognised
NAMED = 3  # skipped rows that an error or a page names
# Reasons for which a row is broken, bounded by `max_skipped`. The filters drop valid rows, without a bound.
MALFORMED, EMPTY, ONE_SIDED = "malformed", "empty", "one-sided"
BROKEN = (MALFORMED, EMPTY, ONE_SIDED)
TIE, DUPLICATE, NEAR_DUPLICATE = "tie", "duplicate", "near duplicate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file or data set, and the filters on its rows."""

    path: str  # a file, a directory with rows.jsonl, or a data set on the Hugging Face hub, also as name@revision
    format: str = AUTO  # a name of `formats.FORMATS`; auto goes by the columns
    split: str = "train"  # of a data set on the hub
    subset: str = ""  # of a data set on the hub: its configuration or its directory
    chat: bool = False  # format plain-text prompts as user messages
    max_skipped: float = 0.01  # the largest share of broken rows
    ties: KeepOrDrop = "drop"  # pairs with two equal sides or equal scores
    duplicates: KeepOrDrop = "drop"  # rows that repeat an earlier one
    near_duplicates: KeepOrDrop = "keep"  # rows that almost repeat an earlier one
    limit: int | None = None  # read only the first rows

    def __post_init__(self) -> None:
        if not 0 <= self.max_skipped <= 1:
            raise UserError(f"data: max_skipped is {self.max_skipped}, must be a share from 0 to 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"data: limit is {self.limit}, must be 1 or more rows")
        filters = {"ties": self.ties, "duplicates": self.duplicates, "near_duplicates": self.near_duplicates}
        for name, choice in filters.items():
            if choice not in get_args(KeepOrDrop):
                raise UserError(f"data: {name} is {choice!r}, must be keep or drop")
        if self.format != AUTO:
            named(self.format)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The rows of a source, and counts of those that were skipped."""

    rows: tuple[Record, ...]
    kind: Kind
    format: str  # as named or recognised
    read: int  # rows of the file, skipped ones included
    skipped: Mapping[str, int]  # reason → count
    skipped_at: Mapping[str, tuple[str, ...]]  # reason → the first few, with file and line
    digest: str  # SHA-256 of the rows without their ids
    twins_parted: bool  # whether similar rows may land on both sides of a split: too many are similar to group all


Placed = tuple[str, Record]  # ("file:line", record)
Skips = dict[str, list[str]]  # reason → the skipped rows, each starting with file and line


def load_rows(source: Source) -> Loaded:
    """The rows of a source; too many broken rows, or no valid one, is an error."""
    source = _of_directory(source)
    raws = islice(read_file(rows_file(source)), source.limit)
    head = list(islice(raws, LOOKED_AT))
    readable = [raw.columns for raw in head if not raw.problem]
    if not head:
        raise UserError(f"{source.path} has no rows")
    if not readable:
        raise UserError(f"no row of {source.path} can be read: {head[0].problem}")
    name = recognised(readable, source.path) if source.format == AUTO else source.format
    skips: Skips = {}
    placed, read = _parsed(chain(head, raws), named(name), source, skips)
    _check_broken(skips, read, source)
    # Before the filters, so that runs with different filters agree on the leakage groups.
    twins, is_parted = assign_twins([record for _, record in placed])
    placed = [(where, record) for (where, _), record in zip(placed, twins, strict=True)]
    rows = tuple(record for _, record in _filtered(placed, source, skips))
    if not rows:
        counts = ", ".join(f"{len(places)} {reason}" for reason, places in skips.items())
        raise UserError(f"{source.path} has no rows left: {counts}")
    return Loaded(
        rows=rows,
        kind=named(name).kind,
        format=name,
        read=read,
        skipped={reason: len(places) for reason, places in skips.items()},
        skipped_at={reason: tuple(places[:NAMED]) for reason, places in skips.items()},
        digest=digest(rows),
        twins_parted=is_parted,
    )


def digest(rows: Iterable[Record]) -> str:
    """SHA-256 of the contents of rows, in order, without their ids."""
    found = hashlib.sha256()
    for row in rows:
        found.update(content(row).encode())
        found.update(b"\n")
    return found.hexdigest()


def rows_file(source: Source) -> Path:
    """The file of the rows; a data set of the hub is downloaded if it is not cached."""
    source = _of_directory(source)
    path = Path(source.path).expanduser()
    if path.exists() or is_file_name(source.path):
        return path
    if is_hub_name(source.path):
        return cached_rows(source.path, subset=source.subset, split=source.split)
    raise UserError(f"{source.path}: no such file, and not the name of a data set (owner/name)")


def _of_directory(source: Source) -> Source:
    """Replaces a directory, such as a run that made rows, by its rows.jsonl."""
    directory = Path(source.path).expanduser()
    if not directory.is_dir():
        return source
    file = directory / ROWS
    if not file.is_file():
        raise UserError(f"{source.path} is a directory without {ROWS}: name a file of rows, or a run that made some")
    return replace(source, path=str(file))


def _check_broken(skips: Skips, read: int, source: Source) -> None:
    broken = [place for reason in BROKEN for place in skips.get(reason, ())]
    if len(broken) <= source.max_skipped * read:
        return
    more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    raise UserError(
        f"{len(broken)} of {read} rows of {source.path} are broken, more than max_skipped={source.max_skipped:g} "
        f"allows: {'; '.join(broken[:NAMED])}{more} (fix them, or raise max_skipped)"
    )


def _parsed(raws: Iterable[Raw], known: Format, source: Source, skips: Skips) -> tuple[list[Placed], int]:
    """The records of all usable rows, and the number of rows."""
    placed: list[Placed] = []
    read = 0
    for raw in raws:
        read += 1
        where = f"{source.path}:{raw.line}"
        try:
            if raw.problem:
                raise UserError(raw.problem)
            records = [
                _completed(record, raw, source, where) for record in known.parse(raw.columns, f"row-{read}", where)
            ]
        except UserError as error:
            skips.setdefault(MALFORMED, []).append(str(error))
            continue
        missing = next(filter(None, map(_missing, records)), None)
        if missing is None:
            placed += [(where, record) for record in records]
        else:
            skips.setdefault(missing[0], []).append(f"{where} {missing[1]}")
    return placed, read


def _completed(record: Record, raw: Raw, source: Source, where: str) -> Record:
    """The record with the leakage group of its `twin` column, and its prompt as a message if `chat` is set."""
    twin = columns.name(raw.columns, "twin", where)
    if twin:
        record = replace(record, twin=twin)
    if source.chat and isinstance(record.prompt, str):
        record = replace(record, prompt=(Message(role="user", content=record.prompt),))
    return record


def _missing(record: Record) -> tuple[str, str] | None:
    """Why a record cannot be trained on: the reason to count, and the sentence."""
    prompt = record.prompt
    asked = prompt if isinstance(prompt, str) else "".join(turn.content for turn in prompt)
    if not asked.strip():
        return EMPTY, "has an empty prompt"
    if isinstance(record, Pair):
        empty = [side for side, text in (("chosen", record.chosen), ("rejected", record.rejected)) if not text.strip()]
        if len(empty) == 1:
            return ONE_SIDED, f"has an empty '{empty[0]}'"
        return (EMPTY, "is empty") if empty else None
    answers = answers_of(record)
    if not answers or not all(answer.strip() for answer in answers):
        return EMPTY, "has an empty answer" if answers else "has no answers"
    return None


def _filtered(placed: list[Placed], source: Source, skips: Skips) -> list[Placed]:
    if source.ties == "drop":
        placed = _drop(placed, TIE, _ties(placed), skips)
    if source.duplicates == "drop":
        placed = _drop(placed, DUPLICATE, _duplicates(placed), skips)
    if source.near_duplicates == "drop":
        earlier = near_duplicates(record for _, record in placed)
        problems = (None if same is None else f"nearly repeats {placed[same][0]}" for same in earlier)
        placed = _drop(placed, NEAR_DUPLICATE, problems, skips)
    return placed


def _drop(placed: list[Placed], reason: str, problems: Iterable[str | None], skips: Skips) -> list[Placed]:
    kept = []
    for (where, record), problem in zip(placed, problems, strict=True):
        if problem is None:
            kept.append((where, record))
        else:
            skips.setdefault(reason, []).append(f"{where} {problem}")
    return kept


def _ties(placed: Iterable[Placed]) -> Iterator[str | None]:
    for _, record in placed:
        if isinstance(record, Pair) and spaced(record.chosen) == spaced(record.rejected):
            yield "has two equal sides"
        else:
            yield "has two equal scores" if isinstance(record, Pair) and record.margin == 0 else None


def _duplicates(placed: Iterable[Placed]) -> Iterator[str | None]:
    first: dict[bytes, str] = {}
    for where, record in placed:
        key = hashlib.sha256(content(record).encode()).digest()
        yield f"repeats {first[key]}" if key in first else None
        first.setdefault(key, where)
