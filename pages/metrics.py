"""docs/metrics.md: every logged metric, from the table in whet.metrics, with pictures of runs.

`python -m pages.metrics docs/metrics.md` writes it; `make docs` does that, and draws the pictures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pages.markdown import header, row_line
from studies.curves.plots import PICTURES
from whet.metrics.metric import EVERY_STEP, Loop, Metric
from whet.metrics.table import TOPICS
from whet.runs.layout import METRICS, TIMINGS

INTRODUCTION = f"""<!-- Written by `make docs` from src/whet/metrics. Change the rows there. -->
# Metrics

Everything that a run logs in `{METRICS}` (and its seconds in `{TIMINGS}`): the formula, where the value is in runs
that learn, and what it means when it moves. `whet metrics kl` prints the same of one metric, also by its name in
another library (`whet metrics response_length/mean`); the page of [`whet ui`](ui.md) explains each chart with it, and
`whet doctor` judges by it ([doctor.md](doctor.md)). A test compares this page with what runs log, so none is
missing.

In names, capitals stand for a name or a number that a recipe gives: `parts/NAME` is logged as `parts/short`,
`eval/pass@K` as `eval/pass@8`. A named evaluation set is in between: `eval/hard/accuracy`. Of a metric with a 95 %
interval the ends are logged as `NAME_low` and `NAME_high`. A *nat* is the unit of natural logarithms: 1 nat = 1.44
bits.

**The first things to look at**, in this order: [`eval/accuracy`](#evalaccuracy) (does it learn what it should?),
[`reward/mean`](#rewardmean) (does it get what it is paid for?), [`groups/zero_variance`](#groupszero_variance) (is
there anything to learn from?), [`entropy`](#entropy) (does it still explore?), [`truncated`](#truncated) and
[`length/mean`](#lengthmean) (do answers end?), [`kl`](#kl) and [`approx_kl`](#approx_kl) (how far does it go?),
[`mismatch/mean`](#mismatchmean) (is the sampler the policy?).

## Pictures

Real runs, seconds each on a CPU: one that learns (green) beside ones in which a single thing was broken. The green
ground is the healthy range of the table. `python -m studies.curves.run --runs DIR --to studies/curves/curves.json`
trains them anew; `make docs` draws them. The scales are those of small models and short answers: on yours compare
shapes, and ranges where the table gives them. A policy that starts from next to nothing, as here, moves further from
its reference than a tuned one: its `kl` ends above the range of the table.

## The same name in other libraries
"""
MARKS = re.compile(r"[\\*<\[]|(?<!\w)_|_(?!\w)")  # an underscore inside of a word is one
LIBRARIES = ("TRL", "verl", "OpenRLHF")
LOOPS: Mapping[Loop, str] = {
    "online": "online RL",
    "sft": "SFT",
    "lm": "language modelling",
    "denoise": "denoising",
    "preference": "preference training",
    "reward": "reward models",
    "collect": "collecting",
    "control": "control",
    "off_policy": "off-policy control",
}


def render() -> str:
    """The page."""
    lines = [INTRODUCTION, *_elsewhere()]
    for topic, metrics in TOPICS.items():
        lines += ["", f"## {topic}", *_pictures(topic)]
        for metric in metrics:
            lines += ["", *_metric(metric)]
    return "\n".join([*lines, ""])


def _elsewhere() -> Iterator[str]:
    """A line for each metric that another library has, too."""
    yield from header("whet", *LIBRARIES)
    for metrics in TOPICS.values():
        for metric in metrics:
            names = [metric.elsewhere.get(library, "") for library in LIBRARIES]
            if any(names):
                yield row_line(f"[`{metric.name}`](#{anchor(metric.name)})", *names)


def anchor(name: str) -> str:
    """Of the heading of a metric, as GitHub makes it."""
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter in "_-")


def _pictures(topic: str) -> Iterator[str]:
    for name, picture in PICTURES.items():
        if picture.topic == topic:
            yield from ("", f"![{picture.text}]({name}.png)")


def _metric(metric: Metric) -> Iterator[str]:
    yield f"### {metric.name}"
    yield ""
    unit = f", {metric.unit}" if metric.unit else ""
    better = f"; {metric.better} is better" if metric.better else ""
    yield f"**{metric.label[0].upper()}{metric.label[1:]}**{unit}{better}. Logged by {_loops(metric)}.{_needs(metric)}"
    yield ""
    yield f"- formula: {_escaped(metric.formula)}" + ("; with its 95 % interval" if metric.has_interval else "")
    yield f"- healthy: {_escaped(metric.healthy)}"
    yield f"- rises: {_escaped(metric.rises)}"
    yield f"- falls: {_escaped(metric.falls)}"
    if metric.elsewhere:
        yield "- elsewhere: " + " · ".join(f"{name} in {library}" for library, name in named(metric))
    if metric.rules:
        yield "- doctor: " + ", ".join(f"`{rule}`" for rule in metric.rules)


def named(metric: Metric) -> Iterator[tuple[str, str]]:
    for library, name in metric.elsewhere.items():
        yield library, _escaped(name)


def _loops(metric: Metric) -> str:
    if metric.loops == EVERY_STEP:
        return "every loop that trains"
    return ", ".join(LOOPS[loop] for loop in metric.loops)


def _needs(metric: Metric) -> str:
    return f" Needs {_escaped(metric.needs)}." if metric.needs else ""


def _escaped(text: str) -> str:
    """Text in which Markdown finds nothing of its own."""
    return MARKS.sub(r"\\\g<0>", text)


def main(arguments: Sequence[str]) -> None:
    (page,) = arguments
    Path(page).write_text(render(), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
