"""Counter-based random numbers: one for every (stream, position), without state.

Draws depend on the stream's name alone, not on the batch or on earlier draws, so a resumed run samples what an
uninterrupted one would have. The mixer is SplitMix64 (Steele et al. 2014) in wrapping 64-bit arithmetic.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def stream_key(stream: Sequence[int]) -> int:
    """A signed 64-bit key for a named stream."""
    text = ",".join(str(part) for part in stream)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def name_number(name: str) -> int:
    """A stable 63-bit number for a name, as a part of a stream."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "big") >> 1


def uniform(keys: Tensor, positions: Tensor) -> Tensor:
    """(N,) int64 keys and positions → (N,) float64 in [0, 1)."""
    z = keys + (positions + 1) * _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    z = z ^ _shift(z, 31)
    return _shift(z, 11).to(torch.float64) * 2.0**-53


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
