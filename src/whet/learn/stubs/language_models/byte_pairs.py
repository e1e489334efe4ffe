"""Exercise 2: byte-pair encoding.

Chapter: docs/learn/02-tokenisers.md. Replace every `raise NotImplementedError`; then `whet learn check byte-pairs`.
Everything here is lists of whole numbers; bytes are the ids 0 to 255.
"""


def pair_counts(ids: list[int]) -> dict[tuple[int, int], int]:
    """How often each pair of neighbours occurs; pairs that overlap all count."""
    raise NotImplementedError


def merge(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """The list with `new` in place of every occurrence of the pair, from left to right, without overlaps."""
    raise NotImplementedError


def train(ids: list[int], merges: int) -> list[tuple[int, int]]:
    """The pairs to merge, in order: each time the most frequent one, of equally frequent ones the smallest.

    The first merge makes the token 256, the next one 257, … When no pair is left, the list ends.
    """
    raise NotImplementedError


def encode(ids: list[int], pairs: list[tuple[int, int]]) -> list[int]:
    """Bytes as tokens, with pairs that `train` found: the first became 256, the next 257, …"""
    raise NotImplementedError
