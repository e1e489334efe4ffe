"""`examine_run`: a run directory, finished or not → its diagnosis, with the step at which each alarm first held."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from whet.doctor.diagnosis import diagnose, findings_of, ranked
from whet.doctor.findings import LEVELS, Diagnosis, Finding
from whet.doctor.history import History, Row
from whet.doctor.recorded_facts import recorded_facts
from whet.doctor.settings import Settings, kind_of
from whet.doctor.watch import Alarms, stride
from whet.errors import UserError
from whet.runs.directory import RunDirectory
from whet.runs.logs import reason
from whet.runs.rollout_files import RolloutFiles

READ = 8  # steps whose rollouts are read, spread over the run
READ_OF_ROWS = ("id", "prompt", "text", "tokens", "mask", "pieces", "finish", "reward", "parts", "advantage", "turns")


def examine_run(run: RunDirectory, until: int | None = None) -> Diagnosis:
    """What is wrong with a run, also if it is still training; with `until` as it was after that step.

    An alarm that held for a while and no longer does is kept, with the last step at which it did.
    """
    files = run.rollout_files()
    history = read_history(run, files)
    if until is not None:
        return over_time(history.until(until))
    return over_time(history, recorded_facts(run, damage=files.problems()))


def over_time(history: History, facts: Iterable[Finding] = ()) -> Diagnosis:
    """The diagnosis at the end, with the first step of each alarm, and the alarms that have passed.

    `facts` are findings that no rule makes.
    """
    last, lasted = diagnose(history), _lasted(history)
    findings = list(facts)
    for one in last.findings:
        since = lasted.get(one.rule, one).step
        findings.append(replace(one, step=history.done if since is None else since) if one.is_alarm else one)
    current = {finding.rule for finding in last.alarms}
    passed = [one for rule, one in lasted.items() if rule not in current]
    if history.is_over and (history.has_gained or history.is_solved):  # what passed did no harm that lasted
        passed = [replace(one, level="note") for one in passed]
    findings += passed
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return Diagnosis(findings=tuple(findings), causes=ranked(findings, history.settings), unjudged=last.unjudged)


def _lasted(history: History) -> dict[str, Finding]:
    """Rule → its newest alarm that lasted, as `Watch` would have told it."""
    alarms = Alarms()
    every = stride(history.steps or history.done)
    for step in sorted({int(row["step"]) for row in history.rows}):
        if step % every == 0 or step == history.done:
            alarms.look(step, findings_of(history.until(step)))
    return alarms.lasted


def read_history(run: RunDirectory, files: RolloutFiles | None = None) -> History:
    """The metrics of a run with its config, and some of its rollouts and answers."""
    rows, files = run.metrics(), files or run.rollout_files()
    config = config_of(run)
    names = {name for row in rows for name in row}
    settings = Settings(config=config, kind=kind_of(names), parameters=_parameters(run.best_model()))
    steps = settings.get("steps", 0)
    return History(
        rows=rows,
        settings=settings,
        steps=int(steps) if isinstance(steps, int) else 0,
        rollouts={step: _as_read(files.rows(step)) for step in _spread(files.steps(), READ)},
        answers={step: run.answers(step) for step in _spread(run.answer_steps(), 2)},
    )


def _as_read(rows: Iterable[Row]) -> list[Row]:
    """The rows without what is recorded of every token and no rule reads, which takes most of the memory."""
    return [{name: value for name, value in row.items() if name in READ_OF_ROWS} for row in rows]


def config_of(run: RunDirectory) -> dict[str, Any]:
    try:
        config = yaml.safe_load(run.config_yaml())
    except yaml.YAMLError as error:
        raise UserError(f"{run.path}: its config is not valid YAML ({reason(error)}); put it back") from error
    if not isinstance(config, dict):
        raise UserError(f"{run.path}: its config is no mapping of keys to values; put it back")
    return config


def _spread(steps: Sequence[int], count: int) -> Iterator[int]:
    """At most `count` of them, the first and the last included."""
    if len(steps) <= count:
        yield from steps
        return
    yield from sorted({steps[round(place * (len(steps) - 1) / (count - 1))] for place in range(count)})


def _parameters(model: Path | None) -> int:
    """About how many weights a saved model has, by its config.json; 0 if that cannot be told."""
    try:
        shape = {} if model is None else json.loads((model / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return 0
    named = (shape.get("hidden_size", shape.get("n_embd")), shape.get("num_hidden_layers", shape.get("n_layer")))
    width, layers, words = (one if isinstance(one, int) else 0 for one in (*named, shape.get("vocab_size")))
    return 12 * layers * width * width + words * width
