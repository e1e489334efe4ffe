"""data.png, and data.html, a self-contained page of a survey."""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from whet.data.explore import Survey
from whet.errors import RunFailed
from whet.number_format import number, percent
from whet.report import figures as fig
from whet.report.dataset.survey import length_rows, overview, quantile
from whet.report.formatting import render
from whet.runs.logs import reason, write_atomic

BINS = 28  # at most
TAIL = 0.98  # quantile of the last bin, which also holds all values beyond
CATEGORIES = 8  # bars of one panel; the rest are summed in one
ROUND = (1, 2, 5, 10)  # allowed leading digits of the bin width
ABOVE = 20  # points between axes and heading, for a legend


def write_survey(survey: Survey, found: Mapping[str, Any], directory: Path, *, title: str) -> tuple[Path, Path]:
    """Writes data.png and data.html into the directory; returns their paths."""
    loaded = survey.loaded
    about = [f"{len(loaded.rows):,} {loaded.kind}", f"format {loaded.format}", f"sha256 {loaded.digest[:12]}"]
    picture = survey_figure(survey, title=title, subtitle="   ".join(about))
    page = render(
        "dataset.html",
        title=title,
        facts=about,
        overview=overview(found),
        picture=base64.b64encode(picture).decode(),
        lengths=length_rows(found),
        found=found,
    )
    picture_path, page_path = directory / "data.png", directory / "data.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(picture_path, picture)
        write_atomic(page_path, page.encode())
    except OSError as error:
        raise RunFailed(f"cannot write into {directory}: {reason(error)}") from error
    return picture_path, page_path


def survey_figure(survey: Survey, *, title: str, subtitle: str) -> bytes:
    """Histograms of lengths and margins, and shares of verdicts, as far as the data has them."""
    words = {name: lengths.words for name, lengths in survey.lengths.items()}
    answers = {name: values for name, values in words.items() if name != "prompt"}
    kind = "Steps" if survey.loaded.kind == "traces" else "Answers"
    panels: list[Callable[[Axes], None]] = [
        partial(_histogram, title="Prompt", unit="words", values={"prompt": words["prompt"]}),
        partial(_histogram, title=kind, unit="words", values=answers, colour=1),
    ]
    if survey.differences:
        sides, unit = {"chosen − rejected": survey.differences}, "words of chosen − rejected"
        panels.append(partial(_histogram, title="Length bias", unit=unit, values=sides, colour=3, zero=True))
    if len(set(survey.margins)) > 1:
        margins, unit = {"margin": survey.margins}, "score of chosen − rejected"
        panels.append(partial(_histogram, title="Margin", unit=unit, values=margins, colour=2, zero=True))
    if len(survey.turns) > 1:
        turns = {str(count): rows for count, rows in survey.turns.items()}
        panels.append(partial(_bars, title="Messages", unit="share of rows, by messages in the row", counts=turns))
    if survey.balance:
        panels.append(partial(_bars, title="Verdicts", unit="share of answers", counts=survey.balance))
    columns = 2 if len(panels) == 4 else min(3, len(panels))  # four panels as a square
    with fig.grid(len(panels), columns, height=2.7, title=title, subtitle=subtitle) as (figure, every_axes):
        for draw, axes in zip(panels, every_axes, strict=True):
            draw(axes)
        return fig.png(figure)


def bin_edges(values: Sequence[float], *, zero: bool) -> list[float]:
    """Edges of at most `BINS` + 1 bins of a round width, from 0 (or the lower tail, if `zero`) to the upper tail."""
    ordered = sorted(values)
    low = quantile(ordered, 1 - TAIL) if zero else 0.0
    high = max(quantile(ordered, TAIL), low)
    width, rough = 1.0, (high - low) / BINS
    if rough > 0:
        power = 10.0 ** math.floor(math.log10(rough))
        width = next(factor * power for factor in ROUND if factor * power >= rough * (1 - 1e-9))
        width = max(1.0, width) if all(float(value).is_integer() for value in ordered) else width
    start = math.floor(low / width) * width
    return [start + width * place for place in range(math.floor((high - start) / width + 1e-9) + 2)]


def bin_shares(values: Sequence[float], edges: Sequence[float]) -> np.ndarray:
    """Share of the values in each bin; the outermost bins also hold all values beyond them."""
    places = np.floor((np.asarray(values) - edges[0]) / (edges[1] - edges[0]) + 1e-9)
    bins = len(edges) - 1
    return np.bincount(np.clip(places, 0, bins - 1).astype(int), minlength=bins) / len(values)


def category_shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Share of each category; many categories end in one named "more"."""
    shares = {name: count / sum(counts.values()) for name, count in counts.items()}
    if len(shares) <= CATEGORIES:
        return shares
    kept = dict(list(shares.items())[: CATEGORIES - 1])
    return {**kept, "more": 1 - sum(kept.values())}


def _histogram(
    axes: Axes,
    *,
    title: str,
    unit: str,
    values: Mapping[str, Sequence[float]],
    colour: int = 0,
    zero: bool = False,
) -> None:
    """Distributions over common bins; `colour` is that of the first, and `zero` draws a line at 0."""
    together = [value for found in values.values() for value in found]
    edges = bin_edges(together, zero=zero)
    highest = 0.0
    for place, (name, found) in enumerate(values.items()):
        shares, shade = bin_shares(found, edges), fig.PALETTE[(colour + place) % len(fig.PALETTE)]
        label = fig.literal(f"{name}, median {number(quantile(sorted(found), 0.5))}")
        axes.stairs(shares, edges, color=shade, alpha=0.18, fill=True)
        axes.stairs(shares, edges, color=shade, linewidth=1.5, label=label)
        highest = max(highest, *shares)
    if zero:
        axes.axvline(0, color=fig.INK, linewidth=0.9, linestyle=(0, (3, 3)))
    fig.legend_above(axes, len(values))
    fig.frame(axes, title=title, unit=unit, above=ABOVE)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.06 * highest)
    fig.plain_numbers(axes, y=False, ticks=6)
    fig.plain_numbers(axes, x=False, ticks=4, show=percent)
    beyond: dict[str, Any] = {"transform": axes.transAxes, "size": 7.5, "color": fig.QUIET, "style": "italic"}
    if min(together) < edges[0]:
        axes.text(0, -0.22, "and less", ha="left", **beyond)
    if max(together) >= edges[-1]:
        axes.text(1, -0.22, "and more", ha="right", **beyond)


def _bars(axes: Axes, *, title: str, unit: str, counts: Mapping[str, int]) -> None:
    shares = category_shares(counts)
    longest = max(shares.values())
    axes.barh(range(len(shares)), list(shares.values()), height=0.62, color=fig.PALETTE[0], alpha=0.75)
    for place, share in enumerate(shares.values()):
        axes.text(share + 0.02 * longest, place, percent(share), size=8, color=fig.INK, va="center")
    fig.frame(axes, title=title, unit=unit, above=ABOVE)
    axes.grid(visible=False)
    axes.set_yticks(range(len(shares)), [fig.literal(name) for name in shares])
    axes.set_ylim(max(len(shares), 3) - 0.4, -0.6)  # few bars are as thin as many
    axes.set_xlim(0, 1.15 * longest)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
