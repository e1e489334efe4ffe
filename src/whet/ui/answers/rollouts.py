"""The list of a run's rollouts, step by step from the newest, and searches in their texts.

An answer takes a fraction of a second, however large the run is; `next` is where the following one goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from whet.runs.rollout_files import RolloutFiles
from whet.runs.rollout_index import Summary
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources

SECONDS = 0.3  # after which an answer takes no further step
MATCHES = 2000  # of one search in one step
PROBLEMS = 20  # that are told


@dataclass
class Columns:
    """Summaries as one list for each field: a tenth of the size of rows."""

    lists: dict[str, list[Any]] = field(
        default_factory=lambda: (
            {name: [] for name in ("step", "group", "number", "prompt", "reward", "correct")}
            | {name: [] for name in ("length", "finish", "advantage", "kept")}
        )
    )
    parts: dict[str, list[float | None]] = field(default_factory=dict)
    names: dict[str, dict[str, int]] = field(default_factory=lambda: {"prompt": {}, "finish": {}})
    count: int = 0

    def add(self, one: Summary) -> None:
        values: dict[str, Any] = {"step": one.step, "group": one.group, "number": one.number, "reward": one.reward}
        values |= {"correct": one.correct, "length": one.length, "advantage": one.max_advantage, "kept": one.kept}
        for name, text in (("prompt", one.prompt_id), ("finish", one.finish)):
            values[name] = self.names[name].setdefault(text, len(self.names[name]))
        for name, value in values.items():
            self.lists[name].append(value)
        for name in one.parts:
            self.parts.setdefault(name, [None] * self.count)
        for name, given in self.parts.items():
            given.append(one.parts.get(name))
        self.count += 1

    def answer(self) -> dict[str, Any]:
        """`prompt` and `finish` are places in `prompts` and `finishes`."""
        named = {"prompts": list(self.names["prompt"]), "finishes": list(self.names["finish"])}
        return {**self.lists, **named, "parts": self.parts}


def listing(sources: Sources, query: Query) -> dict[str, Any]:
    """Rollouts of the newest steps before a step, of all steps if none is given."""
    files = sources.rollouts(sources.library.run(query.text("run")))
    columns = Columns()
    following = _by_step(files, query, lambda step: _add(columns, files.summaries(step)))
    return {**columns.answer(), "next": following, "problems": files.problems()[:PROBLEMS]}


def search(sources: Sources, query: Query) -> dict[str, Any]:
    """Places of the rollouts whose prompt or completion has a text."""
    files = sources.rollouts(sources.library.run(query.text("run")))
    text = query.text("text")
    places: list[list[int]] = []

    def look(step: int) -> None:
        found = files.search(text, step, limit=MATCHES)
        places.extend([one.step, one.group, one.number] for one in found)

    following = _by_step(files, query, look)
    return {"places": places, "next": following, "problems": files.problems()[:PROBLEMS]}


def history(sources: Sources, query: Query) -> dict[str, Any]:
    """The rollouts of one prompt over the steps."""
    files = sources.rollouts(sources.library.run(query.text("run")))
    columns = Columns()
    _add(columns, files.history(query.text("id")))
    return {**columns.answer(), "problems": files.problems()[:PROBLEMS]}


def _add(columns: Columns, found: Iterable[Summary]) -> None:
    for one in found:
        columns.add(one)


def _by_step(files: RolloutFiles, query: Query, read: Callable[[int], None]) -> int | None:
    """Calls `read` from the newest step on until time is up; returns the step before which to go on."""
    until = time.monotonic() + SECONDS
    before = query.number("before") if query.values.get("before") else None
    after = query.number("after") if query.values.get("after") else -1
    steps = [step for step in files.steps() if step > after and (before is None or step < before)]
    while steps:
        step = steps.pop()
        read(step)
        if time.monotonic() > until and steps:
            return step
    return None
