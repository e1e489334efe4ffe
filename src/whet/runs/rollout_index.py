"""Rollouts on disk: the rows of a step in blocks, and an index with their places and what one lists of each row.

`step-NNNNNN.jsonl.gz` holds JSON lines that any gzip reader unpacks. It consists of blocks, gzip members that are
unpacked on their own, so one row costs one block. `step-NNNNNN.index.json.gz` is removed first and written last: a kill
in between leaves rows without an index, which are read through, and never an index of other rows.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from whet.runs import layout, logs

CORRECT = "correct"  # the part of a score that says whether a completion is right
BLOCK = 2**18  # bytes of lines after which a block ends
LARGEST = 2**28  # bytes of a block or an index that are unpacked
GZIP = 31  # zlib's number for the format

Row = Mapping[str, Any]
Place = tuple[int, int]  # group and number


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One rollout of a step; `group` and `number` count from 0 in the order of sampling."""

    step: int
    group: int  # of the rollouts of one prompt
    number: int  # in its group
    prompt_id: str
    reward: float | None  # None: the reward failed on it
    parts: Mapping[str, float] = field(default_factory=dict)
    correct: bool | None  # None: its score does not say
    length: int  # sampled tokens
    finish: str
    max_advantage: float | None  # the largest magnitude of a token's; None: it was not trained on
    kept: bool  # trained on

    @property
    def place(self) -> Place:
        return self.group, self.number


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Some lines of a file, packed on their own."""

    offset: int
    size: int
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    blocks: Sequence[Block]
    summaries: Sequence[Summary]  # in the order of the rows

    def find(self, place: Place) -> tuple[Block, int] | None:
        """The block of a row, and which of its lines it is."""
        left = next((number for number, one in enumerate(self.summaries) if one.place == place), -1)
        for block in self.blocks:
            if 0 <= left < block.rows:
                return block, left
            left -= block.rows
        return None


def write_rollouts(file: Path, step: int, rows: Iterable[Row]) -> None:
    """Writes the rows of a step and their index, each atomically; equal rows give equal bytes."""
    index_file = layout.index_of(file)
    index_file.unlink(missing_ok=True)  # of other rows
    places, summaries = Places(), []
    with logs.atomic_file(file) as out:
        packer = _Packer(out)
        for row in rows:
            summaries.append(summarise(step, *places.next(row), row))
            packer.add(logs.json_line(row))
        packer.end()
    index = Index(blocks=packer.blocks, summaries=summaries)
    logs.write_atomic(index_file, _packed(logs.json_line(_plain(index))))


def read_index(file: Path, step: int) -> Index | None:
    """The index of a file of rows, None where there is none; raises ValueError if it is not the file's."""
    index = layout.index_of(file)
    if index.exists() and not index.is_file():  # reading a pipe would wait for ever
        raise ValueError("it is not a file")
    try:
        content = json.loads(unpack(index.read_bytes()))
        blocks = [_block(one) for one in content["blocks"]]
        summaries = [_listed(step, one) for one in content["rollouts"]]
        ends, size = [0, *(block.offset + block.size for block in blocks)], file.stat().st_size
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {logs.reason(error)}") from error
    if ends[:-1] != [block.offset for block in blocks] or ends[-1] != size:
        raise ValueError("it describes another file")
    if sum(block.rows for block in blocks) != len(summaries):
        raise ValueError("it lacks rows")
    return Index(blocks=blocks, summaries=summaries)


def read_block(file: Path, block: Block) -> list[bytes]:
    """The lines of a block; raises ValueError where they are damaged."""
    with file.open("rb") as opened:
        opened.seek(block.offset)
        lines = unpack(opened.read(block.size)).split(b"\n")[:-1]
    if len(lines) != block.rows:
        raise ValueError(f"{len(lines)} lines in the place of {block.rows}")
    return lines


def unpack(data: bytes) -> bytes:
    """One gzip member, checked; raises ValueError for anything else."""
    unpacker = zlib.decompressobj(GZIP)
    try:
        unpacked = unpacker.decompress(data, LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("it is cut short, or too large")
    return unpacked


class Places:
    """Group and number of one row after the other. Rows of older runs name no group: it is what has one prompt."""

    def __init__(self) -> None:
        self._group, self._number = -1, 0
        self._of: Any = None  # what the rows of the present group have in common

    def next(self, row: Row) -> Place:
        named = row.get("group")
        group = named if type(named) is int else None
        of = (str(row.get("id", "")), str(row.get("prompt", ""))) if group is None else group
        if of == self._of:
            self._number += 1
        else:
            self._group, self._number, self._of = self._group + 1 if group is None else group, 0, of
        return self._group, self._number


def summarise(step: int, group: int, number: int, row: Row) -> Summary:
    """The summary of a recorded row; what the row lacks, or has in a wrong form, is empty."""
    found = row.get("parts")
    parts = {str(name): value for name, value in found.items() if _is_number(value)} if isinstance(found, dict) else {}
    mask, finish = row.get("mask"), row.get("finish")
    kept = row.get("trained") is True
    reward = row.get("reward")
    return Summary(
        step=step,
        group=group,
        number=number,
        prompt_id=str(row.get("id", "")),
        reward=reward if _is_number(reward) else None,
        parts=parts,
        correct=parts[CORRECT] >= 1 if CORRECT in parts else None,
        length=mask.count(True) if isinstance(mask, list | tuple) else 0,
        finish=finish if isinstance(finish, str) else "",
        max_advantage=_largest(row) if kept else None,
        kept=kept,
    )


class _Packer:
    """Packs lines into blocks; a file has at least one."""

    def __init__(self, out: IO[bytes]) -> None:
        self.blocks: list[Block] = []
        self._out, self._lines, self._size = out, list[bytes](), 0

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._size >= BLOCK:
            self._end_block()

    def end(self) -> None:
        if self._lines or not self.blocks:
            self._end_block()

    def _end_block(self) -> None:
        packed = _packed(b"".join(self._lines))
        self.blocks.append(Block(offset=self._out.tell(), size=len(packed), rows=len(self._lines)))
        self._out.write(packed)
        self._lines, self._size = [], 0


def _packed(data: bytes) -> bytes:
    """No name and time in the header: the bytes depend on the data alone. Higher levels are slow for little gain."""
    return gzip.compress(data, compresslevel=1, mtime=0)


def _plain(index: Index) -> dict[str, Any]:
    blocks = [[block.offset, block.size, block.rows] for block in index.blocks]
    return {"blocks": blocks, "rollouts": [{name: getattr(one, name) for name in CHECKS} for one in index.summaries]}


def _block(found: Any) -> Block:
    """A block of an index, which may hold anything."""
    offset, size, rows = found
    if not all(map(_is_count, found)):
        raise ValueError(f"a block is {str(found)[:40]!r}")
    return Block(offset=offset, size=size, rows=rows)


def _listed(step: int, found: Any) -> Summary:
    """A summary of an index, which may hold anything."""
    for name, is_right in CHECKS.items():
        if not is_right(found[name]):
            raise ValueError(f"{name} of a rollout is {str(found[name])[:40]!r}")
    return Summary(step=step, **{name: found[name] for name in CHECKS})


def _largest(row: Row) -> float | None:
    """The largest magnitude of an advantage: as the row states it, of all tokens where they differ, else of any."""
    found: Any = row.get("advantages")
    if isinstance(found, list):
        return max((abs(one) for one in found if _is_number(one)), default=None)
    stated = row.get("max_advantage", row.get("advantage", 0.0))
    return abs(stated) if _is_number(stated) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -math.inf < value < math.inf


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


# What an index holds of a rollout, and whether a value may stand there.
CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "group": lambda value: type(value) is int,
    "number": _is_count,
    "prompt_id": lambda value: isinstance(value, str),
    "reward": _is_number_or_none,
    "parts": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "correct": lambda value: value is None or type(value) is bool,
    "length": _is_count,
    "finish": lambda value: isinstance(value, str),
    "max_advantage": _is_number_or_none,
    "kept": lambda value: type(value) is bool,
}
