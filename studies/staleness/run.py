"""Trains with rollouts of different staleness, with and without a correction, on several seeds.

    python -m studies.staleness.run --runs DIR --to studies/staleness/results.json --figure docs/staleness.png

Three ways to treat rollouts of older weights: `ratio` clips the ratio to the sampler; `truncate` weighs by the
truncated ratio of the step's policy to the sampler and clips the ratio to the step's policy (decoupled); `ignored`
takes them for the policy's own. Without staleness the three are one. Runs of one call share the machine, so their
seconds are no benchmark. `--only ratio-2` trains one arm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from studies.one_run import trained
from whet.evaluate.statistics import mean_interval
from whet.report.figures import png

RECIPE = "grpo-sorting"
STALENESS = (0, 1, 2, 4)
IGNORED = f"{Path(__file__).with_name('own_corrections.py')}:ignored"
CORRECTIONS: dict[str, tuple[str, ...]] = {
    "ratio": (),
    "truncate": ("algorithm.importance_correction=token_truncate",),
    "ignored": (f"algorithm.importance_correction={IGNORED}",),
}
EVALUATIONS = ("eval.every_steps=20",)
COLOURS = {"ratio": "#2a6fbb", "truncate": "#3d8b5f", "ignored": "#c8553d"}
MEASURES = {"last": "held-out accuracy at the end", "mean": "mean of all evaluations"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One run of the study."""

    correction: str
    staleness: int
    seed: int

    @property
    def what(self) -> str:
        return f"{self.correction}-{self.staleness}"

    @property
    def keys(self) -> list[str]:
        """The overrides of its recipe."""
        ahead = [f"asynchronous.staleness={self.staleness}", *CORRECTIONS[self.correction]] if self.staleness else []
        return [f"seed={self.seed}", *EVALUATIONS, *ahead]


def arms(seeds: Sequence[int], only: Sequence[str] = ()) -> Iterator[Arm]:
    """The runs; without staleness there is nothing to correct, so one of them."""
    for seed in seeds:
        for staleness in STALENESS:
            for correction in CORRECTIONS if staleness else ("ratio",):
                arm = Arm(correction=correction, staleness=staleness, seed=seed)
                if not only or arm.what in only:
                    yield arm


def train(arm: Arm, options: argparse.Namespace) -> dict[str, Any]:
    """One run; the numbers that are committed of it."""
    keys = [*arm.keys, *options.override]
    told = [key.replace(str(Path(__file__).parents[2]) + "/", "") for key in keys]
    found = trained(RECIPE, keys, told, options.runs / f"{arm.what}-seed-{arm.seed}")
    return {**asdict(arm), **found, **({} if "failed" in found else measured(found["curves"]["eval/accuracy"]))}


def measured(curve: Sequence[Sequence[float]]) -> dict[str, float]:
    """The last of the evaluations and their mean, without the one before training."""
    values = [value for step, value in curve if step > 0]
    return {"last": values[-1], "mean": statistics.fmean(values)}


def summarised(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each arm the mean over its seeds, with its 95 % interval (Student's t over seeds)."""
    found = []
    for correction, staleness in sorted({(run["correction"], run["staleness"]) for run in runs}):
        mine = [run for run in runs if (run["correction"], run["staleness"]) == (correction, staleness)]
        done = [run for run in mine if "failed" not in run]
        row: dict[str, Any] = {"correction": correction, "staleness": staleness, "failed": len(mine) - len(done)}
        for measure in MEASURES if done else ():
            values = [run[measure] for run in done]
            row[measure] = {"mean": statistics.fmean(values), "seeds": values}
            if len(values) > 1:
                interval = mean_interval(values)
                row[measure] |= {"low": interval.low, "high": interval.high}
        found.append(row)
    return found


def draw(summary: Sequence[Mapping[str, Any]]) -> bytes:
    """Accuracy over staleness, one line for each correction; the run without staleness begins all of them."""
    figure = Figure(figsize=(8.4, 3.4), dpi=150, layout="constrained")
    for axes, (measure, label) in zip(figure.subplots(1, len(MEASURES), sharey=True), MEASURES.items(), strict=True):
        for shift, correction in enumerate(CORRECTIONS):
            rows = [row for row in summary if row["correction"] == correction or row["staleness"] == 0]
            rows = sorted((row for row in rows if measure in row), key=lambda row: row["staleness"])
            middle = [100 * row[measure]["mean"] for row in rows]
            bars = [
                [100 * abs(row[measure].get(end, row[measure]["mean"]) - row[measure]["mean"]) for row in rows]
                for end in ("low", "high")
            ]
            places = [row["staleness"] + 0.06 * (shift - 1) for row in rows]
            axes.errorbar(
                places, middle, bars, color=COLOURS[correction], marker="o", markersize=4, capsize=2, label=correction
            )
            dots = [
                (place, 100 * seed) for place, row in zip(places, rows, strict=True) for seed in row[measure]["seeds"]
            ]
            axes.scatter(
                [place for place, _ in dots],
                [seed for _, seed in dots],
                color=COLOURS[correction],
                s=7,
                alpha=0.6,
                linewidths=0,
            )
        axes.set_ylim(-2, 102)  # intervals of three seeds may reach beyond what a share can be
        axes.set_title(label, fontsize=10, loc="left")
        axes.set_xlabel("staleness, steps")
        axes.set_xticks(STALENESS)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("%")
    figure.axes[0].legend(frameon=False)
    return png(figure)


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    seeds = [int(seed) for seed in options.seeds.split(",")]
    with ThreadPoolExecutor(options.parallel) as pool:
        running = [pool.submit(train, arm, options) for arm in arms(seeds, options.only)]
        for done in as_completed(running):
            runs.append(done.result())
            sys.stdout.write(_line(runs[-1]) + "\n")
            sys.stdout.flush()
            ordered = sorted(runs, key=lambda run: (run["correction"], run["staleness"], run["seed"]))
            summary = summarised(ordered)
            options.to.write_text(json.dumps({"arms": summary, "runs": ordered}, indent=1) + "\n", "utf-8")
            if options.figure is not None:
                options.figure.write_bytes(draw(summary))


def _line(found: Mapping[str, Any]) -> str:
    name = f"{found['correction']} staleness {found['staleness']} seed {found['seed']}"
    if "failed" in found:
        return f"{name}: failed: {found['failed'][-300:]}"
    return f"{name}: accuracy {found['last']:.3f}, mean {found['mean']:.3f}, in {found['minutes']:.1f} min"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("runs", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", action="append", default=[], metavar="CORRECTION-STALENESS", help="this arm alone")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE for every run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
