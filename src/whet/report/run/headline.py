"""The result in one glance: before, after, their intervals, and the few numbers that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.report.markup import Markup, element, join
from whet.report.numbers import number, percent

Row = Mapping[str, Any]

ACCURACY = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
LOSS = ("eval/loss",)
ARROW = element("span", "→", class_="arrow")
LABELS = {"eval/length": "Answer length", "eval/truncated": "Cut off", "eval/loss": "Held-out loss"}
SCALE = (600, 54, 8)  # width, height and margin of the picture of the intervals


def headline(metrics: Sequence[Row], results: Row | None) -> Markup:
    """The card at the top; without an evaluation it says so."""
    ends = evaluations(metrics, results, ACCURACY)
    if ends is not None:
        return _card(_accuracy(*ends), _details(*ends, results))
    ends = evaluations(metrics, results, LOSS)
    if ends is not None:
        return _card(_loss(*ends), _details(*ends, results))
    waiting = element("div", element("div", "Held-out result", class_="eyebrow"), element("p", "No evaluation yet."))
    return element("div", waiting, class_="card headline")


def evaluations(metrics: Sequence[Row], results: Row | None, names: Sequence[str]) -> tuple[Row, Row] | None:
    """The evaluation before training and the last one: those of the final results, else those recorded so far.

    The last one twice where the one before training is lost: a later one would not be what it seems.
    """
    if results is not None and _has(results.get("after"), names):
        return results["before" if _has(results.get("before"), names) else "after"], results["after"]
    rows = [row for row in metrics if _has(row, names)]
    if not rows:
        return None
    return rows[0] if rows[0].get("step", 0) == 0 else rows[-1], rows[-1]


def _has(row: Row | None, names: Sequence[str]) -> bool:
    return row is not None and all(row.get(name) is not None for name in names)


def _card(left: Markup, right: Markup) -> Markup:
    return element("div", left, right, class_="card headline")


def _accuracy(before: Row, after: Row) -> Markup:
    ends = [("after", after)] if before is after else [("before", before), ("after", after)]
    written = " and ".join(_interval(row) for _, row in ends)
    return element(
        "div",
        element("div", "Held-out accuracy", class_="eyebrow"),
        _figure(*(percent(row["eval/accuracy"]) for _, row in ends)),
        _intervals(ends),
        element("div", f"95 % interval{'s' if len(ends) > 1 else ''}: {written}", class_="eyebrow"),
    )


def _loss(before: Row, after: Row) -> Markup:
    ends = [after] if before is after else [before, after]
    return element(
        "div",
        element("div", "Held-out loss", class_="eyebrow"),
        _figure(*(number(row["eval/loss"]) for row in ends)),
        element("div", "nats per token, lower is better", class_="eyebrow"),
    )


def _figure(*values: str) -> Markup:
    """The last value, large, after where it came from."""
    come_from = [part for value in values[:-1] for part in (element("span", value, class_="from"), ARROW)]
    return element("div", *come_from, values[-1], class_="figure")


def _interval(row: Row) -> str:
    return f"{100 * row['eval/accuracy_low']:.1f} to {100 * row['eval/accuracy_high']:.1f} %"


def _intervals(rows: Sequence[tuple[str, Row]]) -> Markup:
    """Both intervals on one scale from 0 to 100 %: apart or not, at a glance."""
    width, height, margin = SCALE

    def x(share: float) -> str:
        return f"{margin + (width - 2 * margin) * share:.1f}"

    parts = [element("line", class_="track", x1=x(0), x2=x(1), y1="34", y2="34")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(element("line", class_="track", x1=x(share), x2=x(share), y1="31", y2="37"))
        parts.append(element("text", f"{100 * share:.0f} %", x=x(share), y="50", text_anchor=anchor))
    for (name, row), y in zip(rows, ("12", "24") if len(rows) == 2 else ("18",), strict=True):
        low, high, mean = (x(row[key]) for key in ("eval/accuracy_low", "eval/accuracy_high", "eval/accuracy"))
        parts.append(element("line", class_=f"span {name}", x1=low, x2=high, y1=y, y2=y))
        parts.append(element("circle", class_=name, cx=mean, cy=y, r="5"))
    label = "the intervals on a scale from 0 to 100 %"
    return element("svg", *parts, class_="scale", viewBox=f"0 0 {width} {height}", role="img", aria_label=label)


def _details(before: Row, after: Row, results: Row | None) -> Markup:
    sampled = [name for name in after if name.startswith("eval/pass@") and name[10:].isdigit()]
    rows = [
        *_best(results),
        *_change(before, after, sorted(sampled, key=lambda name: int(name[10:])), percent),
        *_change(before, after, ["eval/length"], lambda value: f"{number(value)} tokens"),
        *_change(before, after, ["eval/truncated"], percent),
        # In a run with an accuracy the loss is a detail; in one without, it is the headline itself.
        *_change(before, after, LOSS if _has(after, ACCURACY) else (), number),
    ]
    cells = [cell for label, value in rows for cell in (element("dt", label), element("dd", value))]
    return element("div", element("dl", *cells)) if cells else join()


def _best(results: Row | None) -> list[tuple[str, str]]:
    best = results.get("best") if results else None
    if not best:
        return []
    value = best.get("accuracy")
    return [("Best model", f"step {best['step']:,}" + (f", {percent(value)}" if value is not None else ""))]


def _change(before: Row, after: Row, names: Sequence[str], show: Callable[[float], str]) -> list[tuple[str, str]]:
    rows = []
    for name in (name for name in names if after.get(name) is not None):
        ends = [after] if before is after or before.get(name) is None else [before, after]
        label = LABELS.get(name, name.removeprefix("eval/"))
        rows.append((label, " → ".join(show(row[name]) for row in ends)))
    return rows
