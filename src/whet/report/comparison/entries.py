"""What every comparison is on a page: entries with measured columns and curves, and one table and document of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.report.numbers import number
from whet.report.series import Series, series, thin
from whet.runs.directory import Run

Values = Mapping[str, Any]  # a part of comparison.json

# Okabe & Ito 2008 without the yellow, which white paper swallows; beyond seven methods the dashes tell them apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b98100", "#56b4e9", "#4d4d4d")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.6)), (0, (1.4, 1.4)))
START_COLOUR = "#59636e"
BUCKETS = 200  # points of a curve that are kept: at most two for each
PARTS = "parts/"
# Metric → (title, unit, factor), in the order in which they are drawn; parts of the reward follow.
METRICS = {
    "eval/accuracy": ("Held-out accuracy", "%", 100.0),
    "reward/mean": ("Reward", "mean per rollout", 1.0),
    "eval/gold": ("Held-out gold reward", "mean per prompt", 1.0),
    "kl": ("KL to the reference", "nats per token", 1.0),
    "length/mean": ("Length", "tokens per rollout", 1.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What stands in a cell: the number, and in small letters, line by line, what belongs to it."""

    main: str
    small: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A method with its seeds, or the model that all methods began with."""

    name: str
    colour: int | None  # by the order in which methods were named; None: the start model
    cells: Sequence[Cell]  # one for each column, the first holds the name
    curves: Mapping[str, Sequence[Series]] = field(default_factory=dict)  # metric → one for each seed that has it

    @property
    def shade(self) -> str:
        """The colour that it has in every picture, as HTML writes it."""
        return START_COLOUR if self.colour is None else str(style(self.colour)["color"])


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonView:
    """Everything that the table, the curves and the page of a comparison show."""

    title: str
    subtitle: str  # of the curves
    facts: Sequence[str]
    verdict: Sequence[str]  # sentences
    columns: Sequence[str]
    entries: Sequence[Entry]  # the start model where there is one, then the best method first
    notes: Sequence[str]  # how the numbers were measured, and what to know before comparing them
    failures: Sequence[str]
    command: str = ""  # that makes the comparison again, where one does
    target: float | None = None  # the accuracy whose step was looked for


def table(comparison: ComparisonView) -> str:
    """A Markdown table with columns of equal width."""
    body = [[" ".join([cell.main, *cell.small[:1]]) for cell in entry.cells] for entry in comparison.entries]
    rows = [list(comparison.columns), *body]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


def document(comparison: ComparisonView, pictures: Sequence[tuple[str, str]]) -> str:
    """comparison.md: the verdict, the table, what its columns mean, and the (caption, file) of each picture."""
    parts = [
        f"# {comparison.title}",
        " ".join(comparison.verdict),
        table(comparison),
        _bullets(_details(comparison)),
        _bullets(comparison.notes),
        _bullets(comparison.failures),
        "\n\n".join(f"![{caption}]({file})" for caption, file in pictures),
        f"Made by:\n\n```sh\n{comparison.command}\n```" if comparison.command else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def read_curves(runs: Mapping[tuple[str, int], Run]) -> dict[str, dict[str, Any]]:
    """Method → seed → metric → its steps and values, of runs by method and seed: what a comparison shows of them."""
    found: dict[str, dict[str, Any]] = {}
    for (method, seed), run in runs.items():
        rows = run.metrics()
        parts = sorted({name for row in rows for name in row if name.startswith(PARTS)})
        curves = {name: thin(series(rows, name), BUCKETS) for name in (*METRICS, *parts)}
        found.setdefault(method, {})[str(seed)] = {
            name: {"steps": list(curve.steps), "values": list(curve.values)}
            for name, curve in curves.items()
            if len(curve) > 1
        }
    return found


def curves_of(results: Values, method: str) -> dict[str, list[Series]]:
    """The curves of a method as `read_curves` left them: metric → one for each seed that has it."""
    found: dict[str, list[Series]] = {}
    for seed in results["curves"].get(method, {}).values():
        for metric, curve in seed.items():
            found.setdefault(metric, []).append(Series(tuple(curve["steps"]), tuple(curve["values"])))
    return found


def failed_runs(results: Values) -> list[str]:
    """The runs that are not in the numbers, and why."""
    return [
        f"{method['method']}, seed {seed['seed']} did not finish: {seed['failure']}"
        for method in results["methods"]
        for seed in method["seeds"]
        if seed["failure"] is not None
    ]


def style(colour: int) -> dict[str, Any]:
    """How a method's lines are drawn."""
    return {"color": COLOURS[colour % len(COLOURS)], "linestyle": DASHES[colour // len(COLOURS) % len(DASHES)]}


def ends(interval: Values, *, scale: float = 1.0) -> tuple[float, float, float]:
    """Mean, low and high, those of one prompt alone at its mean: one value has no interval."""
    mean = interval["mean"] * scale
    low, high = interval["low"], interval["high"]
    return mean, mean if low is None else low * scale, mean if high is None else high * scale


def bracketed(interval: Values | None, *, scale: float = 1.0) -> str:
    """[low … high], or nothing where there is no interval."""
    if interval is None or interval["low"] is None:
        return ""
    return f"[{fixed(interval['low'] * scale, interval, scale)} … {fixed(interval['high'] * scale, interval, scale)}]"


def mean_text(interval: Values | None, *, sign: bool = False, scale: float = 1.0) -> str:
    """The mean, or a dash where nothing was measured."""
    if interval is None:
        return "–"
    mean = interval["mean"] * scale
    return ("+" if sign and mean > 0 else "") + fixed(mean, interval, scale)


def fixed(value: float, interval: Values, scale: float = 1.0) -> str:
    """A value to the digits that its interval leaves meaningful: two of half its width."""
    if interval["low"] is None or interval["high"] <= interval["low"]:
        return number(value)
    half = scale * (interval["high"] - interval["low"]) / 2
    digits = min(6, max(0, 1 - math.floor(math.log10(half))))
    return f"{value:,.{digits}f}".replace("-", "−")


def _details(comparison: ComparisonView) -> list[str]:
    """What cells hold in small letters: the table would be too wide with it."""
    lines = []
    for entry in comparison.entries:
        cells = zip(comparison.columns, entry.cells, strict=True)
        small = [f"{name}: {', '.join(cell.small[1:])}" for name, cell in cells if cell.small[1:]]
        if small and entry.colour is not None:
            lines.append(f"{entry.name}: {'; '.join(small)}")
    return lines


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
