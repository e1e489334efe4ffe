"""Statistics of a data set with intervals, and its panels, which both the PNG and the page draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from whet.data.explore import Survey
from whet.evaluate.statistics import Interval, mean_interval, wilson
from whet.report.formatting import number, percent, signed


def facts(survey: Survey) -> dict[str, Any]:
    """The survey as JSON: summarised lengths, biases with 95 % intervals."""
    return {
        **{name: getattr(survey.loaded, name) for name in ("kind", "format", "digest", "read")},
        "rows": len(survey.loaded.rows),
        "skipped": dict(survey.loaded.skipped),
        "skipped_at": {why: list(places) for why, places in survey.loaded.skipped_at.items()},
        "prompts": survey.prompts,
        "openings": survey.openings,
        "near_duplicates": survey.near_duplicates,
        "turns": {str(turns): count for turns, count in survey.turns.items()},
        "lengths": {
            name: {"count": len(found.words), "words": spread(found.words), "characters": spread(found.characters)}
            for name, found in survey.lengths.items()
        },
        "length_bias": length_bias(survey.differences),
        "margins": {"count": len(survey.margins), **spread(survey.margins)} if survey.margins else None,
        "balance": dict(survey.balance),
        "samples": [asdict(sample) for sample in survey.samples],
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    middle = {"mean": fmean(ordered), "median": median(ordered), "p95": quantile(ordered, 0.95)}
    return {**middle, "min": ordered[0], "max": ordered[-1]}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the sorted values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def length_bias(differences: Sequence[int]) -> dict[str, Any] | None:
    """Length bias of preference pairs; 50 % and 0 words without bias; equal lengths count half."""
    if not differences:
        return None
    longer = sum(1.0 if difference > 0 else 0.5 if difference == 0 else 0.0 for difference in differences)
    return {
        "chosen_longer": _interval(wilson(longer, len(differences))),
        "words_more": _interval(mean_interval(differences)),
    }


def overview(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The most important facts, formatted."""
    used = f"{found['rows']:,} {found['kind']}"
    rows = [
        ("rows", f"{used} of {found['read']:,} rows read, format {found['format']}"),
        ("left out", ", ".join(f"{count:,} {why}" for why, count in found["skipped"].items()) or "nothing"),
        ("prompts", f"{found['prompts']:,} different, {found['openings']:,} different openings"),
        ("near duplicates", f"{found['near_duplicates']:,}"),
        ("messages", _shares(found["turns"])),
    ]
    if found["balance"]:
        rows.append(("verdicts", _shares(found["balance"])))
    if found["length_bias"]:
        share, more = found["length_bias"]["chosen_longer"], found["length_bias"]["words_more"]
        rows.append(("chosen is longer", f"{percent(share['mean'])} of pairs {_span(share, percent)}"))
        rows.append(("chosen − rejected", f"{signed(more['mean'])} words {_span(more, signed)}"))
    if found["margins"]:
        margins = found["margins"]
        given = f"{margins['count']:,} pairs have one"
        rows.append(("margin", f"mean {number(margins['mean'])}, median {number(margins['median'])}; {given}"))
    return rows


def length_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows of the length table."""
    header = ["", "texts", "mean words", "median", "95 % below", "longest", "characters"]
    rows = []
    for name, lengths in found["lengths"].items():
        words, characters = lengths["words"], lengths["characters"]
        columns = [words["mean"], words["median"], words["p95"], words["max"], characters["mean"]]
        rows.append([name, f"{lengths['count']:,}", *(number(value) for value in columns)])
    return [header, *rows]


def _interval(interval: Interval) -> dict[str, float | None]:
    """Infinite limits become null."""
    ends = {"low": interval.low, "high": interval.high}
    return {"mean": interval.mean, **{name: end if math.isfinite(end) else None for name, end in ends.items()}}


def _span(interval: Mapping[str, float | None], show: Any) -> str:
    low, high = interval["low"], interval["high"]
    return "[one pair says nothing about the rest]" if low is None or high is None else f"[{show(low)} … {show(high)}]"


def _shares(counts: Mapping[str, int], most: int = 6) -> str:
    total = sum(counts.values())
    shares = [f"{name}: {percent(count / total)}" for name, count in list(counts.items())[:most]]
    return ", ".join([*shares, "…"] if len(counts) > most else shares)


BINS = 28  # at most
TAIL = 0.98  # quantile of the last bin, which also holds all values beyond
CATEGORIES = 8  # bars of one panel; the rest are summed in one
ROUND = (1, 2, 5, 10)  # allowed leading digits of the bin width


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Shares of one series in each bin."""

    label: str
    colour: int
    shares: tuple[float, ...]  # one per bin
    median: float

    @property
    def about(self) -> str:
        """Legend entry."""
        return f"{self.label}, median {number(self.median)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """Distributions over common bins."""

    title: str
    unit: str
    start: float  # left edge of the first bin
    width: float  # of a bin
    bins: int
    open_low: bool  # the first bin also holds all values below
    open_high: bool
    series: tuple[Distribution, ...]
    zero: bool  # draw a line at 0

    @property
    def ceiling(self) -> float:
        """Upper limit of the y axis."""
        return 1.06 * max(share for series in self.series for share in series.shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Shares of categories."""

    title: str
    unit: str
    bars: tuple[tuple[str, float], ...]


Panel = Histogram | Bars


def survey_panels(survey: Survey) -> list[Panel]:
    """The panels for this kind of data."""
    words = {name: lengths.words for name, lengths in survey.lengths.items()}
    answers = {name: values for name, values in words.items() if name != "prompt"}
    panels: list[Panel] = [
        _histogram("Prompt", "words", {"prompt": words["prompt"]}, first_colour=0),
        _histogram("Answers" if survey.loaded.kind != "traces" else "Steps", "words", answers, first_colour=1),
    ]
    if survey.differences:
        sides = {"chosen − rejected": survey.differences}
        panels.append(_histogram("Length bias", "words of chosen − rejected", sides, first_colour=3, zero=True))
    if len(set(survey.margins)) > 1:
        margins = {"margin": survey.margins}
        panels.append(_histogram("Margin", "score of chosen − rejected", margins, first_colour=2, zero=True))
    if len(survey.turns) > 1:
        panels.append(_bars("Messages", "share of rows, by messages in the row", survey.turns))
    if survey.balance:
        panels.append(_bars("Verdicts", "share of answers", survey.balance))
    return panels


def bin_width(low: float, high: float, *, whole: bool) -> float:
    """The smallest round width that gives at most `BINS` bins."""
    rough = (high - low) / BINS
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(factor * power for factor in ROUND if factor * power >= rough * (1 - 1e-9))
    return max(1.0, width) if whole else width


def _histogram(
    title: str, unit: str, values: Mapping[str, Sequence[float]], *, first_colour: int, zero: bool = False
) -> Histogram:
    together = sorted(value for found in values.values() for value in found)
    low = quantile(together, 1 - TAIL) if zero else 0.0
    high = max(quantile(together, TAIL), low)
    whole = all(float(value).is_integer() for value in together)
    width = bin_width(low, high, whole=whole)
    start = math.floor(low / width) * width
    bins = math.floor((high - start) / width + 1e-9) + 1
    return Histogram(
        title=title,
        unit=unit,
        start=start,
        width=width,
        bins=bins,
        open_low=together[0] < start,
        open_high=together[-1] >= start + bins * width,
        series=tuple(
            Distribution(
                label=name,
                colour=first_colour + place,
                shares=_binned(found, start, width, bins),
                median=quantile(sorted(found), 0.5),
            )
            for place, (name, found) in enumerate(values.items())
        ),
        zero=zero,
    )


def _binned(values: Sequence[float], start: float, width: float, bins: int) -> tuple[float, ...]:
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, max(0, math.floor((value - start) / width + 1e-9)))] += 1
    return tuple(count / len(values) for count in counts)


def _bars(title: str, unit: str, counts: Mapping[int, int] | Mapping[str, int]) -> Bars:
    total = sum(counts.values())
    named = [(str(name), count / total) for name, count in counts.items()]
    if len(named) > CATEGORIES:
        rest = sum(share for _, share in named[CATEGORIES - 1 :])
        named = [*named[: CATEGORIES - 1], ("more", rest)]
    return Bars(title=title, unit=unit, bars=tuple(named))
