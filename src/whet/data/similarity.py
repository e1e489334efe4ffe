"""Similar rows: leakage groups, which a split must keep together, and near duplicates. Deterministic.

Texts are compared by the Jaccard index of their shingles, runs of five words.

**Leakage groups** (the column `twin`) are connected components of a graph of prompts, independent of the order of
rows. Edges: the same `twin` in the data; half of the shingles in common; a long step in common between two traces.
Shingles and steps that many prompts hold belong to a template and do not count, except between long prompts that are
nearly identical. In repetitive data components could grow to swallow the data set and with it the held-out share: too
large ones are divided again by rarer shingles only. The caller learns whether similar prompts ended up apart.

**Near duplicates** are found by MinHash (Broder 1997): rows that agree in a band of minima are candidates. A row is
compared with the first row of each of its bands only, so the cost is linear. Prompt and answers are compared
separately: two long dialogues that differ in the last answer are not duplicates, nor are rows with different labels.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from whet.data.columns import spaced
from whet.data.formats import Record, answers_of, labels_of
from whet.data.split import distinguishing
from whet.records import Pair, Trace
from whet.tasks.shingles import PRIME, SIMILAR, Shingles, jaccard, shingles_of, shingles_or_text
from whet.tasks.space import connected, fingerprint

Row = TypeVar("Row", bound=Record)
Link = tuple[int, int]
Numbers = NDArray[np.int64]
Sections = tuple[tuple[float | None, ...], tuple[Shingles, ...]]  # labels; shingles of prompt and answers

ALIKE = 0.5  # Jaccard index of a leakage group; one changed word costs a prompt of 20 words a third of its shingles
LONG = 20  # shingles; a shorter prompt made from a template differs in too much of its content to be `SIMILAR`
FIRST = 3  # every holder of a shingle is compared with this many of the shortest holders
ENOUGH = 0.04  # share of their shingles in which two prompts must meet to be compared
LONG_STEP = 40  # characters; shorter ones ("so the answer is 12") recur by chance
# Shingles and steps in more prompts than COMMON do not count; RARER are the bounds for dividing a large component.
COMMON, RARER = 20, (20, 8, 3, 0)
LARGEST = 0.05  # the largest share of the rows in a component of similar prompts,
SMALL = 20  # or this many rows if they are at most half of all
ENUMERATED = re.compile(r"^\W*(?:step\s*)?\d+\s*[.:)]\s*")  # "3. " or "Step 3: " at the start of a step
BANDS, BAND_MINIMA = 12, 5  # a pair with index 0.8 shares a band with probability 0.99, one with 0.5 with 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Graph:
    """The distinct prompts by number, and their possible edges."""

    rows: tuple[int, ...]  # rows with each prompt
    shingles: tuple[Shingles, ...]  # of each prompt
    named: tuple[tuple[int, ...], ...]  # prompts with the same `twin` in the data
    stepped: tuple[tuple[int, ...], ...]  # prompts whose traces share a long step

    def size(self, part: Iterable[int]) -> int:
        return sum(self.rows[point] for point in part)


def assign_twins(rows: Sequence[Row]) -> tuple[list[Row], bool]:
    """The rows in order with their leakage group in `twin`, and whether some similar rows are in different groups."""
    text_of = distinguishing(rows)
    texts = [text_of(row) for row in rows]
    order = sorted(set(texts))
    numbers = {text: number for number, text in enumerate(order)}
    places = [numbers[text] for text in texts]
    clusters, is_parted = _clusters(_graph(rows, places, order))
    names = _names(rows, [clusters[place] for place in places], clusters, order)
    named = [replace(row, twin=names[clusters[place]]) for row, place in zip(rows, places, strict=True)]
    return named, is_parted


def near_duplicates(rows: Iterable[Record]) -> Iterator[int | None]:
    """For every row the number of the earlier row that it nearly repeats, or None; repeats are not compared with."""
    kept: dict[int, Sections] = {}
    first_in_band: dict[tuple[int, bytes], int] = {}
    for number, row in enumerate(rows):
        sections = _sections(row)
        bands = _bands(np.concatenate(sections[1]))
        candidates = dict.fromkeys(first_in_band[band] for band in bands if band in first_in_band)
        same = next((other for other in candidates if _are_near(sections, kept[other])), None)
        if same is None:
            kept[number] = sections
            for band in bands:
                first_in_band.setdefault(band, number)
        yield same


def _graph(rows: Sequence[Record], places: Sequence[int], order: Sequence[str]) -> _Graph:
    named: dict[str, set[int]] = {}
    stepped: dict[str, set[int]] = {}
    for row, place in zip(rows, places, strict=True):
        if row.twin:
            named.setdefault(row.twin, set()).add(place)
        for step in row.steps if isinstance(row, Trace) else ():
            plain = spaced(ENUMERATED.sub("", step.lower()))
            if len(plain) >= LONG_STEP:
                stepped.setdefault(plain, set()).add(place)
    counts = Counter(places)
    return _Graph(
        rows=tuple(counts[place] for place in range(len(order))),
        shingles=tuple(map(shingles_of, order)),
        named=tuple(tuple(sorted(found)) for found in named.values()),
        stepped=tuple(tuple(sorted(found)) for found in stepped.values() if len(found) > 1),
    )


def _clusters(graph: _Graph) -> tuple[list[int], bool]:
    """The lowest prompt of each prompt's cluster, and whether similar prompts may be in different clusters."""
    alike = list(_alike(graph.shingles))
    repeated = [
        (one, other)
        for one, other, index in alike
        if index >= SIMILAR and min(graph.shingles[one].size, graph.shingles[other].size) >= LONG
    ]
    total = sum(graph.rows)
    certain = max(map(graph.size, _parts(graph, 0)), default=0)
    limit = max(certain, min(total / 2, max(SMALL, LARGEST * total)))
    parts = _parts(graph, COMMON, repeated)
    is_parted = any(graph.size(part) > limit for part in parts)
    for common in RARER:
        parts = [
            smaller
            for part in parts
            for smaller in ([part] if graph.size(part) <= limit else _divided(graph, part, common))
        ]
    clusters = [0] * len(graph.rows)
    for part in parts:
        for point in part:
            clusters[point] = part[0]
    return clusters, is_parted or any(clusters[one] != clusters[other] for one, other, _ in alike)


def _parts(graph: _Graph, common: int, more: Iterable[Link] = ()) -> list[list[int]]:
    """The connected components, ascending; shingles and steps in more than `common` prompts do not count."""
    steps = (prompts for prompts in graph.stepped if len(prompts) <= common)
    links = (link for prompts in chain(graph.named, steps) for link in pairwise(prompts))
    parts: dict[int, list[int]] = {}
    for point, root in enumerate(connected(len(graph.rows), chain(links, more, _by_shingles(graph.shingles, common)))):
        parts.setdefault(root, []).append(point)
    return list(parts.values())


def _divided(graph: _Graph, part: Sequence[int], common: int) -> list[list[int]]:
    """The components of one component, counting shingles inside it only: the rest of the data has no influence."""
    places = {point: place for place, point in enumerate(part)}

    def inside(sets: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(places[point] for point in points if point in places) for points in sets)

    alone = _Graph(
        rows=tuple(graph.rows[point] for point in part),
        shingles=tuple(graph.shingles[point] for point in part),
        named=inside(graph.named),
        stepped=inside(graph.stepped),
    )
    return [[part[place] for place in smaller] for smaller in _parts(alone, common)]


def _alike(prompts: Sequence[Shingles]) -> Iterator[tuple[int, int, float]]:
    """Similar prompts and their Jaccard index, however common their shingles; enough pairs to connect a crowd."""
    for one, other in _compared(prompts):
        index = jaccard(prompts[one], prompts[other])
        if index >= ALIKE:
            yield one, other, index


def _compared(prompts: Sequence[Shingles]) -> list[Link]:
    """Pairs of prompts worth comparing; their number is linear in that of the prompts.

    Each holder of a shingle meets its shortest holders, which in a template are the most similar to all others, and the
    next shorter one. Pairs that meet in enough of their shingles are compared.
    """
    owners, places, counts = _occurrences(prompts)
    sizes = np.array([held.size for held in prompts], dtype=np.int64)
    is_shared = counts[places] > 1
    owners, places = owners[is_shared], places[is_shared]
    order = np.lexsort((owners, sizes[owners], places))
    owners, places = owners[order], places[order]
    here = np.arange(len(places))
    first = np.searchsorted(places, places)  # the first holder of the same shingle
    found: set[Link] = set()
    for other in (*(first + step for step in range(FIRST)), here - 1):
        is_before = (first <= other) & (other < here)
        pairs, times = np.unique(owners[other[is_before]] * len(prompts) + owners[is_before], return_counts=True)
        ones, others = np.divmod(pairs, max(1, len(prompts)))
        is_worth = times >= ENOUGH * (sizes[ones] + sizes[others])
        found.update(zip(ones[is_worth].tolist(), others[is_worth].tolist(), strict=True))
    return sorted(found)


def _occurrences(prompts: Sequence[Shingles]) -> tuple[Numbers, Numbers, Numbers]:
    """The prompt and the number of every shingle, prompt after prompt; and how many prompts hold each number."""
    owners = np.repeat(np.arange(len(prompts)), [held.size for held in prompts])
    every = np.concatenate([np.empty(0, dtype=np.uint32), *prompts])
    _, places, counts = np.unique(every, return_inverse=True, return_counts=True)
    return owners, places, counts


def _by_shingles(prompts: Sequence[Shingles], common: int) -> Iterator[Link]:
    """All pairs of prompts that are similar in the shingles held by at most `common` prompts."""
    owners, places, counts = _occurrences(prompts)
    often = counts[places]
    sizes = np.bincount(owners[often <= common], minlength=len(prompts)).tolist()
    is_shared = (often > 1) & (often <= common)  # most shingles are in one prompt and need no memory here
    shared = zip(owners[is_shared].tolist(), places[is_shared].tolist(), strict=True)
    holders: dict[int, list[int]] = {}
    for number, held in groupby(shared, key=itemgetter(0)):
        overlap: Counter[int] = Counter()
        for _, shingle in held:
            earlier = holders.setdefault(shingle, [])
            overlap.update(earlier)
            earlier.append(number)
        for other, count in overlap.items():
            if count >= ALIKE * (sizes[number] + sizes[other] - count):
                yield number, other


def _names(
    rows: Sequence[Record], found: Sequence[int], clusters: Sequence[int], order: Sequence[str]
) -> dict[int, str]:
    """The `twin` of each cluster: one from the data, else a hash of one of its prompts; empty for a single prompt."""
    own: dict[int, set[str]] = {}
    for row, cluster in zip(rows, found, strict=True):
        own.setdefault(cluster, set()).update((row.twin,) if row.twin else ())
    prompts: dict[int, list[int]] = {}
    for text, cluster in zip(order, clusters, strict=True):
        prompts.setdefault(cluster, []).append(fingerprint("twin", text))
    # The lowest hash, so that a row that joins the cluster later seldom changes the name.
    return {
        cluster: min(own[cluster], key=lambda name: fingerprint("twin", name), default="")
        or (f"{min(hashes):016x}" if len(hashes) > 1 else "")
        for cluster, hashes in prompts.items()
    }


def _sections(row: Record) -> Sections:
    if isinstance(row, Pair):  # each side by itself: swapped sides are the opposite of a duplicate
        return (), tuple(map(shingles_or_text, (row.prompt_text, row.chosen, row.rejected)))
    return labels_of(row), tuple(map(shingles_or_text, (row.prompt_text, "\n".join(answers_of(row)))))


def _are_near(one: Sections, other: Sections) -> bool:
    return one[0] == other[0] and all(jaccard(*both) >= SIMILAR for both in zip(one[1], other[1], strict=True))


def _bands(shingles: Shingles) -> list[tuple[int, bytes]]:
    """The minimum of every hash function over the shingles, in bands."""
    values = (MULTIPLIERS[:, None] * shingles + OFFSETS[:, None]) % np.uint64(PRIME)
    minima = values.min(axis=1).reshape(BANDS, BAND_MINIMA)
    return [(band, minima[band].tobytes()) for band in range(BANDS)]


def _constants(name: str) -> NDArray[np.uint64]:
    """Numbers below the prime that depend on the name alone."""
    count = BANDS * BAND_MINIMA
    return np.array([1 + zlib.crc32(f"{name} {index}".encode()) % (PRIME - 1) for index in range(count)], np.uint64)


MULTIPLIERS, OFFSETS = _constants("multiplier"), _constants("offset")
