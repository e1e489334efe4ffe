"""report.html, a self-contained file, from a run directory, finished or not."""

import base64
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from whet.errors import RunFailed, UserError
from whet.report.formatting import duration, number, percent, render
from whet.report.run.charts import chart
from whet.report.run.health import HealthFinding, findings
from whet.report.run.training_curves import panels, pass_at_metrics, training_curves
from whet.runs.directory import RunDirectory
from whet.runs.logs import reason, write_atomic
from whet.runs.recorded_inputs import Inputs

Row = Mapping[str, Any]

ACCURACY = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
LOSS = ("eval/loss",)
MEASURES = {"held-out accuracy": (ACCURACY, "{:.1%}"), "held-out loss": (LOSS, "{:.4f}")}  # metrics, and their format
CHANGED, SAME = 40, 20  # examples shown: those that became right or wrong, and others
GROUPS, ROLLOUTS = 2, 8  # groups shown, and rollouts of each
HEAT = 6  # shades; the last is a log-prob of -3 (5 %) or less
COLDEST = -3.0
LABELS = {"eval/length": "Answer length", "eval/truncated": "Truncated", "eval/loss": "Held-out loss"}


def write_report(run_path: Path) -> Path:
    """Writes training_curves.png and report.html into a run directory; returns the path of the report."""
    run = RunDirectory.open(run_path, is_writer=False)
    metrics, results = run.metrics(), run.results()
    drawn = panels(metrics, run.timings())
    title = str(results["recipe"]) if results else re.sub(r"^\d{8}-\d{6}-", "", run.path.name)
    facts, sampled = _facts(run, results, metrics), run.rollout_steps()
    picture = training_curves(drawn, title=title, subtitle="   ".join(facts))
    script = Markup(render("page.js"))  # noqa: S704 - our own, so it is not escaped
    page = render(
        "run.html",
        title=title,
        facts=facts,
        # Content security policy: no network, and no script but ours, whatever a completion contains.
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        script=script,
        headline=_headline(metrics, results),
        findings=run_health(run),
        charts=[chart(panel) for panel in drawn],
        changes=_changes(run),
        groups=_rollout_groups(run.rollouts(sampled[-1])) if sampled else [],
        rollout_step=sampled[-1] if sampled else None,
        config=run.config_yaml().strip(),
        setup=[(key.capitalize(), results[key]) for key in ("machine", "versions") if results and results.get(key)],
        directory=run.path.name,
    )
    try:
        write_atomic(run.curves_path, picture)
        write_atomic(run.report_path, page.encode())
    except OSError as error:
        raise RunFailed(f"cannot write the report of {run_path}: {reason(error)}") from error
    return run.report_path


def evaluations(metrics: Sequence[Row], results: Row | None) -> dict[str, list[Row]]:
    """Each of `MEASURES` that was evaluated → its evaluations before and after training.

    From the final results or else from the metrics so far; only the last if the evaluation before training is lost.
    """
    found = {}
    for label, (names, _) in MEASURES.items():
        logged = [row for row in metrics if _has(row, names)]
        ends = [logged[0], logged[-1]] if len(logged) > 1 and logged[0].get("step", 0) == 0 else logged[-1:]
        if results is not None and _has(results.get("after"), names):
            ends = [row for row in (results.get("before"), results["after"]) if row is not None and _has(row, names)]
        if ends:
            found[label] = ends
    return found


def main_result(metrics: Sequence[Row], results: Row | None) -> str:
    """The first of `MEASURES` that was evaluated, before and after training, in words; empty if none was."""
    for label, rows in evaluations(metrics, results).items():
        names, form = MEASURES[label]
        return f"{label} {' → '.join(form.format(row[names[0]]) for row in rows)}"
    return ""


def run_health(run: RunDirectory) -> list[HealthFinding]:
    """Findings on the metrics of a run, after warnings about input files that changed and run files that were lost."""
    changed = (run.inputs() or Inputs()).accepted_sentences
    lost = [f"lost: {sentence}" for sentence in (run.results() or {}).get("lost", ())]
    return [*(HealthFinding("warning", sentence) for sentence in (*changed, *lost)), *findings(run.metrics())]


def _facts(run: RunDirectory, results: Row | None, metrics: Sequence[Row]) -> list[str]:
    try:
        config = yaml.safe_load(run.config_yaml())
    except yaml.YAMLError as error:
        raise UserError(f"{run.path}: its config is not valid YAML ({reason(error)}); put it back") from error
    if not isinstance(config, dict):
        raise UserError(f"{run.path}: its config is no mapping of keys to values; put it back")
    done = max((row["step"] for row in metrics), default=0)
    if results is None:
        steps = f"{done:,} of {config['steps']:,} steps" if "steps" in config else f"{done:,} steps"
        return [run.path.name, steps, "not finished"]
    time = duration(results["seconds"])
    return [run.path.name, f"{results['loop']} loop", f"{results['steps']:,} steps", f"seed {results['seed']}", time]


def _headline(metrics: Sequence[Row], results: Row | None) -> dict[str, Any]:
    """The main result: before and after, with intervals and details."""
    for label, rows in evaluations(metrics, results).items():
        named = dict(zip(("before", "after")[-len(rows) :], rows, strict=True))
        values = _accuracies(named) if MEASURES[label][0] is ACCURACY else _losses(named)
        return {"label": label.capitalize(), "details": _details(rows, results), **values}
    return {"label": "Held-out result", "values": [], "spans": [], "note": "No evaluation yet.", "details": []}


def _accuracies(rows: Mapping[str, Row]) -> dict[str, Any]:
    intervals = [f"{100 * row[ACCURACY[1]]:.1f} to {100 * row[ACCURACY[2]]:.1f} %" for row in rows.values()]
    return {
        "values": [percent(row[ACCURACY[0]]) for row in rows.values()],
        "spans": [(name, row[ACCURACY[1]], row[ACCURACY[2]], row[ACCURACY[0]]) for name, row in rows.items()],
        "note": f"95 % interval{'s' if len(rows) > 1 else ''}: {' and '.join(intervals)}",
    }


def _losses(rows: Mapping[str, Row]) -> dict[str, Any]:
    values = [number(row["eval/loss"]) for row in rows.values()]
    return {"values": values, "spans": [], "note": "nats per token, lower is better"}


def _has(row: Row | None, names: Sequence[str]) -> bool:
    return row is not None and all(row.get(name) is not None for name in names)


def _details(rows: Sequence[Row], results: Row | None) -> list[tuple[str, str]]:
    """Best model, pass@k, length, truncation and loss, before and after."""
    shown: dict[str, Callable[[float], str]] = dict.fromkeys(pass_at_metrics(rows[-1:]), percent)
    shown |= {"eval/length": lambda value: f"{number(value)} tokens", "eval/truncated": percent}
    if _has(rows[-1], ACCURACY):  # else the loss is the headline
        shown["eval/loss"] = number
    details = []
    best = results.get("best") if results else None
    if best:
        value = best.get("accuracy")
        details.append(("Best model", f"step {best['step']:,}" + (f", {percent(value)}" if value is not None else "")))
    for name, show in shown.items():
        if rows[-1].get(name) is not None:
            values = [show(row[name]) for row in rows if row.get(name) is not None]
            details.append((LABELS.get(name, name.removeprefix("eval/")), " → ".join(values)))
    return details


def _changes(run: RunDirectory) -> dict[str, Any] | None:
    """Greedy answers of the first and last evaluation to the same examples; None without two evaluations."""
    steps = run.answer_steps()
    if len(steps) < 2:
        return None
    first, last = ([row for row in run.answers(steps[end]) if row["sample"] == 0] for end in (0, -1))
    before = {row["id"]: row for row in first}
    pairs = [(before[row["id"]], row) for row in last if row["id"] in before]
    changed = [pair for pair in pairs if pair[0]["correct"] != pair[1]["correct"]]
    same = [pair for pair in pairs if pair[0]["correct"] == pair[1]["correct"]]
    shown = {pair[1]["id"] for pair in changed[:CHANGED] + same[:SAME]}
    learned = sum(after["correct"] for _, after in changed)
    count = f"{len(shown)} of {len(pairs)}" if len(shown) < len(pairs) else f"{len(pairs)}"
    moved = f"{learned} became right, {len(changed) - learned} became wrong"
    return {
        "lead": f"{count} held-out examples, answered greedily. {moved}.",
        "pairs": [pair for pair in pairs if pair[1]["id"] in shown],
        "steps": (steps[0], steps[-1]),
    }


def _rollout_groups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A few groups of one step, every token shaded by its log-prob."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row["id"])]
    # Groups with different rewards first; sorted() is stable.
    groups = sorted(groups, key=lambda group: len({row["reward"] for row in group}) == 1)[:GROUPS]
    found = []
    for group in groups:
        mean = number(sum(row["reward"] for row in group) / len(group))
        more = f", {ROLLOUTS} shown" if len(group) > ROLLOUTS else ""
        parts = list(dict.fromkeys(name for row in group for name in row["parts"]))
        shown = [_rollout(row) for row in group[:ROLLOUTS]]
        found.append({"about": f"{len(group)} rollouts, mean reward {mean}{more}", "parts": parts, "rows": shown})
    return found


def _rollout(row: Row) -> dict[str, Any]:
    chosen = zip(row["tokens"], row["mask"], row["logprobs"], strict=True)
    shades = [
        {"id": token, "heat": round(HEAT * min(1.0, max(0.0, logprob / COLDEST))), "label": _label(logprob)}
        for token, picked, logprob in chosen
        if picked
    ]
    return {**row, "shades": shades, "pieces": _pieces(row, len(shades))}


def _pieces(row: Row, count: int) -> Sequence[str] | None:
    """Text of each token as recorded, or by character if the counts match; "" is a special token."""
    if "pieces" in row:
        return list(row["pieces"])
    ended = 1 if row["finish"] == "stop" else 0
    return [*row["text"], *[""] * ended] if len(row["text"]) + ended == count else None


def _label(logprob: float) -> str:
    return f"log-prob {logprob:.3f} ({100 * math.exp(min(0.0, logprob)):.1f} %)".replace("-0.000", "0.000")
