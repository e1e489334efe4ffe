"""Similarity of texts: the Jaccard index of their shingles, runs of five words."""

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Shingles = NDArray[np.uint32]  # hashes, sorted, each once

SHINGLE_WORDS = 5  # Lee et al. 2022
SIMILAR = 0.8  # Jaccard index of near duplicates (Lee et al. 2022)
PRIME = (1 << 31) - 1  # products of two numbers below it fit into 64 bits
WORD = re.compile(r"\w+")


def jaccard(one: Shingles, other: Shingles) -> float:
    shared = np.intersect1d(one, other, assume_unique=True).size
    return shared / (one.size + other.size - shared)


def shingles_of(text: str) -> Shingles:
    """Empty for a text of fewer than five words."""
    words = WORD.findall(text.lower())
    hashes = [_hash(words[start : start + SHINGLE_WORDS]) for start in range(len(words) - SHINGLE_WORDS + 1)]
    return np.unique(np.array(hashes, dtype=np.uint32))


def shingles_or_text(text: str) -> Shingles:
    """A text of fewer than five words is its own single shingle."""
    shingles = shingles_of(text)
    return shingles if shingles.size else np.array([_hash(WORD.findall(text.lower()))], dtype=np.uint32)


def _hash(words: Sequence[str]) -> int:
    # CRC-32 is fast and the same on every platform; a collision only adds a candidate or shifts an index by 1e-9.
    return zlib.crc32(" ".join(words).encode()) % PRIME
