"""Checks on resuming: which state is lost, and which resumes are refused. Nothing is passed over in silence."""

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
from whet.runs.directory import Run
from whet.runs.recorded_inputs import Inputs

BEFORE, AFTER = "before", "after"
MEASURED_BY = ("task.", "data.", "model.", "reward.model")  # inputs that evaluations are made from
Measured = dict[str, dict[str, Any]]  # the evaluation before training, and the newest one


def how_to_resume(run: Path, *, accept_changes: bool = False) -> str:
    """The command, or the call where objects were passed, which only Python can give again."""
    if has_objects():
        return f"whet.train(resume={str(run)!r}, …{', accept_changes=True' if accept_changes else ''})"
    return f"whet train {run} --resume{' --accept-changes' if accept_changes else ''}"


def refuse_false_start(run: Run, checkpoint: Checkpoint | None, origin: str, config: TrainConfig) -> None:
    """Refuses to go on with other weights than the run began with, and to begin again where checkpoints are lost.

    Weights are no input that may change: all that was learned is a difference to them.
    """
    inputs = run.inputs()
    began = checkpoint.state["origin"] if checkpoint is not None else "" if inputs is None else inputs.origin
    if began and began != origin:
        model = config.model.path or "new"
        where, instead = (run.path, "") if checkpoint is None else (checkpoint.path, " from its model directory")
        raise UserError(
            f"{where}: the run began with other weights than model {model!r} has now; "
            f"put the original model back, or start a new run{instead}"
        )
    logged = max((row["step"] for row in run.metrics()), default=0)
    # A step is logged only when the checkpoint that was due before it stands.
    if checkpoint is None and (run.has_saved or logged > config.save.every_steps):
        reached = f" of {logged} steps" if logged else ""
        raise UserError(
            f"{run.path} has no checkpoint any more, and to begin again would overwrite its metrics{reached}: "
            "put its checkpoints back, or start a new run"
        )


def keep_origin(run: Run, origin: str) -> None:
    """Records which weights the run begins with, and the changed inputs that it goes on with."""
    before = run.inputs()
    now = replace(run.accepted_inputs or before or Inputs(), origin=origin)
    if now != before:
        run.write_inputs(now)


def measured_so_far(run: Run, checkpoint: Checkpoint) -> Measured:
    """The first and the newest evaluation up to a checkpoint; from the metrics where it is an older version's."""
    if "measured" in checkpoint.state:
        kept: Measured = checkpoint.state["measured"]
        return kept
    rows = [row for row in run.metrics() if "eval/accuracy" in row and row["step"] <= checkpoint.step]
    first = [row for row in rows if row["step"] == 0]
    return {name: _of_evaluation(row[-1]) for name, row in ((BEFORE, first), (AFTER, rows)) if row}


def watched(rows: Iterable[Mapping[str, float | None]], settings: EarlyStoppingConfig) -> list[float]:
    """What evaluations say of the metric that early stopping looks at, where it looks at one."""
    known = (row.get(settings.metric) for row in rows) if settings.patience else ()
    return [value for value in known if value is not None and math.isfinite(value)]


def watched_so_far(run: Run, checkpoint: Checkpoint, stop: EarlyStoppingConfig) -> list[float]:
    """What early stopping has seen up to a checkpoint; from the metrics where it is an older version's."""
    if "watched" in checkpoint.state:
        kept: list[float] = checkpoint.state["watched"]
        return kept
    return watched((row for row in run.metrics() if row["step"] <= checkpoint.step), stop)


def what_stands(
    run: Run, checkpoint: Checkpoint, measured: Measured, note: Callable[[str], None], *, processes: int = 1
) -> tuple[dict[str, float], list[str]]:
    """The best model so far, none where it does not stand any more, and what was lost; what is new is said."""
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
    stands, why = _best_stands(run, best, checkpoint.step) if best else (True, "")
    found += [why] if why else []
    lost = list(dict.fromkeys(found))
    for sentence in lost:
        if sentence not in known:
            note(f"lost: {sentence}")
    return best if stands else {}, lost


def _best_stands(run: Run, best: Mapping[str, Any], step: int) -> tuple[bool, str]:
    """Whether best_model still holds what a checkpoint calls the best, and, where something was lost, what."""
    damage = run.best_defect()
    saved = None if damage is not None else (run.best_info() or {}).get("step")
    if damage is None and isinstance(saved, int) and saved > step:
        return False, ""  # a better one was saved before the run was killed; the same steps find it again
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


def ends_of(measured: Measured, run: Run) -> Measured:
    """Both evaluations for the results; an unknown one before training is empty, never another one."""
    if AFTER not in measured:
        raise RunFailed(f"{run.path} holds no evaluation any more, so there is no result: put its metrics.jsonl back")
    return {BEFORE: measured.get(BEFORE, {}), AFTER: measured[AFTER]}


def remember(measured: Measured, step: int, metrics: Mapping[str, Any]) -> None:
    """Keeps an evaluation, as metrics.jsonl shows it."""
    measured[AFTER] = _of_evaluation(metrics)
    if step == 0:
        measured[BEFORE] = measured[AFTER]


def _of_evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sorted(row.items()) if name.startswith("eval/")}


def lost_lines(run: Run, step: int) -> list[str]:
    """What is missing of the steps up to this one, a sentence each."""
    found = []
    metrics, timings = missing_steps(run.metrics(), 0, step), missing_steps(run.timings(), 1, step)
    if metrics:
        found.append(f"{layout.METRICS} has no lines of {metrics}, so curves and report do without")
    if timings:
        found.append(f"{layout.TIMINGS} has no lines of {timings}, so the results count the seconds of the others")
    return found


def missing_steps(rows: Iterable[Mapping[str, Any]], first: int, last: int) -> str:
    """Which of the steps from `first` to `last` have no row, in words; nothing where each has one."""
    found = {row["step"] for row in rows}
    missing = [step for step in range(first, last + 1) if step not in found]
    if not missing:
        return ""
    if len(missing) == 1:
        return f"step {missing[0]}"
    if missing[-1] - missing[0] == len(missing) - 1:
        return f"steps {missing[0]} to {missing[-1]}"
    return f"{len(missing)} steps between {missing[0]} and {missing[-1]}"
