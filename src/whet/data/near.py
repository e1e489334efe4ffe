"""Near duplicates: rows whose words are almost those of an earlier row. Deterministic, and linear in the rows.

MinHash (Broder 1997) finds candidates: rows that agree in a band of minima of hashed shingles. Each row is compared
with the first row of each of its bands only, by the true Jaccard index of the shingles, prompt and answers apart: two
long dialogues that differ in their last answer are not duplicates, nor are two texts that were judged differently.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from whet.data.formats import Record
from whet.data.rows import answers_of, readable_prompt, verdicts_of
from whet.records import Pair

SIMILAR = 0.8  # Jaccard index from which two texts count as the same (Lee et al. 2022)
SHINGLE_WORDS = 5  # the same paper's length
BANDS, BAND_MINIMA = 12, 5  # a pair with index 0.8 shares a band with probability 0.99, one with 0.5 with 0.3
PRIME = (1 << 31) - 1  # products of two numbers below it fit into 64 bits
WORD = re.compile(r"\w+")

Hashes = NDArray[np.uint64]
Parts = tuple[tuple[float | None, ...], tuple[Hashes, ...]]  # what was judged, and the words of prompt and answers


def near_duplicates(rows: Iterable[Record]) -> Iterator[int | None]:
    """For every row the number of the earlier row that it nearly repeats, or None; repeats are not compared with."""
    kept: dict[int, Parts] = {}
    first_in_band: dict[tuple[int, bytes], int] = {}
    for number, row in enumerate(rows):
        parts = _parts(row)
        bands = _bands(np.concatenate(parts[1]))
        candidates = dict.fromkeys(first_in_band[band] for band in bands if band in first_in_band)
        same = next((other for other in candidates if _are_near(parts, kept[other])), None)
        if same is None:
            kept[number] = parts
            for band in bands:
                first_in_band.setdefault(band, number)
        yield same


def runs(text: str) -> list[int]:
    """The hashes of all runs of five words; a shorter text has none."""
    words = WORD.findall(text.lower())
    return [_hash(words[start : start + SHINGLE_WORDS]) for start in range(len(words) - SHINGLE_WORDS + 1)]


def _parts(row: Record) -> Parts:
    if isinstance(row, Pair):  # its sides apart: with the sides swapped it is the opposite, not a repetition
        return (), tuple(map(_shingles, (readable_prompt(row), row.chosen, row.rejected)))
    return verdicts_of(row), tuple(map(_shingles, (readable_prompt(row), "\n".join(answers_of(row)))))


def _are_near(one: Parts, other: Parts) -> bool:
    return one[0] == other[0] and all(_jaccard(*both) >= SIMILAR for both in zip(one[1], other[1], strict=True))


def _jaccard(one: Hashes, other: Hashes) -> float:
    shared = np.intersect1d(one, other, assume_unique=True).size
    return shared / (one.size + other.size - shared)


def _shingles(text: str) -> Hashes:
    """The hashes of all runs of five words, each once; a shorter text is one run."""
    hashes = runs(text) or [_hash(WORD.findall(text.lower()))]
    return np.unique(np.array(hashes, dtype=np.uint64))


def _hash(words: Sequence[str]) -> int:
    # CRC-32 is fast and the same everywhere; collisions only ever propose a candidate or blur an index by 1e-9.
    return zlib.crc32(" ".join(words).encode()) % PRIME


def _bands(shingles: Hashes) -> list[tuple[int, bytes]]:
    """The least value of every hash function over the shingles, in bands."""
    values = (MULTIPLIERS[:, None] * shingles + OFFSETS[:, None]) % np.uint64(PRIME)
    minima = values.min(axis=1).reshape(BANDS, BAND_MINIMA)
    return [(band, minima[band].tobytes()) for band in range(BANDS)]


def _constants(name: str) -> Hashes:
    """Numbers below the prime that depend on the name alone."""
    count = BANDS * BAND_MINIMA
    return np.array([1 + zlib.crc32(f"{name} {index}".encode()) % (PRIME - 1) for index in range(count)], np.uint64)


MULTIPLIERS, OFFSETS = _constants("multiplier"), _constants("offset")
