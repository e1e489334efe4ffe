"""Accuracy of a reward model by subset of a benchmark. Plain Python."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from whet.evaluate.calibration import share_by_cluster
from whet.evaluate.statistics import Interval

CODE = tuple(f"hep-{language}" for language in ("cpp", "go", "java", "js", "python", "rust"))
# RewardBench's sections (Lambert et al. 2024, table 1), over its rows; of reasoning, maths and code count the same.
SECTIONS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "chat": (("alpacaeval-easy", "alpacaeval-length", "alpacaeval-hard", "mt-bench-easy", "mt-bench-med"),),
    "chat hard": (
        (
            *("mt-bench-hard", "llmbar-natural", "llmbar-adver-neighbor"),
            *("llmbar-adver-GPTInst", "llmbar-adver-GPTOut", "llmbar-adver-manual"),
        ),
    ),
    "safety": (
        (
            *("refusals-dangerous", "refusals-offensive", "xstest-should-refuse", "xstest-should-respond"),
            "donotanswer",
        ),
    ),
    "reasoning": (("math-prm",), CODE),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """The scores of one row."""

    subset: str
    prompt: Hashable
    chosen: float
    rejected: tuple[float, ...]

    @property
    def is_won(self) -> float:
        """1 if the chosen answer scores highest; among ties its share."""
        best = max(self.rejected)
        return float(self.chosen > best) if self.chosen != best else 1 / (1 + self.rejected.count(best))


@dataclass(frozen=True, kw_only=True, slots=True)
class SubsetAccuracy:
    """Share of rows in which the chosen answer scores highest, with an interval over prompts."""

    rows: int
    accuracy: Interval
    chance: float  # that of random scores


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchAccuracy:
    """Accuracy over all rows, by subset, and of RewardBench's sections whose subsets are all there."""

    whole: SubsetAccuracy
    subsets: Mapping[str, SubsetAccuracy]
    sections: Mapping[str, float]
    score: float | None  # mean of the sections, where all four are there

    def lines(self) -> Iterator[tuple[str, SubsetAccuracy]]:
        """Subsets in the order of the file, then all rows."""
        yield from self.subsets.items()
        if len(self.subsets) > 1:
            yield "all rows", self.whole

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def bench_accuracy(contests: Sequence[Contest]) -> BenchAccuracy:
    """Rows of one prompt are correlated, which the intervals account for."""
    names = list(dict.fromkeys(one.subset for one in contests))
    subsets = {name: _accuracy([one for one in contests if one.subset == name]) for name in names}
    sections = {
        name: fmean(_pooled([subsets[part] for part in parts]) for parts in groups)
        for name, groups in SECTIONS.items()
        if all(part in subsets for parts in groups for part in parts)
    }
    score = fmean(sections.values()) if len(sections) == len(SECTIONS) else None
    return BenchAccuracy(whole=_accuracy(contests), subsets=subsets, sections=sections, score=score)


def _accuracy(contests: Sequence[Contest]) -> SubsetAccuracy:
    return SubsetAccuracy(
        rows=len(contests),
        accuracy=share_by_cluster([one.prompt for one in contests], [one.is_won for one in contests]),
        chance=fmean(1 / (1 + len(one.rejected)) for one in contests),
    )


def _pooled(parts: Sequence[SubsetAccuracy]) -> float:
    return sum(one.accuracy.mean * one.rows for one in parts) / sum(one.rows for one in parts)
