"""A run: how it stands, its recipe, its curves, what the doctor says, its answers to held-out prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from reprlib import Repr
from typing import Any

from whet.doctor.examine import examine_run
from whet.doctor.plain_words import as_json
from whet.runs import layout
from whet.runs.series import columns, thin
from whet.runs.tail import read_tail
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources
from whet.ui.answers.standings import UNREADABLE, config_of

KEYS = 4000  # of a recipe; one that refers to itself again and again could have any number
BUCKETS = 500  # of a curve in one answer: at most two points each
LOGS = {"metrics": layout.METRICS, "timings": layout.TIMINGS}
LONGEST = 20_000  # characters of an answer that is shown
SHORT = Repr()  # of a list in a recipe
SHORT.maxlist = SHORT.maxdict = 30
SHORT.maxlevel, SHORT.maxstring = 3, 200
FILES = {"report": layout.REPORT, "analysis": layout.ANALYSIS_PICTURE}


def overview(sources: Sources, query: Query) -> dict[str, Any]:
    """Everything but curves, rollouts and answers."""
    run = sources.library.run(query.text("run"))
    about = sources.standings.of(run)
    text, keys, results = "", {}, None
    try:
        text = run.config_yaml()
        keys = dict(_flat(config_of(run)))
        results = run.results()
    except UNREADABLE as error:
        if str(error) not in about["problems"]:
            about["problems"].append(str(error))
    return {
        "name": sources.library.name(run.path),
        "path": str(run.path),
        "standing": about,
        "config": text,
        "keys": keys,
        "setup": {name: results[name] for name in ("machine", "versions") if results and name in results},
        "seconds": results.get("seconds") if results else None,
        "files": {name: file for name, file in FILES.items() if (run.path / file).is_file()},
        "rollout_steps": _steps(run.rollout_steps),
        "answer_steps": _steps(run.answer_steps),
    }


def curves(sources: Sources, query: Query) -> dict[str, Any]:
    """The points of every metric after a cursor: all of a short log, thinned of a long one."""
    run = sources.library.run(query.text("run"))
    tail = read_tail(run.path / LOGS[query.one_of("log", tuple(LOGS))], query.text("after", ""))
    found = {name: thin(curve, BUCKETS) for name, curve in columns(tail.rows).items()}
    return {
        "cursor": tail.cursor,
        "starts_again": tail.starts_again,
        "has_more": tail.has_more,
        "problems": tail.problems,
        "curves": {name: [curve.steps, curve.values] for name, curve in found.items()},
    }


def diagnosis(sources: Sources, query: Query) -> dict[str, Any]:
    """What the doctor says."""
    return as_json(examine_run(sources.library.run(query.text("run"))))


def held_out(sources: Sources, query: Query) -> dict[str, Any]:
    """The answers of one evaluation, the newest unless a step is given."""
    run = sources.library.run(query.text("run"))
    steps = run.answer_steps()
    if not steps:
        return {"steps": [], "step": None, "answers": []}
    step = query.number("step") if query.values.get("step") else steps[-1]
    return {"steps": steps, "step": step, "answers": [_answer(row) for row in run.answers(step)]}


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("id", "set", "prompt", "answer", "text", "correct", "reward", "tokens", "finish", "sample")
    told = {**row, "text": _conversation(row["turns"])} if isinstance(row.get("turns"), list) else row
    return {name: _cut(told[name]) for name in names if told.get(name) is not None}


def _conversation(turns: Sequence[Any]) -> str:
    """What was written and answered in turns, a line each."""
    given = [turn for turn in turns if isinstance(turn, dict)]
    return "\n".join(f"{turn.get('text', '')} → {turn.get('observation', '')}" for turn in given)


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]} … ({len(value) - LONGEST:,} more characters)"
    return value if isinstance(value, str | int | float | bool) else str(value)[:LONGEST]


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted key → value. Aliases of YAML can repeat a value any number of times, so the walk is bounded."""
    waiting: list[tuple[str, Any]] = [("", config)]
    for _ in range(KEYS):
        if not waiting:
            return
        key, value = waiting.pop()
        if isinstance(value, dict) and value:
            waiting += [(f"{key}.{name}".lstrip("."), one) for name, one in reversed(value.items())][:KEYS]
        else:
            yield key, SHORT.repr(value) if isinstance(value, list | dict) else _cut(value)


def _steps(read: Callable[[], list[int]]) -> list[int]:
    try:
        return read()
    except OSError:
        return []
