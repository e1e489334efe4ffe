"""`whet.compare`: several algorithms × seeds of one recipe."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.api.given import read_given
from whet.api.run import Run
from whet.api.training import runs_root
from whet.cli.comparing import Watcher
from whet.errors import RunFailed, UserError
from whet.report.comparison.comparison_writer import Setup, write_comparison
from whet.runs.comparison import ComparisonDirectory
from whet.train.experiments.sweep import read_trials, run_states, run_trials

TARGET = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What came out of several algorithms × seeds."""

    path: Path  # its directory
    results: Mapping[str, Any]  # comparison.json
    table: str
    verdict: str
    page: Path  # table, curves and verdict
    runs: Mapping[tuple[str, int], Run]  # by algorithm and seed

    def __repr__(self) -> str:
        return f"{self.table}\n\n{self.verdict}"

    def _repr_markdown_(self) -> str:
        return repr(self)


def compare(
    recipe: str | os.PathLike[str],
    *,
    algorithms: Sequence[str],
    seeds: int | Sequence[int] = 3,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    root: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    target: float = TARGET,
    **keys: Any,
) -> Comparison:
    """A run for each algorithm (a preset) and seed, then a table, curves and a verdict; keywords change the recipe.

    `directory` is exactly where; a comparison that was begun there goes on. `target` is the held-out accuracy whose
    step is looked for.
    """
    given = read_given(keys, None, overrides, None)
    if given.objects:
        raise UserError(
            f"whet.compare finds functions by file, not as objects: put {', '.join(given.objects)} in a module"
        )
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    changed = given.words()
    trials = read_trials(os.fspath(recipe), list(algorithms), numbers, changed, [])
    made = (
        ComparisonDirectory.create(runs_root(root), trials[0].recipe.name)
        if directory is None
        else ComparisonDirectory.open(Path(directory).expanduser())
    )
    words = ["whet", "compare", "--methods", ",".join(algorithms), "--seeds", f"{','.join(map(str, numbers))},"]
    setup = Setup(
        recipe=trials[0].recipe.name,
        command=shlex.join([*words, os.fspath(recipe), *changed]),
        overrides={trial.method: trial.overrides[:-1] for trial in trials},  # the seed comes last
        seeds=numbers,
        target=target,
    )
    try:
        states = run_states(trials, made)
        failures = run_trials(trials, made, Watcher(f"comparison: {made.path}", states, {}))
    except UserError:
        made.remove_if_unused()
        raise
    written = write_comparison(made, setup, failures)
    if failures:
        (method, seed), why = next(iter(failures.items()))
        raise RunFailed(
            f"{len(failures)} runs failed, first {method} seed {seed}: {why}; the others: {made.table_path}"
        )
    return Comparison(
        path=made.path,
        results=written.results,
        table=written.table,
        verdict=written.verdict.sentence,
        page=made.table_path,
        runs={(trial.method, trial.seed): Run(made.run_path(trial.method, trial.seed)) for trial in trials},
    )
