"""docs/tasks/results.md and its picture, from results.json; `make docs` calls it with the folder docs/tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from studies.verifiable.run import STUDIES
from whet.report.figures import png

RESULTS = Path(__file__).with_name("results.json")
NOTICE = "<!-- Written by `make docs` from studies/verifiable/results.json. Change that. -->\n"
MEASURES = {"eval/accuracy": "accuracy (greedy)", "eval/maj@8": "maj@8", "eval/pass@8": "pass@8"}
INTRODUCTION = """\
Held-out prompts, before → after training; percentages with 95 % intervals, of each seed. `maj@8` and `pass@8` are of
eight samples at temperature 1. Small models on one H200; the commands name the recipes (`studies/verifiable`).
The weights are published 4-bit files, dequantised, so they start a little lower than the originals. Runs may share
the GPU, so their minutes are no benchmark."""
REMARKS = """\
- gsm8k: verl reports 56.9 % for Qwen2.5-0.5B-Instruct after a whole run: another model, and longer than these 80 steps,
  which are less than one epoch.
- countdown: level 1 has 42 held-out problems. pass@8 equals the accuracy, so samples solve nothing that the greedy
  answer does not. TinyZero reports that a base model of 0.5 B parameters fails at Countdown as well.
- spell-backward-small: nothing was learned. Why was not looked into.
- mbpp: the intervals overlap. The numbers are those of metrics.jsonl; the machine went away before the run had written
  its results, so its minutes are not known."""
COLOURS = ("#2a6fbb", "#c8553d", "#3d8b5f")
Result = Mapping[str, Any]


def lines(results: Sequence[Result]) -> Iterator[str]:
    yield from (
        "# GRPO on verifiable tasks: measured",
        "",
        *INTRODUCTION.splitlines(),
        "",
        "| task | model | seed | steps | minutes | " + " | ".join(MEASURES.values()) + " |",
        "|---|---|---|---|---|" + "---|" * len(MEASURES),
    )
    for result in results:
        study = STUDIES[result["study"]]
        cells = [_change(result, metric) for metric in MEASURES]
        about = (result["study"], study.model, result["seed"], result["after"]["step"], _minutes(result))
        yield f"| {' | '.join(map(str, (*about, *cells)))} |"
    yield from ("", *REMARKS.splitlines())
    yield from ("", "![Held-out accuracy by step](results.png)", "", "## Commands", "", "```sh")
    yield from dict.fromkeys(result["command"].replace(f" seed={result['seed']}", "") for result in results)
    yield from ("python -m studies.verifiable.run --models DIR --data DIR --runs DIR --to FILE  # all of them", "```")


def _minutes(result: Result) -> str:
    """Of a run whose machine went away after the last evaluation they are not known."""
    return f"{result['minutes']:.1f}" if "minutes" in result else "–"


def _change(result: Result, metric: str) -> str:
    return " → ".join(_share(result[end], metric) for end in ("before", "after")) if metric in result["after"] else "–"


def _share(row: Mapping[str, float], metric: str) -> str:
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    return f"{100 * row[metric]:.1f} [{100 * low:.1f} … {100 * high:.1f}]"


def picture(results: Sequence[Result]) -> bytes:
    """Held-out accuracy over steps: one panel for each study, one line for each seed."""
    names = list(dict.fromkeys(result["study"] for result in results))
    figure = Figure(figsize=(3.0 * min(3, len(names)), 2.6 * -(-len(names) // 3)), dpi=150, layout="constrained")
    panels = figure.subplots(-(-len(names) // 3), min(3, len(names)), squeeze=False).flat
    for axes, name in zip(panels, names, strict=False):
        for result in (one for one in results if one["study"] == name):
            steps, shares = zip(*result["curves"]["eval/accuracy"], strict=True)
            colour = COLOURS[result["seed"] % len(COLOURS)]
            axes.plot(steps, [100 * share for share in shares], color=colour, marker="o", markersize=3)
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_ylim(0, 100)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(panels):
        axes.set_visible(False)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("held-out accuracy, %", fontsize=9)
    return png(figure)


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0])
    results = json.loads(RESULTS.read_text("utf-8"))
    (folder / "results.md").write_text(NOTICE + "\n".join(lines(results)) + "\n", "utf-8")
    (folder / "results.png").write_bytes(picture(results))


if __name__ == "__main__":
    main(sys.argv[1:])
