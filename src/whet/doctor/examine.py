"""`examine_run`: a run directory, finished or not → its diagnosis, with the step at which each alarm first held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from whet.doctor.diagnosis import diagnose, findings_of, ranked
from whet.doctor.findings import LEVELS, Diagnosis, Finding
from whet.doctor.history import History, Row
from whet.doctor.recorded_facts import recorded_facts
from whet.doctor.recorded_rows import rows_as_read
from whet.doctor.settings import Settings, kind_of
from whet.doctor.watch import Alarms, stride
from whet.errors import RunFailed, UserError
from whet.runs.directory import RunDirectory
from whet.runs.logs import read_json, reason
from whet.runs.rollout_files import RolloutFiles

READ = 8  # steps whose rollouts are read, spread over the run


def examine_run(run: RunDirectory, until: int | None = None) -> Diagnosis:
    """What is wrong with a run, also if it is still training; with `until` as it was after that step.

    An alarm that held for a while and no longer does is kept, with the last step at which it did.
    """
    files, damage = run.rollout_files(), dict[str, None]()
    history = read_history(run, files, damage)
    if until is not None:
        return over_time(history.until(until))
    return over_time(history, recorded_facts(run, history.settings, damage=(*files.problems(), *damage)))


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
    return replace(last, findings=tuple(findings), causes=ranked(findings, history.settings))


def _lasted(history: History) -> dict[str, Finding]:
    """Rule → its newest alarm that lasted, as `Watch` would have told it."""
    alarms = Alarms()
    every = stride(max(history.steps, history.done))
    for step in sorted({int(row["step"]) for row in history.rows}):
        if step % every == 0 or step == history.done:
            alarms.look(step, findings_of(history.until(step)))
    return alarms.lasted


def read_history(
    run: RunDirectory, files: RolloutFiles | None = None, damage: dict[str, None] | None = None
) -> History:
    """The metrics of a run with its config, and some of its rollouts and answers, whose faults go to `damage`."""
    rows, files = run.metrics(), files or run.rollout_files()
    damage = {} if damage is None else damage
    config = config_of(run)
    names = {name for row in rows for name in row}
    settings = Settings(config=config, kind=kind_of(names), parameters=_parameters(run.best_model()))
    return History(
        rows=rows,
        settings=settings,
        steps=int(settings.number("steps")),
        rollouts={
            step: rows_as_read(files.rows(step), f"rollouts of step {step}", damage)
            for step in _spread(files.steps(), READ)
        },
        answers={step: _answers(run, step, damage) for step in _spread(run.answer_steps(), 2)},
    )


def _answers(run: RunDirectory, step: int, damage: dict[str, None]) -> list[Row]:
    try:
        return [*run.answers(step)]
    except RunFailed as error:
        damage[str(error)] = None
        return []


def config_of(run: RunDirectory) -> dict[str, Any]:
    try:
        config = yaml.safe_load(run.config_yaml())
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: of dates and numbers
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
        shape = {} if model is None else read_json(model / "config.json")
    except RunFailed:
        return 0
    named = (shape.get("hidden_size", shape.get("n_embd")), shape.get("num_hidden_layers", shape.get("n_layer")))
    width, layers, words = (one if isinstance(one, int) else 0 for one in (*named, shape.get("vocab_size")))
    return 12 * layers * width * width + words * width
