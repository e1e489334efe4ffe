"""The learning curves of the newest result as a picture: `python -m bench.figure docs/learning.png`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.command import run_command
from bench.results import RESULTS, newest_results
from whet.errors import UserError
from whet.report.figures import png

COLOURS = ("#2a6fbb", "#c8553d", "#3d8b5f", "#7a5195", "#b08900")


def draw(result: Mapping[str, Any]) -> bytes:
    """Held-out accuracy over seconds, with its interval, one line for each seed."""
    figure = Figure(figsize=(7.2, 3.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    for colour, (seed, points) in zip(COLOURS * 9, result["sides"]["whet"]["curves"].items(), strict=False):
        seconds = [point["seconds"] for point in points]
        low, high, middle = ([100 * point[key] for point in points] for key in ("low", "high", "accuracy"))
        axes.fill_between(seconds, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(seconds, middle, color=colour, marker="o", markersize=3, label=f"seed {seed}")
    axes.set_xlabel("seconds of steps and evaluations")
    axes.set_ylabel("held-out accuracy, %")
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    axes.set_title(result["title"], fontsize=10, loc="left")
    return png(figure)


def main(arguments: Sequence[str]) -> None:
    """Writes the picture."""
    if len(arguments) != 1:
        raise UserError("give the file to write: python -m bench.figure docs/learning.png")
    results = newest_results(RESULTS)
    if "learning" in results:  # else the page shows no picture
        Path(arguments[0]).write_bytes(draw(results["learning"]))


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
