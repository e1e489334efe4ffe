"""Draws docs/metrics-*.png from the kept curves: `python -m studies.curves.pictures docs`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pages.pictures import compact
from studies.curves.plots import PICTURES, Picture, label
from whet.metrics.table import row_of
from whet.report.figures import LEFT, LEGEND, PALETTE, frame, grid, plain_numbers, png, whole_steps
from whet.runs.series import smooth, smoothing_window

FILE = Path(__file__).with_name("curves.json")
COLUMNS = 3
GREEN = "#2e8b57"
OTHERS = tuple(colour for colour in PALETTE if colour != "#3f9470")  # beside a green line
HEIGHT = 2.1  # inches of a panel and what is above and below it
WIDE = 30.0  # the largest value over the middle one of the healthy run, from which on a panel is logarithmic

Curves = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]  # run → metric → steps and values


def draw(picture: Picture, curves: Curves) -> bytes:
    """A panel for each metric, a line for each run; the healthy one is green, as is the healthy range."""
    subtitle = "toy runs on a CPU by step, moving means; the green ground is the healthy range of the table"
    with grid(len(picture.metrics), COLUMNS, height=HEIGHT, title=picture.title, subtitle=subtitle) as (figure, panels):
        for axes, metric in zip(panels, picture.metrics, strict=True):
            _panel(axes, metric, {name: curves[name][metric] for name in picture.runs if metric in curves[name]})
        _legend(figure, panels[0], picture)
        return png(figure)


def _panel(axes: Axes, metric: str, of_run: Mapping[str, Sequence[Sequence[float]]]) -> None:
    row = row_of(metric)
    assert row is not None, metric
    for number, (name, (steps, values)) in reversed(list(enumerate(of_run.items()))):
        colour, width = _line(number)
        shown = smooth(values, smoothing_window(len(values)))
        axes.plot(steps, shown, color=colour, linewidth=width, label=label(name), zorder=3 if number == 0 else 2)
    frame(axes, title=metric, unit=row.unit.partition(";")[0])
    if _is_wide(of_run):
        axes.set_yscale("log")
        axes.minorticks_off()
    else:
        plain_numbers(axes, x=False, ticks=4)
    whole_steps(axes)
    _healthy(axes, *row.band)


def _line(number: int) -> tuple[str, float]:
    return (GREEN, 2.4) if number == 0 else (OTHERS[(number - 1) % len(OTHERS)], 1.4)


def _is_wide(of_run: Mapping[str, Sequence[Sequence[float]]]) -> bool:
    """Whether one run would press all others to the ground."""
    every = [value for _, values in of_run.values() for value in values]
    healthy = sorted(next(iter(of_run.values()))[1])
    if not healthy:
        return False
    return min(every) > 0 and max(every) > WIDE * healthy[len(healthy) // 2]


def _healthy(axes: Axes, low: float | None, high: float | None) -> None:
    if low is None and high is None:
        return
    bottom, top = axes.get_ylim()
    ends = [max(bottom, -math.inf if low is None else low), min(top, math.inf if high is None else high)]
    if ends[0] < ends[1]:
        axes.axhspan(*ends, color=GREEN, alpha=0.1, linewidth=0, zorder=0)
        axes.set_ylim(bottom, top)


def _legend(figure: Figure, axes: Axes, picture: Picture) -> None:
    """One for all panels, below the heading; the order is that of the runs."""
    lines = {line.get_label(): line for line in axes.get_lines()}
    names = [label(name) for name in picture.runs]
    width, height = figure.get_size_inches()
    figure.legend(
        [lines[name] for name in names],
        names,
        loc="upper left",
        bbox_to_anchor=(LEFT / width, 1 - 0.82 / height),
        ncols=len(names),
        **LEGEND,
    )


def main(arguments: Sequence[str]) -> None:
    (folder,) = arguments
    curves: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    for name, picture in PICTURES.items():
        (Path(folder) / f"{name}.png").write_bytes(compact(draw(picture, curves)))


if __name__ == "__main__":
    main(sys.argv[1:])
