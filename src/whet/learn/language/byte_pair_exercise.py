"""Byte-pair encoding: merging the most frequent pair again and again."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise

Pair = tuple[int, int]
TEXT = list(b"low lower lowest slow slower")
TIES = [3, 4, 1, 2, 3, 4, 1, 2]


def pair_counts(ids: list[int]) -> dict[Pair, int]:
    return dict(Counter(pairwise(ids)))


def merge(ids: list[int], pair: Pair, new: int) -> list[int]:
    out, place = [], 0
    while place < len(ids):
        found = tuple(ids[place : place + 2]) == tuple(pair)
        out.append(new if found else ids[place])
        place += 2 if found else 1
    return out


def _best(counts: dict[Pair, int], ties: str = "smallest") -> Pair:
    most = max(counts.values())
    equal = [pair for pair, count in counts.items() if count == most]
    if ties == "first":
        return equal[0]
    return max(equal) if ties == "largest" else min(equal)


def train(ids: list[int], merges: int, *, ties: str = "smallest", renewed: bool = True) -> list[Pair]:
    found: list[Pair] = []
    counts = pair_counts(ids)
    for new in range(256, 256 + merges):
        counts = pair_counts(ids) if renewed else {key: n for key, n in counts.items() if key not in found}
        if not counts:
            break
        found.append(_best(counts, ties))
        ids = merge(ids, found[-1], new)
    return found


def _rarest(ids: list[int], merges: int) -> list[Pair]:
    found: list[Pair] = []
    for new in range(256, 256 + merges):
        counts = pair_counts(ids)
        if not counts:
            break
        least = min(counts.values())
        found.append(min(pair for pair, count in counts.items() if count == least))
        ids = merge(ids, found[-1], new)
    return found


def encode(ids: list[int], pairs: list[Pair]) -> list[int]:
    for new, pair in enumerate(pairs, 256):
        ids = merge(ids, pair, new)
    return ids


def _backwards(ids: list[int], pairs: list[Pair]) -> list[int]:
    for place in reversed(range(len(pairs))):
        ids = merge(ids, pairs[place], 256 + place)
    return ids


def _right_to_left(ids: list[int], pair: Pair, new: int) -> list[int]:
    return merge(ids[::-1], (pair[1], pair[0]), new)[::-1]


def _overlapping(ids: list[int], pair: Pair, new: int) -> list[int]:
    starts = [place for place, found in enumerate(pairwise(ids)) if found == tuple(pair)]
    skipped = {place + 1 for place in starts} - set(starts)
    return [new if place in starts else token for place, token in enumerate(ids) if place not in skipped]


def _stops_early(ids: list[int], pair: Pair, new: int) -> list[int]:
    """Without the last token where it is in no pair."""
    merged = merge(ids, pair, new)
    ends_in_pair = merged[-1:] == [new] and len(ids) > 1
    return merged if ends_in_pair else merged[:-1]


def _first_only(ids: list[int], pair: Pair, new: int) -> list[int]:
    for place, found in enumerate(pairwise(ids)):
        if found == tuple(pair):
            return [*ids[:place], new, *ids[place + 2 :]]
    return ids


def _kept(ids: list[int], pair: Pair, new: int) -> list[int]:
    starts = {place for place, found in enumerate(pairwise(ids)) if found == tuple(pair)}
    return [new if place in starts else token for place, token in enumerate(ids)]


LEARNED = train(TEXT, 6)

EXERCISE = Exercise(
    name="byte-pairs",
    title="byte-pair encoding: merges",
    phase="language models",
    chapter="02-tokenisers.md",
    checks=(
        Compared(
            "pair_counts",
            pair_counts,
            [Case({"ids": [1, 2, 1, 2, 2]}), Case({"ids": [5, 5, 5]}), Case({"ids": TEXT}), Case({"ids": [7]})],
            [
                Mistake(
                    lambda ids: dict(Counter((min(p), max(p)) for p in pairwise(ids))),
                    "(1, 2) and (2, 1) are counted together: the order matters, `th` is no `ht`",
                ),
                Mistake(
                    lambda ids: dict(Counter(list(pairwise(ids))[::2])),
                    "every second pair is missing: neighbouring pairs overlap, and both count",
                ),
                Mistake(
                    lambda ids: dict(Counter(list(pairwise(ids))[:-1])),
                    "the last pair is missing",
                ),
            ],
            tensors=False,
        ),
        Compared(
            "merge",
            merge,
            [
                Case({"ids": [1, 2, 3, 1, 2], "pair": (1, 2), "new": 9}),
                Case({"ids": [5, 5, 5, 5, 5], "pair": (5, 5), "new": 9}),
                Case({"ids": [1, 2, 1], "pair": (1, 2), "new": 9}),
                Case({"ids": [3], "pair": (1, 2), "new": 9}, "a text of one token has no pair and stays as it is"),
            ],
            [
                Mistake(
                    _overlapping,
                    "one token takes part in two merges: of 5 5 5 the first two become one token, and the third is "
                    "left",
                ),
                Mistake(_right_to_left, "merging goes from left to right: with an odd number of equal tokens it shows"),
                Mistake(_stops_early, "the last token must stay if it begins no pair"),
                Mistake(_first_only, "only the first occurrence is merged"),
                Mistake(_kept, "the second token of the pair is still there: the new one stands for both"),
            ],
            tensors=False,
        ),
        Compared(
            "train",
            train,
            [
                Case({"ids": [1, 2, 1, 2, 3], "merges": 1}),
                Case({"ids": TIES, "merges": 3}),
                Case({"ids": TEXT, "merges": 6}),
                Case({"ids": [1, 2], "merges": 5}, "when no pair is left, training ends, with fewer merges than asked"),
            ],
            [
                Mistake(
                    lambda ids, merges: train(ids, merges, renewed=False),
                    "the counts are those of the original text all along: after a merge there are new pairs, with the "
                    "new token in them, and old ones are rarer",
                ),
                Mistake(
                    lambda ids, merges: train(ids, merges, ties="first"),
                    "of equally frequent pairs the one that was seen first is taken; asked for is the smallest, so "
                    "that the result does not depend on the order of the text",
                ),
                Mistake(
                    lambda ids, merges: train(ids, merges, ties="largest"),
                    "of equally frequent pairs the largest is taken; asked for is the smallest",
                ),
                Mistake(_rarest, "the rarest pair is merged; a merge pays where a pair is frequent"),
            ],
            tensors=False,
        ),
        Compared(
            "encode",
            encode,
            [
                Case({"ids": [1, 2, 1, 2], "pairs": [(1, 2), (256, 256)]}),
                Case({"ids": [1, 2, 3, 4, 5], "pairs": [(1, 2), (256, 3), (4, 5)]}),
                Case({"ids": list(b"slowest low"), "pairs": LEARNED}),
            ],
            [
                Mistake(
                    _backwards,
                    "the merges are applied in the wrong order: a later merge needs the tokens that an earlier one "
                    "makes",
                ),
                Mistake(
                    lambda ids, pairs: encode(ids, pairs[:1]),
                    "only the first merge is applied",
                ),
                Mistake(
                    lambda ids, pairs: encode(ids, train(ids, len(pairs))),
                    "this learns merges anew from the text: a tokeniser uses those that it was trained with, or the "
                    "same word would have other ids in every text",
                ),
            ],
            tensors=False,
        ),
    ),
    hints=(
        "Do two merges of `aaabdaaabac` by hand before you write code.",
        "`merge` walks through the list with a position that moves on by two where the pair stands, else by one.",
        "Of the pairs with the highest count the smallest is wanted; Python compares tuples entry by entry.",
        "`train` counts, chooses, merges, and counts again in the merged list. `encode` does no counting at all.",
    ),
)
