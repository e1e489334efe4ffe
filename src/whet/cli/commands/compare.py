"""`whet compare`: several methods × seeds of one recipe, in one table."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from whet.errors import UserError

if TYPE_CHECKING:
    from whet.report.comparison.sweep_results import Setup
    from whet.runs.experiment_directories import ComparisonDirectory
    from whet.train.experiments.sweep import Sweep

TIP = "A packaged recipe or a YAML file: of one run, whose algorithm each method replaces, or a pipeline."
TARGET = 0.8


def compare(
    source: str = typer.Argument(..., metavar="RECIPE", help=TIP),
    overrides: list[str] = typer.Argument(
        None, metavar="KEY=VALUE", help="Override keys of the recipe, for all methods."
    ),
    *,
    methods: str = typer.Option(
        ..., "--methods", metavar="A,B,…", help="Algorithm presets to compare, or methods of the pipeline."
    ),
    seeds: str = typer.Option("3", "--seeds", metavar="N|A,B,…", help="Number of seeds (0, 1, …), or a list: 3,7."),
    changes: list[str] = typer.Option(
        None, "--set", metavar="METHOD:KEY=VALUE", help="Override a key for one method; may be repeated."
    ),
    runs: Path = typer.Option(Path("runs"), "--runs", envvar="WHET_RUNS", help="Folder in which it is made."),
    out: Path = typer.Option(None, "--out", help="Exact directory; a comparison that was begun there is continued."),
    target: float = typer.Option(TARGET, "--target", help="Report the first step with this held-out accuracy."),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers (comparison.json) as JSON."),
) -> None:
    """Compare algorithms over several seeds. Writes a table with intervals, learning curves and a verdict.

    Methods of a pipeline start from its stages, which run once, and are judged as its `compare` section says.

    \b
    Examples:
      whet compare --methods reinforce,rloo,grpo --seeds 3 grpo-sorting steps=100
      whet compare --methods rloo,grpo --set grpo:update.epochs=2 grpo-sorting --out runs/epochs
      whet compare --methods ppo,grpo,dpo --seeds 3 rlhf-reviews
    """
    from whet.cli.pipeline_console import compare_pipeline
    from whet.recipe import is_pipeline
    from whet.report.comparison.sweep_results import Setup
    from whet.runs.experiment_directories import ComparisonDirectory
    from whet.train.experiments.pipeline_runs import chosen
    from whet.train.experiments.sweep import read_sweep

    _check(target)
    names, numbers, own = _names(methods), read_seeds(seeds), _changes(changes or [])
    words = _words(methods, seeds, source, overrides or [], changes or [], target)
    if is_pipeline(source):
        if target != TARGET:
            raise UserError("--target is for recipes of one run; how a pipeline compares stands in its compare section")
        keys = [f"methods.{method}.{override}" for method, override in own]
        pipeline = chosen(source, names, numbers, [*(overrides or []), *keys])
        compare_pipeline(pipeline, runs, out, words=words, as_json=as_json)
        return
    sweep = read_sweep(source, names, numbers, overrides or [], own)
    setup = Setup(
        recipe=sweep.recipe,
        command=shlex.join(words if out is None else [*words, "--out", str(out.expanduser())]),
        overrides=sweep.overrides,
        seeds=numbers,
        target=target,
    )
    where = runs if out is None else out.expanduser()
    directory = ComparisonDirectory.create(where, sweep.recipe) if out is None else ComparisonDirectory.open(where)
    _compare(sweep, setup, directory, words, as_json=as_json)


def _compare(
    sweep: Sweep, setup: Setup, directory: ComparisonDirectory, words: Sequence[str], *, as_json: bool
) -> None:
    """Makes the runs of one recipe, and the table, curves and verdict."""
    from whet.cli.watcher import Watcher, refuse_failures, show_comparison, stoppable
    from whet.report.comparison.comparison_page import write_page
    from whet.report.comparison.sweep_results import sweep_results
    from whet.train.experiments.jobs import do_jobs, job_state

    with stoppable(directory, [*words, "--out", str(directory.path)]):
        jobs = sweep.jobs(directory)
        states = [job_state(job) for job in jobs.values()]
        first = {method: sweep.recipes[method, setup.seeds[0]] for method in sweep.overrides}
        failures = do_jobs(jobs, states, Watcher(f"comparison: {directory.path}", states, first))
    directory.write_results(sweep_results(directory, setup, failures))
    write_page(directory)
    show_comparison(directory, as_json=as_json)
    refuse_failures(failures, len(jobs))


def read_seeds(text: str) -> list[int]:
    """`3` is 0, 1, 2; `3,7` is 3 and 7; `7,` is 7 alone."""
    parts = [part.strip() for part in text.split(",")]
    listed = len(parts) > 1
    numbers: list[int] = []
    with suppress(ValueError):
        numbers = [int(part) for part in parts if part]
    wrong = not numbers or min(numbers) < (0 if listed else 1) or len(set(numbers)) < len(numbers)
    if wrong:
        raise UserError(f"--seeds {text}: give how many seeds (3), or different seeds from 0 on (3,7)")
    return numbers if listed else list(range(numbers[0]))


def _names(methods: str) -> list[str]:
    names = [name for name in (part.strip() for part in methods.split(",")) if name]
    if not names:
        raise UserError("--methods names no method: write e.g. --methods reinforce,rloo,grpo")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"method {twice!r} comes twice in --methods; name it once")
    return names


def _changes(changes: Sequence[str]) -> list[tuple[str, str]]:
    """METHOD:KEY=VALUE as a method and an override."""
    wrong = next((change for change in changes if not re.match(r"[^:=]+:[^=]+=", change)), None)
    if wrong is not None:
        raise UserError(f"--set {wrong}: write METHOD:KEY=VALUE, e.g. grpo:update.epochs=2")
    return [(method, override) for method, _, override in (change.partition(":") for change in changes)]


def _check(target: float) -> None:
    if not 0 < target <= 1:
        raise UserError(f"--target {target:g} must be a share above 0 and at most 1, e.g. 0.8")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("whet compare trains in one process: start it without torchrun")


def _words(
    methods: str, seeds: str, source: str, overrides: Sequence[str], changes: Sequence[str], target: float
) -> list[str]:
    """The command, but for where it writes."""
    words = ["whet", "compare", "--methods", methods, "--seeds", seeds, source, *overrides]
    words += [word for change in changes for word in ("--set", change)]
    return words if target == TARGET else [*words, "--target", f"{target:g}"]
