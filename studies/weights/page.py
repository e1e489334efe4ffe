"""docs/lora.md and its picture of sweep.json and lora.json: `python -m studies.weights.page TEMPLATE PAGE PICTURE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from pages.markdown import header, row_line
from whet.report.figures import png

SWEEP, LORA = (Path(__file__).with_name(name) for name in ("sweep.json", "lora.json"))
MARK_SWEEP, MARK_LORA = "<!-- here: sweep -->", "<!-- here: lora -->"
COLOURS = {"full": "#c8553d", "lora": "#2a6fbb"}
NAMES = {"full": "all weights", "lora": "LoRA, rank 16"}
SMOOTH = 10  # steps of a moving mean in the picture
Row = Mapping[str, Any]


def sweep_lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each model and way to train, a column for each learning rate; the chosen one in bold."""
    rates = sorted({row["rate"] for row in rows})
    yield from header("model", "trained", *(f"{rate:g}" for rate in rates))
    for model, what in _groups(rows):
        found = {row["rate"]: row["after"]["eval/accuracy"] for row in _of(rows, model, what)}
        best = max(found, key=lambda rate: (found[rate], -rate))
        cells = [f"{100 * found[rate]:.1f}" if rate in found else "" for rate in rates]
        bold = [f"**{cell}**" if rate == best else cell for rate, cell in zip(rates, cells, strict=True)]
        yield row_line(model, NAMES[what], *bold)


def lora_lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each model and way to train: every seed's held-out accuracy with its interval, their mean, lengths."""
    seeds = sorted({row["seed"] for row in rows})
    named = ("model", "trained", "learning rate", "before", *(f"seed {seed}" for seed in seeds), "mean", "tokens")
    yield from header(*named)
    for model, what in _groups(rows):
        some = sorted(_of(rows, model, what), key=lambda row: row["seed"])
        mean = fmean(row["after"]["eval/accuracy"] for row in some)
        lengths = [fmean(row[when]["eval/length"] for row in some) for when in ("before", "after")]
        yield row_line(
            model,
            NAMES[what],
            f"{some[0]['rate']:g}",
            f"{100 * some[0]['before']['eval/accuracy']:.1f}",
            *(_accuracy(row["after"]) for row in some),
            f"{100 * mean:.1f}",
            f"{lengths[0]:.1f} → {lengths[1]:.1f}",
        )


def _groups(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return sorted({(row["model"], row["what"]) for row in rows}, key=lambda group: (group[0][::-1], group[1]))


def _of(rows: Sequence[Row], model: str, what: str) -> list[Row]:
    return [row for row in rows if (row["model"], row["what"]) == (model, what)]


def _accuracy(row: Mapping[str, float]) -> str:
    value, low, high = (100 * row[f"eval/accuracy{end}"] for end in ("", "_low", "_high"))
    return f"{value:.1f} [{low:.1f} … {high:.1f}]"


def picture(rows: Sequence[Row]) -> bytes:
    """Mean reward of the rollouts over steps, smoothed: a panel for each model, a line for each seed."""
    models = list(dict.fromkeys(model for model, _ in _groups(rows)))
    figure = Figure(figsize=(4.4 * len(models), 3.0), dpi=150, layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        for what, name in NAMES.items():
            for number, row in enumerate(_of(rows, model, what)):
                steps, rewards = zip(*row["curves"]["reward/mean"], strict=True)
                means = [fmean(rewards[max(0, i - SMOOTH + 1) : i + 1]) for i in range(len(rewards))]
                axes.plot(steps, means, color=COLOURS[what], linewidth=1, label="" if number else name)
        axes.set_title(model, fontsize=9, loc="left")
        axes.set_xlabel("steps")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper left")
    return png(figure)


def main(arguments: Sequence[str]) -> None:
    template, page, to = map(Path, arguments)
    sweep, lora = (json.loads(path.read_text("utf-8")) for path in (SWEEP, LORA))
    text = template.read_text("utf-8")
    for mark, lines in ((MARK_SWEEP, sweep_lines(sweep)), (MARK_LORA, lora_lines(lora))):
        text = text.replace(mark, "\n".join(lines))
    page.write_text(text, "utf-8")
    to.write_bytes(picture(lora))


if __name__ == "__main__":
    main(sys.argv[1:])
