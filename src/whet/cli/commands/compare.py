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

from whet.cli.terminal import say, say_json, say_text
from whet.errors import RunFailed, UserError

if TYPE_CHECKING:
    from whet.recipe import Pipeline
    from whet.report.comparison.comparison_writer import Setup, Written
    from whet.runs.comparison import ComparisonDirectory
    from whet.train.experiments.sweep import Trial

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
    from whet.cli.pipeline import compare_pipeline
    from whet.recipe import is_pipeline
    from whet.report.comparison.comparison_writer import Setup
    from whet.train.experiments.sweep import read_trials

    _check(target)
    names, numbers = _names(methods), read_seeds(seeds)
    words = _words(methods, seeds, source, overrides or [], changes or [], target)
    if is_pipeline(source):
        pipeline = _pipeline(source, names, numbers, overrides or [], changes or [], target)
        compare_pipeline(pipeline, runs, out, words=words, as_json=as_json)
        return
    trials = read_trials(source, names, numbers, overrides or [], changes or [])
    recipe = trials[0].recipe.name
    setup = Setup(
        recipe=recipe,
        command=shlex.join(words if out is None else [*words, "--out", str(out.expanduser())]),
        overrides=_overrides(trials, names),
        seeds=numbers,
        target=target,
    )
    _compare(trials, setup, _directory(runs, recipe, out), words, as_json=as_json)


def _directory(runs: Path, recipe: str, out: Path | None) -> ComparisonDirectory:
    from whet.runs.comparison import ComparisonDirectory

    return ComparisonDirectory.create(runs, recipe) if out is None else ComparisonDirectory.open(out.expanduser())


def _compare(
    trials: Sequence[Trial], setup: Setup, directory: ComparisonDirectory, words: Sequence[str], *, as_json: bool
) -> None:
    """Makes the runs of one recipe, and the table, curves and verdict."""
    from whet.cli.comparing import Watcher
    from whet.report.comparison.comparison_writer import write_comparison
    from whet.train.experiments.sweep import run_states, run_trials

    states = run_states(trials, directory)
    first = {trial.method: trial.recipe for trial in reversed(trials)}
    watcher = Watcher(f"comparison: {directory.path}", states, {method: first[method] for method in setup.overrides})
    try:
        failures = run_trials(trials, directory, watcher)
    except KeyboardInterrupt:
        watcher.say(f"stopped; go on with: {shlex.join([*words, '--out', str(directory.path)])}")
        raise
    except UserError:
        directory.remove_if_unused()
        raise
    written = write_comparison(directory, setup, failures)
    _show(written, directory, as_json=as_json)
    if failures:
        (method, seed), why = next(iter(failures.items()))
        raise RunFailed(f"{len(failures)} of {len(trials)} runs failed, first {method} seed {seed}: {why}")


def _show(written: Written, directory: ComparisonDirectory, *, as_json: bool) -> None:
    from whet.runs.logs import json_bytes

    if as_json:
        say_json(json_bytes(written.results, indent=2).decode())
        return
    say_text(f"{written.table}\n\n{written.verdict.sentence}\n")
    say(f"table    {directory.table_path}")
    say(f"curves   {directory.curves_path}")
    say(f"numbers  {directory.results_path}")


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


def _pipeline(
    source: str,
    names: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    changes: Sequence[str],
    target: float,
) -> Pipeline:
    """The pipeline with these methods; METHOD:KEY=VALUE is methods.METHOD.KEY=VALUE of its recipe."""
    from whet.train.experiments.pipeline import chosen

    if target != TARGET:
        raise UserError("--target is for recipes of one run; how a pipeline's methods are judged stands in its compare")
    for change in changes:
        if not re.match(r"[^:=]+:[^=]+=", change):
            raise UserError(f"--set {change}: write METHOD:KEY=VALUE, e.g. grpo:update.epochs=2")
    own = [f"methods.{method}.{override}" for method, _, override in (change.partition(":") for change in changes)]
    return chosen(source, names, seeds, [*overrides, *own])


def _names(methods: str) -> list[str]:
    names = [name for name in (part.strip() for part in methods.split(",")) if name]
    if not names:
        raise UserError("--methods names no method: write e.g. --methods reinforce,rloo,grpo")
    return names


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


def _overrides(trials: Sequence[Trial], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Method → its overrides, but for the seed, which comes last."""
    return {name: next(trial.overrides[:-1] for trial in trials if trial.method == name) for name in names}
