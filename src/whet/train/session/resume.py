"""Checks on resuming: refuses wrong weights and missing checkpoints, reports lost files."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.config.loops import Acting, Trained
from whet.errors import UserError
from whet.evaluate.measures import PARTS
from whet.imports import has_objects
from whet.runs import layout
from whet.runs.checkpoints import Checkpoint
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Inputs

BEFORE, AFTER = "before", "after"
MEASURED_BY = ("task.", "data.", "eval.", "model.", "reward.model")  # inputs that evaluations are made from
REWARD_FUNCTIONS = "reward.functions"  # what eval/reward and eval/parts/… are measured by, too
NOT_IDENTICAL = "the run is not bit for bit what it would have been"
Measured = dict[str, dict[str, Any]]  # the evaluation before training, and the newest one


def how_to_resume(run: Path, *, accept_changes: bool = False, overrides: Sequence[str] = ()) -> str:
    """The command that resumes a run; the Python call if objects were passed, which only Python can pass again."""
    if has_objects():
        more = "".join(f", {word}" for word in overrides)
        return f"whet.train(resume={str(run)!r}, …{', accept_changes=True' if accept_changes else ''}{more})"
    more = "".join(f" {shlex.quote(word)}" for word in overrides)
    return f"whet train {shlex.quote(str(run))} --resume{' --accept-changes' if accept_changes else ''}{more}"


def refuse_false_start(run: RunDirectory, checkpoint: Checkpoint | None, origin: str, config: Trained) -> None:
    """Refuses to resume from other start weights, or to start again where checkpoints are lost."""
    inputs = run.inputs()
    began = checkpoint.state["origin"] if checkpoint is not None else "" if inputs is None else inputs.origin
    if began and began != origin:
        model = "new" if isinstance(config, Acting) else config.model.path or "new"
        where, instead = (run.path, "") if checkpoint is None else (checkpoint.path, " from its model directory")
        raise UserError(
            f"{where}: the run began with other weights than model {model!r} has now; "
            f"restore the original model, or start a new run{instead}"
        )
    logged = max((row["step"] for row in run.metrics()), default=0)
    # A checkpoint that is due is written before the next step is logged.
    if checkpoint is None and (run.has_saved or logged > config.save.every_steps):
        reached = f" of {logged} steps" if logged else ""
        deletes_first = config.save.delete_old == "before"
        why = " (save.delete_old=before deletes the last one before the next is complete)" if deletes_first else ""
        model = f" with model={run.path}, whose best model is intact" if run.best_defect() is None else ""
        raise UserError(
            f"{run.path} has no checkpoint any more{why}, and starting again would overwrite its metrics{reached}: "
            f"restore its checkpoints, or start a new run{model}"
        )


def keep_origin(run: RunDirectory, origin: str) -> None:
    """Records the fingerprint of the start weights, and accepted changes of inputs."""
    before = run.inputs()
    now = replace(run.accepted_inputs or before or Inputs(), origin=origin)
    if now != before:
        run.write_inputs(now)


def intact_best(
    run: RunDirectory,
    checkpoint: Checkpoint,
    note: Callable[[str], None],
    *,
    processes: int,
    sharding: str = "none",
    is_evaluated: Callable[[int], bool],
    moments: str = "",
) -> tuple[dict[str, Any], list[str]]:
    """The best model so far ({} if damaged) and what was lost, in sentences; notes what was not lost before.

    `is_evaluated` says which steps the resumed run evaluates, `moments` what was lost of the optimizer's.
    """
    best, known, before = (checkpoint.state[name] for name in ("best", "lost", "processes"))
    pending = "pending" in checkpoint.state  # the step is logged once it is evaluated
    found = [*known, *_lost_lines(run, checkpoint.step - pending, is_evaluated), *filter(None, [moments])]
    if before != processes:
        found.append(
            f"from step {checkpoint.step + 1} on in {processes} instead of {before} processes: "
            f"sums round differently, so {NOT_IDENTICAL}"
        )
    held = checkpoint.state.get("sharding", "none")
    if before == processes and held != sharding:
        found.append(
            f"from step {checkpoint.step + 1} on with distributed.sharding {sharding} instead of {held}: sums may "
            f"round differently, so {NOT_IDENTICAL}"
        )
    intact, why = _best_is_intact(run, best, checkpoint.step, is_evaluated) if best else (True, "")
    found += [why] if why else []
    lost = list(dict.fromkeys(found))
    for sentence in lost:
        if sentence not in known:
            note(f"lost: {sentence}")
    return best if intact else {}, lost


def lost_moments(checkpoint: Checkpoint, *, is_rounded: bool) -> str:
    """A sentence if the optimizer's moments are not those that the run had (`save.optimizer`), else empty."""
    how = checkpoint.state.get("optimizer", "exact")
    if how != "none" and not is_rounded:
        return ""
    since = f"from step {checkpoint.step + 1} on with"
    if how == "none":
        return (
            f"{since} fresh moments of the optimizer: checkpoints have none (save.optimizer=none), so {NOT_IDENTICAL}"
        )
    return f"{since} moments of the optimizer as checkpoints round them (save.optimizer={how}), so {NOT_IDENTICAL}"


def changed_measures(run: RunDirectory, step: int, metrics: Iterable[str]) -> list[str]:
    """The inputs that changed after a step and that these metrics of evaluations are made from."""
    inputs = run.accepted_inputs or run.inputs() or Inputs()
    by_rewards = any("/reward" in metric or f"/{PARTS}/" in metric for metric in metrics)
    made_from = (*MEASURED_BY, *([REWARD_FUNCTIONS] if by_rewards else []))
    return sorted(key for key in inputs.changed_since(step) if key.startswith(made_from))


def _best_is_intact(
    run: RunDirectory, best: Mapping[str, Any], step: int, is_evaluated: Callable[[int], bool]
) -> tuple[bool, str]:
    """Whether best_model still is the checkpoint's best; and a sentence if it was lost."""
    damage = run.best_defect()
    saved = None if damage is not None else (run.best_info() or {}).get("step")
    if damage is None and isinstance(saved, int) and saved > step:
        if is_evaluated(saved):
            return False, ""  # saved after this checkpoint: the resumed steps reproduce it
        return False, (
            f"the best model, of step {saved}, was saved after the newest checkpoint, and that step is not evaluated "
            f"any more: the best after step {step} takes its place"
        )
    if damage is None and saved != best["step"]:
        damage = f"it is that of step {saved}"
    if damage is not None:
        return False, (
            f"the best model, of step {best['step']}, is damaged ({damage}): the best after it takes its place"
        )
    changed = changed_measures(run, best["step"], [str(best.get("metric", ""))])
    if changed:
        return False, (
            f"the best model, of step {best['step']}, was chosen before {', '.join(changed)} changed: "
            "the best after it takes its place"
        )
    return True, ""


def logged_metrics(run: RunDirectory, best: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of the best model's evaluation; of a line that was lost the one that chose it."""
    found = next((row for row in run.metrics() if row["step"] == best.get("step")), {})
    return {**found, **({best["metric"]: best["value"]} if "metric" in best else {})}


def remember(measured: Measured, step: int, metrics: Mapping[str, Any]) -> None:
    """Keeps an evaluation as metrics.jsonl has it."""
    measured[AFTER] = {name: value for name, value in sorted(metrics.items()) if name.startswith("eval/")}
    if step == 0:
        measured[BEFORE] = measured[AFTER]


def _lost_lines(run: RunDirectory, step: int, is_evaluated: Callable[[int], bool]) -> list[str]:
    """Gaps in metrics.jsonl and timings.jsonl up to a step, one sentence each."""
    first = 0 if is_evaluated(0) else 1  # the line of step 0 is the evaluation before training
    effects = {
        layout.METRICS: (run.metrics(), first, "curves and report do without"),
        layout.TIMINGS: (run.timings(), 1, "the results count the seconds of the others"),
    }
    found = []
    for name, (rows, first, effect) in effects.items():
        missing = sorted(set(range(first, step + 1)) - {row["step"] for row in rows})
        if missing:
            steps = ", ".join(map(str, missing[:5])) + (" …" if len(missing) > 5 else "")
            found.append(f"{name} lacks the lines of steps {steps}, so {effect}")
    return found
