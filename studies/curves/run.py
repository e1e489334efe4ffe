"""Trains the runs of the pictures, one after the other, and keeps their curves.

    python -m studies.curves.run --runs DIR --to studies/curves/curves.json [--only WORD]

About seven minutes on one core; `make docs` draws docs/metrics-*.png from the file. Curves of runs that are not trained
again stay as they are.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from studies.curves.plots import CASES, shown_of
from studies.doctor.cases import Case
from studies.doctor.engines import sampling_with
from studies.doctor.run import prepare
from whet.cli.progress import SilentProgress
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.runs.series import series
from whet.train.start import start_run

SEED = 0
DIGITS = 4  # that are kept of a value


def curves(case: Case, made: Path, out: Path) -> dict[str, list[list[float]]]:
    """Trains; the steps and values of each metric that a picture shows."""
    shutil.rmtree(out, ignore_errors=True)
    with sampling_with(case.engine):
        recipe = read_recipe(case.recipe, case.arguments(SEED, made))
        start_run(recipe, out.parent, lambda *_: SilentProgress(), path=out)
    rows = RunDirectory.open(out, is_writer=False).metrics()
    found = {name: series(rows, name) for name in shown_of(case.name)}
    return {name: [list(one.steps), [_short(value) for value in one.values]] for name, one in found.items()}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def written(found: Mapping[str, Any]) -> str:
    """A line for each curve."""
    runs = []
    for name in CASES:
        if name in found:
            lines = ",\n".join(f"  {json.dumps(metric)}: {json.dumps(one)}" for metric, one in found[name].items())
            runs.append(f" {json.dumps(name, ensure_ascii=False)}: {{\n{lines}}}")
    return "{\n" + ",\n".join(runs) + "}\n"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="where runs are trained")
    parser.add_argument("--to", type=Path, required=True, help="the file of curves")
    parser.add_argument("--only", default="", metavar="WORD", help="runs with this in their name")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    made = options.runs / "made"
    made.mkdir(parents=True, exist_ok=True)
    prepare(made, 1)
    found = json.loads(options.to.read_text("utf-8")) if options.to.is_file() else {}
    for number, (name, case) in enumerate(CASES.items()):
        if options.only in name:
            found[name] = curves(case, made, options.runs / f"run-{number}")
            options.to.write_text(written(found), "utf-8")
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
