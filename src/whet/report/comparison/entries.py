"""The view of a comparison, shared by sweeps and pipelines: entries with columns and curves; table and document."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.evaluate.measures import MEASURES, Measure, measure_of
from whet.number_format import number
from whet.runs.directory import RunDirectory
from whet.runs.series import Series, series, thin

Values = Mapping[str, Any]  # a part of comparison.json

# Okabe & Ito 2008 without yellow, which is invisible on white; beyond seven methods dashes distinguish them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b98100", "#56b4e9", "#4d4d4d")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.6)), (0, (1.4, 1.4)))
START_COLOUR = "#59636e"
BUCKETS = 200  # of a stored curve: at most two points each
PARTS = "parts/"
ACCURACY = "eval/accuracy"
SHARE = "%", 100.0  # unit and factor


def _heading(measure: Measure) -> str:
    return measure.label[0].upper() + measure.label[1:]


# Metric → (title, unit, factor), in drawing order; parts of the reward follow.
METRICS = {
    **{one.metric: (_heading(one), *SHARE) for one in MEASURES if one.is_share},
    "reward/mean": ("Reward", "mean per rollout", 1.0),
    "eval/reward": ("Held-out reward", "mean per prompt", 1.0),
    "eval/loss": ("Held-out loss", "", 1.0),
    "eval/gold": ("Held-out gold reward", "mean per prompt", 1.0),
    "kl": ("KL to the reference", "nats per token", 1.0),
    "length/mean": ("Length", "tokens per rollout", 1.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A table cell: the number, and details in small print, line by line."""

    main: str
    small: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A method with its seeds, or the start model."""

    name: str
    colour: int | None  # index in the order of methods; None: the start model
    cells: Sequence[Cell]  # one per column; the first is the name
    curves: Mapping[str, Sequence[Series]] = field(default_factory=dict)  # metric → one per seed

    @property
    def shade(self) -> str:
        """HTML colour, the same in every figure."""
        return START_COLOUR if self.colour is None else str(style(self.colour)["color"])


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonView:
    """Contents of the table, curves and page of a comparison."""

    title: str
    subtitle: str  # of the curves
    facts: Sequence[str]
    verdict: Sequence[str]  # sentences
    columns: Sequence[str]
    entries: Sequence[Entry]  # start model if there is one, then methods, best first
    notes: Sequence[str]  # how the numbers were measured, and caveats
    failures: Sequence[str]
    command: str = ""  # that repeats the comparison, if there is one
    target: float | None = None  # value of "steps to target"
    ranked_by: Measure | None = None  # what ranks the methods of a sweep


def table(comparison: ComparisonView) -> str:
    body = [[" ".join([cell.main, *cell.small[:1]]) for cell in entry.cells] for entry in comparison.entries]
    rows = [list(comparison.columns), *body]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


def document(comparison: ComparisonView, pictures: Sequence[tuple[str, str]]) -> str:
    """comparison.md: verdict, table, notes, and (caption, file) of each figure."""
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


def about_metric(metric: str) -> tuple[str, str, float]:
    """Title, unit and factor of a metric in figures."""
    if metric in METRICS or metric.startswith(PARTS):
        return METRICS.get(metric) or (f"Part: {metric.removeprefix(PARTS)}", "mean per rollout", 1.0)
    measure = measure_of(metric)
    return (_heading(measure), *(SHARE if measure.is_share else ("", 1.0)))


def read_curves(runs: Mapping[tuple[str, int], RunDirectory], *more: str) -> dict[str, dict[str, Any]]:
    """Method → seed → metric → steps and values, thinned, from runs by (method, seed); also of `more` metrics."""
    found: dict[str, dict[str, Any]] = {}
    for (method, seed), run in runs.items():
        rows = run.metrics()
        parts = sorted({name for row in rows for name in row if name.startswith(PARTS)})
        curves = {name: thin(series(rows, name), BUCKETS) for name in dict.fromkeys((*METRICS, *more, *parts))}
        found.setdefault(method, {})[str(seed)] = {
            name: {"steps": list(curve.steps), "values": list(curve.values)}
            for name, curve in curves.items()
            if len(curve) > 1
        }
    return found


def method_entry(results: Values, method: Values, cells: Sequence[Cell]) -> Entry:
    """The row of a method, with its curves."""
    return Entry(
        name=method["method"], colour=method["colour"], cells=cells, curves=curves_of(results, method["method"])
    )


def curves_of(results: Values, method: str) -> dict[str, list[Series]]:
    """Metric → one curve per seed, of a method in comparison.json."""
    found: dict[str, list[Series]] = {}
    for seed in results["curves"].get(method, {}).values():
        for metric, curve in seed.items():
            found.setdefault(metric, []).append(Series(tuple(curve["steps"]), tuple(curve["values"])))
    return found


def failed_runs(results: Values) -> list[str]:
    """The runs that failed, and why."""
    return [
        f"{method['method']}, seed {seed['seed']} did not finish: {seed['failure']}"
        for method in results["methods"]
        for seed in method["seeds"]
        if seed["failure"] is not None
    ]


def style(colour: int) -> dict[str, Any]:
    """Line style of a method."""
    return {"color": COLOURS[colour % len(COLOURS)], "linestyle": DASHES[colour // len(COLOURS) % len(DASHES)]}


def ends(interval: Values, *, scale: float = 1.0) -> tuple[float, float, float]:
    """Mean, low and high; without an interval (one prompt), all three are the mean."""
    mean = interval["mean"] * scale
    low, high = interval["low"], interval["high"]
    return mean, mean if low is None else low * scale, mean if high is None else high * scale


def bracketed(interval: Values | None, *, scale: float = 1.0) -> str:
    """[low … high], or empty without an interval."""
    if interval is None or interval["low"] is None:
        return ""
    return f"[{fixed(interval['low'] * scale, interval, scale)} … {fixed(interval['high'] * scale, interval, scale)}]"


def mean_text(interval: Values | None, *, sign: bool = False, scale: float = 1.0) -> str:
    """The mean, or a dash if nothing was measured."""
    if interval is None:
        return "–"
    mean = interval["mean"] * scale
    return ("+" if sign and mean > 0 else "") + fixed(mean, interval, scale)


def fixed(value: float, interval: Values, scale: float = 1.0) -> str:
    """A value to two significant digits of half its interval's width."""
    if interval["low"] is None or interval["high"] <= interval["low"]:
        return number(value)
    half = scale * (interval["high"] - interval["low"]) / 2
    digits = min(6, max(0, 1 - math.floor(math.log10(half))))
    return f"{value:,.{digits}f}".replace("-", "−")


def _details(comparison: ComparisonView) -> list[str]:
    """Details of the cells, below the table because they would make it too wide."""
    lines = []
    for entry in comparison.entries:
        cells = zip(comparison.columns, entry.cells, strict=True)
        small = [f"{name}: {', '.join(cell.small[1:])}" for name, cell in cells if cell.small[1:]]
        if small and entry.colour is not None:
            lines.append(f"{entry.name}: {'; '.join(small)}")
    return lines


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
