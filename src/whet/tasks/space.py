"""Finite problem spaces: drawn in random order without repeats, and split into training and evaluation problems.

The split is a hash of the problem's content, so it is the same at every level, in every process and on every machine.
Orders are keyed permutations (Feistel networks) instead of a random generator's: no memory of what was drawn.
"""

import json
import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import count as integers
from itertools import islice
from typing import TypeVar

from whet.errors import UserError

R = TypeVar("R")

HELD_OUT_SHARE = 0.1
LEAST_HELD_OUT = 8  # prompts that a share holds out at least, if they are at most a quarter of all
WORD = 2**64
LISTED = 2**20  # rows up to which the order of an epoch is kept in memory
FEISTEL_ROUNDS = 4  # three make a permutation that looks random (Luby & Rackoff 1988); one more costs little


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A question with one right answer."""

    question: str
    answer: str
    twin: str  # leakage group: equal for problems that would leak into each other (3+5 and 5+3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """All problems of one or more kinds."""

    sizes: tuple[int, ...]  # number of problems of each kind
    problem: Callable[[int, int], Problem]  # (kind, index within the kind) → problem
    share: float = HELD_OUT_SHARE  # of the leakage groups that are held out

    def training(self, count: int, seed: tuple[int, ...]) -> list[Problem]:
        """`count` training problems; none repeats before all have been drawn."""
        return list(islice(self._laps(seed), count))

    def held_out(self, count: int) -> list[Problem]:
        """The first `count` evaluation problems in a fixed order, or all if there are fewer."""
        return list(islice((p for p in self._walk("held out") if self._is_held_out(p)), count))

    def require_both_sides(self, what: str) -> None:
        """Rejects a space too small to be split."""
        sides: set[bool] = set()
        for problem in self._walk("sides"):
            sides.add(self._is_held_out(problem))
            if len(sides) == 2:
                return
        missing = "training" if True in sides else "evaluation"
        raise UserError(f"{what} has only {sum(self.sizes)} problems and none is left for {missing}: raise the level")

    def _laps(self, seed: tuple[int, ...]) -> Iterator[Problem]:
        for lap in integers():
            yield from (p for p in self._walk("training", lap, *seed) if not self._is_held_out(p))

    def _is_held_out(self, problem: Problem) -> bool:
        return is_held_out(problem.twin, self.share)

    def _walk(self, *key: int | str) -> Iterator[Problem]:
        for kind, index in shuffled(self.sizes, fingerprint(*key)):
            yield self.problem(kind, index)


def is_held_out(content: str, share: float = HELD_OUT_SHARE) -> bool:
    return fingerprint("side", content) < share * WORD


def held_out_sides(keys: Iterable[str], share: float, rows: int | None = None) -> bytes:
    """For the key of every row 1 if it is held out, else 0: keys with the lowest hashes, about a `share` of them.

    Or the keys of `rows` rows. One key at least is left for training below share 1. Memory is a few bytes per row.
    """
    import numpy as np

    if rows is not None and (type(rows) is not int or rows < 0):
        raise UserError(f"held_out_rows is {rows!r}, must be a number of rows, 0 or more")
    hashes = np.frombuffer(array("Q", (fingerprint("side", key) for key in keys)), dtype=np.uint64)
    if rows is not None and 0 < len(hashes) <= rows:
        raise UserError(f"held_out_rows is {rows} and there are {len(hashes)} rows: hold fewer out")
    order, counts = np.unique(hashes, return_counts=True)
    if rows is not None:
        held = order[_with_rows(counts[:-1].tolist(), rows)]
    elif share in (0, 1):
        held = order if share else order[:0]
    else:
        by_share = int(np.searchsorted(order, np.uint64(math.ceil(share * WORD))))
        held = order[:-1][: max(by_share, 1, min(LEAST_HELD_OUT, len(order) // 4))]
    return np.isin(hashes, held).tobytes()


def _with_rows(counts: Sequence[int], rows: int) -> list[int]:
    """The first keys that together have at most this many rows; one that would have more is passed over."""
    found = []
    for number, count in enumerate(counts):
        if count <= rows:
            found.append(number)
            rows -= count
    return found


def connected(size: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """The lowest point connected with each of the points 0 … size-1 (union-find)."""
    parents = list(range(size))

    def root(point: int) -> int:
        while parents[point] != point:
            parents[point] = parents[parents[point]]
            point = parents[point]
        return point

    for one, other in links:
        low, high = sorted((root(one), root(other)))
        parents[high] = low
    return [root(point) for point in range(size)]


def leakage_groups(keys: Sequence[Iterable[Hashable]]) -> list[str]:
    """For each row, given by its keys, the name of its leakage group: rows that share a key, also through others."""
    first: dict[Hashable, int] = {}
    links = ((place, first.setdefault(key, place)) for place, own in enumerate(keys) for key in own)
    return [str(root) for root in connected(len(keys), links)]


def fingerprint(*parts: int | str) -> int:
    """A 64-bit hash, the same in every process, platform and version of Python."""
    return int.from_bytes(blake2b(json.dumps(parts).encode(), digest_size=8).digest(), "big")


def shuffled(sizes: Sequence[int], key: int) -> Iterator[tuple[int, int]]:
    """Every (kind, index) once, in an order determined by `key`; kinds alternate at random."""
    live = [(kind, permutation(size, _scramble(key + kind))) for kind, size in enumerate(sizes)]
    for turn in integers(1):
        if not live:
            return
        slot = _scramble(key - turn) % len(live)
        kind, indices = live[slot]
        index = next(indices, None)
        if index is None:
            live.pop(slot)
        else:
            yield kind, index


def permutation(size: int, key: int) -> Iterator[int]:
    """0 … size-1 in an order determined by `key`: a Feistel network that skips values out of range."""
    half, round_keys = _feistel(size, key)
    for position in range(1 << (2 * half)):
        index = _permuted(position, half, round_keys)
        if index < size:
            yield index


def _place_of(position: int, size: int, key: int) -> int:
    """The value at one position of an order of 0 … size-1: values out of range are permuted again until one is in."""
    half, round_keys = _feistel(size, key)
    index = _permuted(position, half, round_keys)
    while index >= size:
        index = _permuted(index, half, round_keys)
    return index


def _feistel(size: int, key: int) -> tuple[int, list[int]]:
    """The bits of half a word that holds 0 … size-1, and the keys of the rounds."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    return half, [_scramble(key + n) for n in range(FEISTEL_ROUNDS)]


def _permuted(position: int, half: int, round_keys: Sequence[int]) -> int:
    low = (1 << half) - 1
    left, right = position >> half, position & low
    for round_key in round_keys:
        left, right = right, left ^ (_scramble(right + round_key) & low)
    return (left << half) | right


def epoch_places(size: int, start: int, count: int, *name: int | str) -> Iterator[int]:
    """Draws `start` … `start + count - 1` from `size` rows in epochs, each shuffled by (`name`, epoch)."""
    for number in range(start, start + count):
        epoch, place = divmod(number, size)
        if size > LISTED:
            yield _place_of(place, size, fingerprint(*name, epoch))
        else:
            yield _epoch_order(size, (*name, epoch))[place]


@lru_cache(maxsize=4)
def _epoch_order(size: int, name: tuple[int | str, ...]) -> tuple[int, ...]:
    """Cached, because every step of an epoch needs it."""
    return tuple(permutation(size, fingerprint(*name)))


def first_held_out(rows: Sequence[R], count: int) -> list[R]:
    """The first `count` rows in a fixed order, or all if there are fewer."""
    return [rows[place] for place in islice(permutation(len(rows), fingerprint("held out")), count)]


def _scramble(value: int) -> int:
    """The mixer of SplitMix64 (Steele et al. 2014), a bijection of 64-bit words."""
    value = (value + 0x9E3779B97F4A7C15) % WORD
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
    return value ^ (value >> 31)
