"""The committed results of a study, seed by seed, as `gather.py` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.gather import RUNS, seed_folders
from whet.errors import UserError
from whet.runs import layout, logs
from whet.runs.experiment_directories import COMPARISON, ComparisonDirectory, is_comparison

SAME = ("task", "prompts", "start_name", "truth")  # in all seeds, or their numbers are about different things

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seed:
    """What one pipeline came to, or the runs by themselves that have the same seed."""

    seed: int
    runs: Mapping[str, Values]  # place in the pipeline, or name → its entry of runs.json
    contest: Values | None  # comparison.json; None for runs by themselves


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """The seeds of a study, the lowest first."""

    path: Path
    seeds: Sequence[Seed]

    @property
    def contests(self) -> list[Values]:
        """The comparison of every seed."""
        found = [seed.contest for seed in self.seeds if seed.contest is not None]
        if len(found) < len(self.seeds):
            raise UserError(f"{self.path}: a seed has no {COMPARISON}; gather all seeds from finished pipelines")
        return found


def read_study(path: Path) -> Study:
    """The results in a folder: one folder for each seed."""
    folders = seed_folders(path)
    if not folders:
        raise UserError(f"{path} holds no results ({layout.SEED}N); fill it with studies/gather.py")
    study = Study(path=path, seeds=[_read(seed, folder) for seed, folder in folders.items()])
    _refuse_different(study)
    return study


def _read(seed: int, folder: Path) -> Seed:
    if not (folder / RUNS).is_file():
        raise UserError(f"{folder} has no {RUNS}; fill it with studies/gather.py")
    comparison = folder / COMPARISON
    contest = ComparisonDirectory(comparison).results() if is_comparison(comparison) else None
    return Seed(seed=seed, runs=logs.read_json(folder / RUNS), contest=contest)


def _refuse_different(study: Study) -> None:
    contests = [(seed.seed, seed.contest) for seed in study.seeds if seed.contest is not None]
    for seed, results in contests[1:]:
        first, known = contests[0]
        for key in SAME:
            if results[key] != known[key]:
                raise UserError(
                    f"{study.path}: {key} is {known[key]!r} with seed {first} and {results[key]!r} with seed {seed}; "
                    "gather runs of the same recipe"
                )
        if results["settings"] != known["settings"]:
            raise UserError(f"{study.path}: seeds {first} and {seed} were compared differently; gather the same recipe")
