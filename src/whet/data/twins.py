"""Rows that give each other away get the same `twin`, so that no split parts them: one problem in other words, and
solutions that share a long step. Deterministic, and independent of the order of rows.

Prompts are the points of a graph. What the data itself calls twins is linked for sure. Two prompts that share half of
their runs of five words are linked too, and so are the prompts of two traces with a long step in common, unless the
words stand in many prompts: those belong to a template, not to a problem. But long prompts that share nearly all of
their runs are linked however many they are. Whatever hangs together becomes one cluster.

Chains may grow without end in data that repeats itself. Inside a cluster that would swallow the data only rarer words
link, and at last none. So the held-out share stays what was asked for. Where prompts that are alike end up in different
clusters, for this reason or for a template, the caller is told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from whet.data.formats import Record
from whet.data.near import runs
from whet.data.rows import spaced
from whet.data.split import telling
from whet.records import Trace
from whet.tasks.space import fingerprint

Row = TypeVar("Row", bound=Record)
Link = tuple[int, int]
Runs = NDArray[np.uint32]
Numbers = NDArray[np.int64]

ALIKE = 0.5  # Jaccard index of the runs of two prompts; one changed word costs a prompt of 20 words a third of its runs
NEARLY_SAME = 0.8  # Jaccard index from which long prompts are one even where many share it
LONG = 20  # runs of words; a shorter prompt of a template differs in too much of what it asks
FIRST = 3  # so many of the shortest prompts that hold a run of words meet all others that do
ENOUGH = 0.04  # share of their runs in which two prompts must meet to be compared
LONG_STEP = 40  # characters; shorter ones ("so the answer is 12") recur by chance
# Words that stand in more prompts than this say nothing. The others are for the inside of clusters that are too large.
COMMON, RARER = 20, (20, 8, 3, 0)
LARGEST = 0.05  # share of the rows that a cluster of likely twins may hold,
SMALL = 20  # or so many rows, if they are at most half of all
NOTHING = np.empty(0, dtype=np.uint32)
ENUMERATED = re.compile(r"^\W*(?:step\s*)?\d+\s*[.:)]\s*")  # "3. " or "Step 3: " before what the step says


@dataclass(frozen=True, kw_only=True, slots=True)
class _Graph:
    """The different prompts of rows by number, and what may link them."""

    rows: tuple[int, ...]  # of each prompt: how many rows ask it
    runs: tuple[Runs, ...]  # of each prompt: the hashes of its runs of words, each once
    named: tuple[tuple[int, ...], ...]  # prompts that the data calls twins
    stepped: tuple[tuple[int, ...], ...]  # prompts whose traces have a long step in common


def with_twins(rows: Sequence[Row]) -> tuple[list[Row], bool]:
    """The rows in their order, those of a cluster with the same `twin`, and whether some that are alike are parted."""
    tell = telling(rows)
    texts = [tell(row) for row in rows]
    order = sorted(set(texts))
    numbers = {text: number for number, text in enumerate(order)}
    places = [numbers[text] for text in texts]
    clusters, is_parted = _clusters(_graph(rows, places, order))
    names = _names(rows, [clusters[place] for place in places], clusters, order)
    named = [replace(row, twin=names[clusters[place]]) for row, place in zip(rows, places, strict=True)]
    return named, is_parted


def plain_step(step: str) -> str:
    """What a step says, without its number, capitals and white space."""
    return spaced(ENUMERATED.sub("", step.lower()))


def _graph(rows: Sequence[Record], places: Sequence[int], order: Sequence[str]) -> _Graph:
    named: dict[str, set[int]] = {}
    stepped: dict[str, set[int]] = {}
    for row, place in zip(rows, places, strict=True):
        if row.twin:
            named.setdefault(row.twin, set()).add(place)
        for step in map(plain_step, row.steps if isinstance(row, Trace) else ()):
            if len(step) >= LONG_STEP:
                stepped.setdefault(step, set()).add(place)
    asked = Counter(places)
    return _Graph(
        rows=tuple(asked[place] for place in range(len(order))),
        runs=tuple(np.unique(np.array(runs(text), dtype=np.uint32)) for text in order),
        named=tuple(tuple(sorted(found)) for found in named.values()),
        stepped=tuple(tuple(sorted(found)) for found in stepped.values() if len(found) > 1),
    )


def _clusters(graph: _Graph) -> tuple[list[int], bool]:
    """The least prompt of each one's cluster, and whether prompts that are alike, or may be, are in different ones."""
    alike = list(_alike(graph.runs))
    repeated = [(one, other) for one, other, index in alike if _is_repeated(graph, one, other, index)]
    total = sum(graph.rows)
    sure = max((_rows(graph, part) for part in _parts(graph, 0)), default=0)
    limit = max(sure, min(total / 2, max(SMALL, LARGEST * total)))
    parts = _parts(graph, COMMON, repeated)
    is_parted = any(_rows(graph, part) > limit for part in parts)
    for common in RARER:
        parts = [
            smaller
            for part in parts
            for smaller in ([part] if _rows(graph, part) <= limit else _split(graph, part, common))
        ]
    clusters = [0] * len(graph.rows)
    for part in parts:
        for point in part:
            clusters[point] = part[0]
    return clusters, is_parted or any(clusters[one] != clusters[other] for one, other, _ in alike)


def _rows(graph: _Graph, part: Iterable[int]) -> int:
    return sum(graph.rows[point] for point in part)


def _parts(graph: _Graph, common: int, more: Iterable[Link] = ()) -> list[list[int]]:
    """The prompts that hang together, ascending, by words and steps that at most `common` prompts hold."""
    sure = (link for prompts in graph.named for link in pairwise(prompts))
    links = chain(sure, more, _by_steps(graph.stepped, common), _by_words(graph.runs, common))
    parts: dict[int, list[int]] = {}
    for point, root in enumerate(_components(len(graph.rows), links)):
        parts.setdefault(root, []).append(point)
    return list(parts.values())


def _split(graph: _Graph, part: Sequence[int], common: int) -> list[list[int]]:
    """The parts of a part, as if there were no other prompts: so what is elsewhere in the data does not matter."""
    places = {point: place for place, point in enumerate(part)}

    def inside(sets: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(places[point] for point in points if point in places) for points in sets)

    alone = _Graph(
        rows=tuple(graph.rows[point] for point in part),
        runs=tuple(graph.runs[point] for point in part),
        named=inside(graph.named),
        stepped=inside(graph.stepped),
    )
    return [[part[place] for place in smaller] for smaller in _parts(alone, common)]


def _is_repeated(graph: _Graph, one: int, other: int, index: float) -> bool:
    return index >= NEARLY_SAME and min(graph.runs[one].size, graph.runs[other].size) >= LONG


def _alike(prompts: Sequence[Runs]) -> Iterator[tuple[int, int, float]]:
    """Prompts that are alike in all their runs of words, and the index: of a crowd enough to join nearly all of it."""
    for one, other in _compared(prompts):
        shared = np.intersect1d(prompts[one], prompts[other], assume_unique=True).size
        index = shared / (prompts[one].size + prompts[other].size - shared)
        if index >= ALIKE:
            yield one, other, index


def _compared(prompts: Sequence[Runs]) -> list[Link]:
    """The prompts that are worth a comparison; their number is at most a multiple of that of the prompts.

    Of those that hold a run, each meets the shortest ones, which of one form are the most like all others, and the next
    shorter one. Two that meet so in enough of their runs are worth it.
    """
    owners, places, counts = _occurrences(prompts)
    sizes = np.array([held.size for held in prompts], dtype=np.int64)
    is_shared = counts[places] > 1
    owners, places = owners[is_shared], places[is_shared]
    order = np.lexsort((owners, sizes[owners], places))
    owners, places = owners[order], places[order]
    here = np.arange(len(places))
    first = np.searchsorted(places, places)  # where the holders of the same run begin
    found: set[Link] = set()
    for other in (*(first + step for step in range(FIRST)), here - 1):
        is_before = (first <= other) & (other < here)
        pairs, times = np.unique(owners[other[is_before]] * len(prompts) + owners[is_before], return_counts=True)
        ones, others = np.divmod(pairs, max(1, len(prompts)))
        is_worth = times >= ENOUGH * (sizes[ones] + sizes[others])
        found.update(zip(ones[is_worth].tolist(), others[is_worth].tolist(), strict=True))
    return sorted(found)


def _occurrences(prompts: Sequence[Runs]) -> tuple[Numbers, Numbers, Numbers]:
    """Who holds each run and which run it is, by number, prompt after prompt; and how many hold each."""
    owners = np.repeat(np.arange(len(prompts)), [held.size for held in prompts])
    _, places, counts = np.unique(np.concatenate([NOTHING, *prompts]), return_inverse=True, return_counts=True)
    return owners, places, counts


def _by_steps(stepped: Iterable[Sequence[int]], common: int) -> Iterator[Link]:
    return (link for prompts in stepped if len(prompts) <= common for link in pairwise(prompts))


def _by_words(prompts: Sequence[Runs], common: int) -> Iterator[Link]:
    """Every two prompts that are alike in the runs of words which at most `common` prompts hold."""
    owners, places, counts = _occurrences(prompts)
    often = counts[places]
    sizes = np.bincount(owners[often <= common], minlength=len(prompts)).tolist()
    # Most runs stand in one prompt; only the others are worth memory.
    is_shared = (often > 1) & (often <= common)
    shared = zip(owners[is_shared].tolist(), places[is_shared].tolist(), strict=True)
    holders: dict[int, list[int]] = {}
    for number, held in groupby(shared, key=itemgetter(0)):
        common_runs: Counter[int] = Counter()
        for _, run in held:
            earlier = holders.setdefault(run, [])
            common_runs.update(earlier)
            earlier.append(number)
        for other, count in common_runs.items():
            if count >= ALIKE * (sizes[number] + sizes[other] - count):
                yield number, other


def _components(size: int, links: Iterable[Link]) -> list[int]:
    """For each of the points 0 … size-1 the least point that links lead to."""
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


def _names(
    rows: Sequence[Record], found: Sequence[int], clusters: Sequence[int], order: Sequence[str]
) -> dict[int, str]:
    """What the rows of each cluster are called: one of their own names, else after one of several prompts."""
    own: dict[int, set[str]] = {}
    for row, cluster in zip(rows, found, strict=True):
        own.setdefault(cluster, set()).update((row.twin,) if row.twin else ())
    prompts: dict[int, list[int]] = {}
    for text, cluster in zip(order, clusters, strict=True):
        prompts.setdefault(cluster, []).append(fingerprint("twin", text))
    # The least hash, so that a row which joins the cluster later seldom changes the name.
    return {
        cluster: min(own[cluster], key=lambda name: fingerprint("twin", name), default="")
        or (f"{min(hashes):016x}" if len(hashes) > 1 else "")
        for cluster, hashes in prompts.items()
    }
