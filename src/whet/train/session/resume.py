"""Checks on resuming: refuses wrong weights and missing checkpoints, reports lost files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.config import EarlyStoppingConfig, TrainConfig
from whet.errors import RunFailed, UserError
from whet.imports import has_objects
from whet.runs import layout
from whet.runs.checkpoints import Checkpoint
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Inputs

BEFORE, AFTER = "before", "after"
MEASURED_BY = ("task.", "data.", "model.", "reward.model")  # inputs that evaluations are made from
Measured = dict[str, dict[str, Any]]  # the evaluation before training, and the newest one


def how_to_resume(run: Path, *, accept_changes: bool = False) -> str:
    """The command that resumes a run; the Python call if objects were passed, which only Python can pass again."""
    if has_objects():
        return f"whet.train(resume={str(run)!r}, …{', accept_changes=True' if accept_changes else ''})"
    return f"whet train {run} --resume{' --accept-changes' if accept_changes else ''}"


def refuse_false_start(run: RunDirectory, checkpoint: Checkpoint | None, origin: str, config: TrainConfig) -> None:
    """Refuses to resume from other start weights, or to start again where checkpoints are lost."""
    inputs = run.inputs()
    began = checkpoint.state["origin"] if checkpoint is not None else "" if inputs is None else inputs.origin
    if began and began != origin:
        model = config.model.path or "new"
        where, instead = (run.path, "") if checkpoint is None else (checkpoint.path, " from its model directory")
        raise UserError(
            f"{where}: the run began with other weights than model {model!r} has now; "
            f"restore the original model, or start a new run{instead}"
        )
    logged = max((row["step"] for row in run.metrics()), default=0)
    # A checkpoint that is due is written before the next step is logged.
    if checkpoint is None and (run.has_saved or logged > config.save.every_steps):
        reached = f" of {logged} steps" if logged else ""
        raise UserError(
            f"{run.path} has no checkpoint any more, and starting again would overwrite its metrics{reached}: "
            "restore its checkpoints, or start a new run"
        )


def keep_origin(run: RunDirectory, origin: str) -> None:
    """Records the fingerprint of the start weights, and accepted changes of inputs."""
    before = run.inputs()
    now = replace(run.accepted_inputs or before or Inputs(), origin=origin)
    if now != before:
        run.write_inputs(now)


def measured_so_far(run: RunDirectory, checkpoint: Checkpoint) -> Measured:
    """First and newest evaluation up to a checkpoint; from metrics.jsonl if an older version wrote the checkpoint."""
    if "measured" in checkpoint.state:
        kept: Measured = checkpoint.state["measured"]
        return kept
    rows = [row for row in run.metrics() if "eval/accuracy" in row and row["step"] <= checkpoint.step]
    first = [row for row in rows if row["step"] == 0]
    return {name: _of_evaluation(row[-1]) for name, row in ((BEFORE, first), (AFTER, rows)) if row}


def watched(rows: Iterable[Mapping[str, float | None]], settings: EarlyStoppingConfig) -> list[float]:
    """Values of `early_stopping.metric` in these rows; none without patience."""
    known = (row.get(settings.metric) for row in rows) if settings.patience else ()
    return [value for value in known if value is not None and math.isfinite(value)]


def watched_so_far(run: RunDirectory, checkpoint: Checkpoint, stop: EarlyStoppingConfig) -> list[float]:
    """Values of `early_stopping.metric` up to a checkpoint; from metrics.jsonl for an older version's."""
    if "watched" in checkpoint.state:
        kept: list[float] = checkpoint.state["watched"]
        return kept
    return watched((row for row in run.metrics() if row["step"] <= checkpoint.step), stop)


def intact_best(
    run: RunDirectory, checkpoint: Checkpoint, measured: Measured, note: Callable[[str], None], *, processes: int = 1
) -> tuple[dict[str, float], list[str]]:
    """The best model so far ({} if damaged) and what was lost, in sentences; notes what was not lost before."""
    best, known = checkpoint.state["best"], list(checkpoint.state.get("lost", ()))
    found = [*known, *lost_lines(run, checkpoint.step)]
    before = checkpoint.state.get("processes", processes)
    if before != processes:
        found.append(
            f"from step {checkpoint.step + 1} on in {processes} instead of {before} processes: "
            "sums round differently, so the run is not bit for bit what it would have been"
        )
    if BEFORE not in measured:
        found.append("the evaluation before training is in no file any more")
    intact, why = _best_is_intact(run, best, checkpoint.step) if best else (True, "")
    found += [why] if why else []
    lost = list(dict.fromkeys(found))
    for sentence in lost:
        if sentence not in known:
            note(f"lost: {sentence}")
    return best if intact else {}, lost


def _best_is_intact(run: RunDirectory, best: Mapping[str, Any], step: int) -> tuple[bool, str]:
    """Whether best_model still is the checkpoint's best; and a sentence if it was lost."""
    damage = run.best_defect()
    saved = None if damage is not None else (run.best_info() or {}).get("step")
    if damage is None and isinstance(saved, int) and saved > step:
        return False, ""  # saved after this checkpoint: the resumed steps reproduce it
    if damage is None and saved != best["step"]:
        damage = f"it is that of step {saved}"
    if damage is not None:
        return False, (
            f"the best model, of step {best['step']}, is damaged ({damage}): the best after it takes its place"
        )
    inputs = run.accepted_inputs or run.inputs() or Inputs()
    changed = sorted(key for key in inputs.changed_since(best["step"]) if key.startswith(MEASURED_BY))
    if changed:
        return False, (
            f"the best model, of step {best['step']}, was chosen before {', '.join(changed)} changed: "
            "the best after it takes its place"
        )
    return True, ""


def ends_of(measured: Measured, run: RunDirectory) -> Measured:
    """First and last evaluation for the results; a lost first one is empty."""
    if AFTER not in measured:
        raise RunFailed(f"{run.path} holds no evaluation any more, so there is no result: restore its metrics.jsonl")
    return {BEFORE: measured.get(BEFORE, {}), AFTER: measured[AFTER]}


def remember(measured: Measured, step: int, metrics: Mapping[str, Any]) -> None:
    """Keeps an evaluation as metrics.jsonl has it."""
    measured[AFTER] = _of_evaluation(metrics)
    if step == 0:
        measured[BEFORE] = measured[AFTER]


def _of_evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sorted(row.items()) if name.startswith("eval/")}


def lost_lines(run: RunDirectory, step: int) -> list[str]:
    """Gaps in metrics.jsonl and timings.jsonl up to a step, one sentence each."""
    found = []
    metrics, timings = missing_steps(run.metrics(), 0, step), missing_steps(run.timings(), 1, step)
    if metrics:
        found.append(f"{layout.METRICS} has no lines of {metrics}, so curves and report do without")
    if timings:
        found.append(f"{layout.TIMINGS} has no lines of {timings}, so the results count the seconds of the others")
    return found


def missing_steps(rows: Iterable[Mapping[str, Any]], first: int, last: int) -> str:
    """Steps from `first` to `last` without a row, in words; empty if there are none."""
    found = {row["step"] for row in rows}
    missing = [step for step in range(first, last + 1) if step not in found]
    if not missing:
        return ""
    if len(missing) == 1:
        return f"step {missing[0]}"
    if missing[-1] - missing[0] == len(missing) - 1:
        return f"steps {missing[0]} to {missing[-1]}"
    return f"{len(missing)} steps between {missing[0]} and {missing[-1]}"
