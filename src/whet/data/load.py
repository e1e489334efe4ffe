"""`load_rows`: from the name of a file or a data set to records that can be trained on, with every skip counted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal, get_args

from whet.data import columns
from whet.data.formats import AUTO, Format, Kind, Record, named, recognised
from whet.data.hub import cached_rows, is_hub_name
from whet.data.near import near_duplicates
from whet.data.readers import ROWS, Raw, is_file_name, read_file
from whet.data.rows import answers_of, content, spaced
from whet.data.twins import with_twins
from whet.errors import UserError
from whet.records import Message, Pair

Choice = Literal["keep", "drop"]

LOOKED_AT = 20  # rows from which the format is recognised
NAMED = 3  # skipped rows that an error or a page names
# Rows that are broken; there may be a share of `max_skipped` of them. What the filters drop is sound, and not bounded.
MALFORMED, EMPTY, ONE_SIDED = "malformed", "empty", "one-sided"
BROKEN = (MALFORMED, EMPTY, ONE_SIDED)
TIE, DUPLICATE, NEAR_DUPLICATE = "tie", "duplicate", "near duplicate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where rows come from, and which of them are left out."""

    path: str  # a file, a directory with rows.jsonl, or a data set on the Hugging Face hub, also as name@revision
    format: str = AUTO  # a name of `formats.FORMATS`; auto goes by the columns
    split: str = "train"  # of a data set on the hub
    subset: str = ""  # of a data set on the hub: its configuration or its directory
    chat: bool = False  # pose a prompt that is plain text as a user's message
    max_skipped: float = 0.01  # the share of rows that may be broken
    ties: Choice = "drop"  # pairs with two equal sides or equal scores
    duplicates: Choice = "drop"  # rows that repeat an earlier one
    near_duplicates: Choice = "keep"  # rows that almost repeat an earlier one
    limit: int | None = None  # read no more than the first so many rows

    def __post_init__(self) -> None:
        if not 0 <= self.max_skipped <= 1:
            raise UserError(f"data: max_skipped is {self.max_skipped}, must be a share from 0 to 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"data: limit is {self.limit}, must be 1 or more rows")
        filters = {"ties": self.ties, "duplicates": self.duplicates, "near_duplicates": self.near_duplicates}
        for name, choice in filters.items():
            if choice not in get_args(Choice):
                raise UserError(f"data: {name} is {choice!r}, must be keep or drop")
        if self.format != AUTO:
            named(self.format)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Rows of one kind, and what became of the others."""

    rows: tuple[Record, ...]
    kind: Kind
    format: str  # as it was named or recognised
    read: int  # rows of the file, the skipped ones included
    skipped: Mapping[str, int]  # why → how many
    skipped_at: Mapping[str, tuple[str, ...]]  # why → the first few, with file and line
    digest: str  # SHA-256 of what the rows say, ids left out
    twins_parted: bool  # whether a split may part rows that are alike: more of them are than it could keep together


Placed = tuple[str, Record]  # a record and where it stands, as file:line


def load_rows(source: Source) -> Loaded:
    """The rows of a source; more broken ones than it allows, or none that is sound, is an error."""
    source = _of_directory(source)
    raws = islice(read_file(rows_file(source)), source.limit)
    head = list(islice(raws, LOOKED_AT))
    sound = [raw.columns for raw in head if not raw.problem]
    if not head:
        raise UserError(f"{source.path} has no rows")
    if not sound:
        raise UserError(f"no row of {source.path} can be read: {head[0].problem}")
    name = recognised(sound, source.path) if source.format == AUTO else source.format
    skips = _Skips()
    placed, read = _parsed(chain(head, raws), named(name), source, skips)
    skips.require_few(read, source)
    # Before the filters: what they leave must not decide what belongs together.
    twins, is_parted = with_twins([record for _, record in placed])
    placed = [(where, record) for (where, _), record in zip(placed, twins, strict=True)]
    rows = tuple(record for _, record in _sifted(placed, source, skips))
    if not rows:
        raise UserError(f"{source.path} has no rows left: {skips.told()}")
    return Loaded(
        rows=rows,
        kind=named(name).kind,
        format=name,
        read=read,
        skipped={why: len(places) for why, places in skips.places.items()},
        skipped_at={why: tuple(places[:NAMED]) for why, places in skips.places.items()},
        digest=digest(rows),
        twins_parted=is_parted,
    )


def digest(rows: Iterable[Record]) -> str:
    """SHA-256 of what rows say, in their order; ids do not count."""
    found = hashlib.sha256()
    for row in rows:
        found.update(content(row).encode())
        found.update(b"\n")
    return found.hexdigest()


class _Skips:
    """Which rows were left out, and why."""

    def __init__(self) -> None:
        self.places: dict[str, list[str]] = {}

    def add(self, why: str, place: str) -> None:
        """Counts one row; the place begins with file and line."""
        self.places.setdefault(why, []).append(place)

    def require_few(self, read: int, source: Source) -> None:
        """Refuses a source of which too large a share is broken."""
        broken = [place for why in BROKEN for place in self.places.get(why, ())]
        if len(broken) <= source.max_skipped * read:
            return
        more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        raise UserError(
            f"{len(broken)} of {read} rows of {source.path} are broken, more than max_skipped={source.max_skipped:g} "
            f"allows: {'; '.join(broken[:NAMED])}{more} (fix them, or raise max_skipped)"
        )

    def told(self) -> str:
        """All counts in words."""
        return ", ".join(f"{len(places)} {why}" for why, places in self.places.items())


def rows_file(source: Source) -> Path:
    """The file that the rows are read from; a data set of the hub is fetched where it is not here yet."""
    source = _of_directory(source)
    path = Path(source.path).expanduser()
    if path.exists() or is_file_name(source.path):
        return path
    if is_hub_name(source.path):
        return cached_rows(source.path, subset=source.subset, split=source.split)
    raise UserError(f"{source.path}: no such file, and not the name of a data set (owner/name)")


def _of_directory(source: Source) -> Source:
    """A directory, such as that of a run which made rows, stands for its rows.jsonl."""
    directory = Path(source.path).expanduser()
    if not directory.is_dir():
        return source
    file = directory / ROWS
    if not file.is_file():
        raise UserError(f"{source.path} is a directory without {ROWS}: name a file of rows, or a run that made some")
    return replace(source, path=str(file))


def _parsed(raws: Iterable[Raw], known: Format, source: Source, skips: _Skips) -> tuple[list[Placed], int]:
    """The records of all rows that can be used, and how many rows there were."""
    placed: list[Placed] = []
    read = 0
    for raw in raws:
        read += 1
        where = f"{source.path}:{raw.line}"
        try:
            if raw.problem:
                raise UserError(raw.problem)
            records = [
                _posed(_twinned(record, raw, where), source)
                for record in known.parse(raw.columns, f"row-{read}", where)
            ]
        except UserError as error:
            skips.add(MALFORMED, str(error))
            continue
        lacking = next(filter(None, map(_lack, records)), None)
        if lacking is None:
            placed += [(where, record) for record in records]
        else:
            skips.add(lacking[0], f"{where} {lacking[1]}")
    return placed, read


def _twinned(record: Record, raw: Raw, where: str) -> Record:
    """The record, under the name of its twins where the row has a column of it."""
    twin = columns.name(raw.columns, "twin", where)
    return replace(record, twin=twin) if twin else record


def _posed(record: Record, source: Source) -> Record:
    """The record, its prompt as a message where that was asked for."""
    if not source.chat or not isinstance(record.prompt, str):
        return record
    return replace(record, prompt=(Message(role="user", content=record.prompt),))


def _lack(record: Record) -> tuple[str, str] | None:
    """Why a record teaches nothing: the reason that is counted, and what is missing."""
    prompt = record.prompt
    asked = prompt if isinstance(prompt, str) else "".join(turn.content for turn in prompt)
    if not asked.strip():
        return EMPTY, "has an empty prompt"
    if isinstance(record, Pair):
        empty = [side for side, said in (("chosen", record.chosen), ("rejected", record.rejected)) if not said.strip()]
        if len(empty) == 1:
            return ONE_SIDED, f"has an empty '{empty[0]}'"
        return (EMPTY, "is empty") if empty else None
    answers = answers_of(record)
    if not answers or not all(answer.strip() for answer in answers):
        return EMPTY, "has an empty answer" if answers else "has no answers"
    return None


def _sifted(placed: Iterable[Placed], source: Source, skips: _Skips) -> Iterable[Placed]:
    """What the filters of the source leave."""
    if source.ties == "drop":
        placed = _without_ties(placed, skips)
    if source.duplicates == "drop":
        placed = _without_duplicates(placed, skips)
    if source.near_duplicates == "drop":
        placed = _without_near_duplicates(list(placed), skips)
    return placed


def _without_ties(placed: Iterable[Placed], skips: _Skips) -> Iterator[Placed]:
    for where, record in placed:
        if isinstance(record, Pair) and spaced(record.chosen) == spaced(record.rejected):
            skips.add(TIE, f"{where} has two equal sides")
        elif isinstance(record, Pair) and record.margin == 0:
            skips.add(TIE, f"{where} has two equal scores")
        else:
            yield where, record


def _without_duplicates(placed: Iterable[Placed], skips: _Skips) -> Iterator[Placed]:
    first: dict[bytes, str] = {}
    for where, record in placed:
        key = hashlib.sha256(content(record).encode()).digest()
        if key in first:
            skips.add(DUPLICATE, f"{where} repeats {first[key]}")
        else:
            first[key] = where
            yield where, record


def _without_near_duplicates(placed: list[Placed], skips: _Skips) -> Iterator[Placed]:
    for (where, record), same in zip(placed, near_duplicates(row for _, row in placed), strict=True):
        if same is None:
            yield where, record
        else:
            skips.add(NEAR_DUPLICATE, f"{where} nearly repeats {placed[same][0]}")
