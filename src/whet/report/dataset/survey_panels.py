"""The panels of a data set: lengths, biases and counts, as numbers that the PNG and the page both draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whet.data.explore import Survey
from whet.report.dataset.survey import quantile
from whet.report.numbers import number

BINS = 28  # at most
TAIL = 0.98  # of the texts are drawn where they are; what is beyond stands in the last bin
CATEGORIES = 8  # bars of one panel; the rest is one bar
ROUND = (1, 2, 5, 10)  # what the width of a bin may begin with


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Where the values of one sort lie, as shares of all of that sort."""

    label: str
    colour: int
    shares: tuple[float, ...]  # one for each bin
    median: float

    @property
    def about(self) -> str:
        """What the legend says."""
        return f"{self.label}, median {number(self.median)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """Distributions over common bins."""

    title: str
    unit: str
    start: float  # where the first bin begins
    width: float  # of a bin
    bins: int
    open_low: bool  # the first bin holds all that is below, too
    open_high: bool
    series: tuple[Distribution, ...]
    zero: bool  # whether a line at 0 tells two sides apart

    @property
    def ceiling(self) -> float:
        """Where the axis of shares ends."""
        return 1.06 * max(share for series in self.series for share in series.shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Shares of named things."""

    title: str
    unit: str
    bars: tuple[tuple[str, float], ...]


Panel = Histogram | Bars


def survey_panels(survey: Survey) -> list[Panel]:
    """The panels that this kind of data fills."""
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
    """The least round width with which [low, high] has no more than `BINS` bins."""
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
                shares=_shares(found, start, width, bins),
                median=quantile(sorted(found), 0.5),
            )
            for place, (name, found) in enumerate(values.items())
        ),
        zero=zero,
    )


def _shares(values: Sequence[float], start: float, width: float, bins: int) -> tuple[float, ...]:
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
