"""How a run stands and what it has reached, read once and then only what was added to its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import yaml

from whet.errors import RunFailed, UserError
from whet.evaluate.measures import evaluations, main_result, measures_in
from whet.runs import layout
from whet.runs.catalogue import Standing, standing, started
from whet.runs.directory import RunDirectory
from whet.runs.tail import read_tail

TIMINGS_READ = 20_000  # bytes of the log of times, whose rows are all alike
KINDS = {"reward/mean": "online", "rewards/margin": "preference", "score/mean": "reward model", "loss": "supervised"}
UNREADABLE = (UserError, RunFailed, OSError, ValueError, TypeError, KeyError, AttributeError)  # damaged files


@dataclass
class Progress:
    """What is kept of a log that may still grow; answers are worked out by several threads."""

    lock: Lock = field(default_factory=Lock, repr=False)
    cursor: str = ""
    step: int = 0
    kind: str = ""
    evaluated: list[dict[str, Any]] = field(default_factory=list)  # rows of evaluations
    names: set[str] = field(default_factory=set)  # of all metrics and timings
    problems: list[str] = field(default_factory=list)

    def read_on(self, run: RunDirectory) -> None:
        while True:
            tail = read_tail(run.path / layout.METRICS, self.cursor)
            if tail.starts_again:
                self.__init__(self.lock)  # type: ignore[misc]
            self.cursor = tail.cursor
            self.problems += [one for one in tail.problems if one not in self.problems]
            for row in tail.rows:
                self.step = max(self.step, row["step"])
                self.names |= row.keys()
                self.kind = self.kind or next((kind for name, kind in KINDS.items() if name in row), "")
                if measures_in(row):
                    self.evaluated.append(row)
            if not tail.has_more:
                return


class Standings:
    """Every run that was looked at, so that a list of many runs is quick the next time."""

    def __init__(self) -> None:
        self._progress: dict[str, Progress] = {}

    def names(self, run: RunDirectory) -> list[str]:
        """The names of all metrics, those of times included."""
        progress = self._progress.setdefault(str(run.path), Progress())
        first = read_tail(run.path / layout.TIMINGS, most=TIMINGS_READ).rows
        with progress.lock:
            progress.read_on(run)
            return sorted(progress.names.union(*first) - {"step"})

    def of(self, run: RunDirectory) -> dict[str, Any]:
        """Status, steps, main result and start of a run; a damaged one has its problems."""
        progress = self._progress.setdefault(str(run.path), Progress())
        with progress.lock:
            return _standing_of(run, progress)


def _standing_of(run: RunDirectory, progress: Progress) -> dict[str, Any]:
    about: dict[str, Any] = {"recipe": run.recipe, "started": None, "steps": None, "headline": None, "result": ""}
    problems: list[str] = []
    try:
        about["started"] = started(run.path).isoformat(sep=" ", timespec="seconds")
        progress.read_on(run)
        if not (run.path / layout.METRICS).exists() and (run.path / layout.TIMINGS).exists():
            problems.append(f"{layout.METRICS} is missing, and with it curves and results")
        now = standing(run, step=progress.step)
        config = config_of(run)
        about |= {"steps": config.get("steps") if type(config.get("steps")) is int else None}
        results = _results(run, problems)
        about |= {"result": _result(progress, results), "headline": headline(progress.evaluated, results)}
    except UNREADABLE as error:
        now = Standing(status="failed", step=progress.step)
        problems.append(said(error))
        about["status"] = "damaged"
    problems += progress.problems
    return {
        "status": now.status,
        **about,
        "step": progress.step,
        "kind": progress.kind,
        "error": now.error,
        "problems": problems,
    }


def headline(evaluated: list[dict[str, Any]], results: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The main measure before and after training, with its intervals."""
    for measure, rows in evaluations(evaluated, results).items():
        low, high = measure.interval
        return {
            "metric": measure.metric,
            "label": measure.label,
            "is_share": measure.is_share,
            "is_higher_better": measure.is_higher_better,
            "size": measure.sample_size(rows[-1]),
            "values": [{"value": row[measure.metric], "low": row.get(low), "high": row.get(high)} for row in rows],
        }
    return None


def config_of(run: RunDirectory) -> dict[str, Any]:
    try:
        config = yaml.safe_load(run.config_yaml())
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"its {layout.CONFIG} is not valid YAML: {said(error)}") from error
    if not isinstance(config, dict):
        raise UserError(f"its {layout.CONFIG} is no mapping of keys to values")
    return config


def _results(run: RunDirectory, problems: list[str]) -> dict[str, Any] | None:
    try:
        return run.results()
    except RunFailed as error:
        problems.append(said(error))
        return None


def _result(progress: Progress, results: Mapping[str, Any] | None) -> str:
    if results and isinstance(results.get("rows"), int):
        return f"{results['rows']:,} rows"
    return main_result(progress.evaluated, results)


def said(error: BaseException) -> str:
    """What an error says, in one line; of an unexpected one also its kind."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, UserError | RunFailed) else f"{type(error).__name__}: {text}"
