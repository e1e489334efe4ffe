"""docs/control.md and its picture from the results: `python -m studies.control.page TEMPLATE PAGE PICTURE`."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from bench.results import RESULTS, newest_results
from pages.markdown import header, row_line
from studies.control.run import results
from whet.number_format import percent
from whet.report.figures import png

FILE, OFF_POLICY = (Path(__file__).with_name(name) for name in ("results.jsonl", "off_policy.jsonl"))
SIDES = {"whet": "whet", "sb3": "Stable-Baselines3"}
COLOURS = {"whet": "#2a6fbb", "sb3": "#c8553d"}
DRAWS, LEVEL = 10_000, 0.95
Row = Mapping[str, Any]
MARK, MARK_OFF_POLICY, MARK_BATCHED = "<!-- results -->", "<!-- off-policy results -->", "<!-- batched results -->"


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half; values at its edges count in part (Agarwal et al. 2021)."""
    ordered, left = sorted(values), len(values) / 4
    inside = [max(0.0, min(i + 1, len(values) - left) - max(i, left)) for i in range(len(values))]
    return sum(value * share for value, share in zip(ordered, inside, strict=True)) / sum(inside)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the interquartile mean, by drawing seeds again."""
    rng = random.Random(0)  # noqa: S311 - no secret
    means = sorted(interquartile_mean(rng.choices(values, k=len(values))) for _ in range(DRAWS))
    edge = round((1 - LEVEL) / 2 * DRAWS)
    return means[edge], means[-edge - 1]


def render(template: str, rows: Sequence[Row], off_policy: Sequence[Row], batched: Row | None = None) -> str:
    page = template.replace(MARK, "\n".join(_lines(rows)).rstrip())
    if batched:
        page = page.replace(MARK_BATCHED, "\n".join(_batched_lines(batched)))
    return page.replace(MARK_OFF_POLICY, "\n".join(_off_policy_lines(off_policy)))


def _batched_lines(result: Row) -> Iterator[str]:
    """What `bench.control` measured: steps a second, and where the time of a rollout goes."""
    yield f"{result['title']}, on {result['machine'].get('gpu', result['machine']['processor'])}:"
    yield ""
    yield from header("copies", "steps a second", "without updates", "ms a rollout: collect", "annotate", "update")
    for row in result["sides"]["whet"]:
        parts = (f"{1000 * row['seconds'][phase]:.0f}" for phase in ("collect", "annotate", "update"))
        yield row_line(
            f"{row['copies']:,}", f"{row['steps_a_second']:,.0f}", f"{row['collected_a_second']:,.0f}", *parts
        )


def _off_policy_lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line for every recipe: each seed's held-out return before and after, and share of goals reached."""
    yield from header("recipe", "steps", "seeds", "held-out return before", "after", "success after")
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        some = sorted((row for row in rows if row["recipe"] == recipe), key=lambda row: row["seed"])
        before, after = (", ".join(f"{row[when]['reward']:.1f}" for row in some) for when in ("before", "after"))
        reached = ", ".join(percent(row["after"]["success"]) for row in some if "success" in row["after"])
        seeds = ", ".join(str(row["seed"]) for row in some)
        yield row_line(f"`{recipe}`", f"{some[0]['steps']:,.0f}", seeds, before, after, reached)


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    named = ("environment", "", "seeds", "steps", "held-out return, interquartile mean", "lowest", "steps a second")
    environments = list(dict.fromkeys(row["environment"] for row in rows))
    yield from header(*named)
    for environment in environments:
        for side, name in SIDES.items():
            some = _of(rows, environment, side)
            if some:
                yield row_line(environment, name, *_figures(some))
    yield ""
    for environment in environments:
        ours, theirs = (_rate(_of(rows, environment, side)) for side in SIDES)
        if ours and theirs:
            yield f"On {environment} whet takes {ours / theirs:.2f} × as many steps a second."


def _of(rows: Sequence[Row], environment: str, side: str) -> list[Row]:
    return [row for row in rows if (row["environment"], row["side"]) == (environment, side)]


def _rate(rows: Sequence[Row]) -> float:
    return fmean(row["processor_rate"] for row in rows) if rows else 0.0


def _figures(rows: Sequence[Row]) -> Iterator[str]:
    returns = [row["held_out"] for row in rows]
    yield str(len(rows))
    yield f"{rows[0]['steps']:,.0f}"
    low, high = interval(returns)
    spread = f" [{low:.1f} … {high:.1f}]" if len(rows) > 2 else ""
    yield f"{interquartile_mean(returns):.1f}{spread}"
    yield f"{min(returns):.1f}"
    yield f"{_rate(rows):,.0f}"


def curves(rows: Sequence[Row]) -> bytes:
    """Mean return of the last 100 training episodes over steps, a line for each seed."""
    environments = list(dict.fromkeys(row["environment"] for row in rows))
    figure = Figure(figsize=(4.4 * len(environments), 3.2), dpi=150, layout="constrained")
    for axes, environment in zip(figure.subplots(1, len(environments), squeeze=False)[0], environments, strict=True):
        for side, name in SIDES.items():
            for number, row in enumerate(_of(rows, environment, side)):
                steps, returns = zip(*row["curve"], strict=True)
                axes.plot(steps, returns, color=COLOURS[side], alpha=0.6, linewidth=1, label="" if number else name)
        axes.set_title(environment, fontsize=10, loc="left")
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
    return png(figure)


def main(arguments: Sequence[str]) -> None:
    template, page, picture = map(Path, arguments)
    rows = results(FILE)
    batched = newest_results(RESULTS).get("control")
    page.write_text(render(template.read_text("utf-8"), rows, results(OFF_POLICY), batched), "utf-8")
    if rows:
        picture.write_bytes(curves(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
