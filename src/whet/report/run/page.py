"""report.html, a self-contained file, from a run directory, finished or not."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from whet.doctor.examine import config_of, examine_run, read_history
from whet.doctor.findings import Finding
from whet.doctor.plain_words import SHOWN, since, told, written
from whet.doctor.rules.evaluation import verdict
from whet.errors import RunFailed
from whet.evaluate.measures import Measure, evaluations, measure_of
from whet.number_format import duration, number, percent
from whet.report.formatting import render
from whet.report.redteam.page import section
from whet.report.run.charts import chart
from whet.report.run.training_curves import panels, pass_at_metrics, training_curves
from whet.runs.directory import RunDirectory
from whet.runs.layout import red_team_path, video_path
from whet.runs.logs import reason, write_atomic
from whet.runs.rollout_files import RolloutFiles

Row = Mapping[str, Any]

CHANGED, SAME = 40, 20  # examples shown: those that became right or wrong, and others
GROUPS, ROLLOUTS = 2, 8  # groups shown, and rollouts of each
HEAT = 6  # shades; the last is a log-prob of -3 (5 %) or less
COLDEST = -3.0
LABELS = {"eval/length": "Answer length", "eval/truncated": "Truncated"}


def write_report(run_path: Path) -> Path:
    """Writes training_curves.png and report.html into a run directory; returns the path of the report."""
    run = RunDirectory.open(run_path, is_writer=False)
    metrics, results = run.metrics(), run.results()
    drawn = panels(metrics, run.timings())
    title = str(results["recipe"]) if results else re.sub(r"^\d{8}-\d{6}-", "", run.path.name)
    facts, files = [*_facts(run, results, metrics), *_pace(run.timings())], run.rollout_files()
    sampled = files.steps()
    picture = training_curves(drawn, title=title, subtitle="   ".join(facts))
    script = Markup(render("page.js"))  # noqa: S704 - our own, so it is not escaped
    page = render(
        "run.html",
        title=title,
        facts=facts,
        # Content security policy: no network, and no script but ours, whatever a completion contains.
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        script=script,
        video=_video(run),
        headline=_headline(metrics, results),
        diagnosis=examine_run(run),
        causes_shown=SHOWN,
        since=since,
        told=told,
        written=written,
        attack=_attack(run),
        charts=[chart(panel) for panel in drawn],
        changes=_changes(run),
        groups=_rollout_groups(files, sampled[-1]) if sampled else [],
        rollout_step=sampled[-1] if sampled else None,
        has_turns=any("turns/mean" in row for row in metrics),
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


def _video(run: RunDirectory) -> str:
    """The animation of a policy of actions in base64; empty if there is none."""
    path = video_path(run.path)
    return base64.b64encode(path.read_bytes()).decode() if path.is_file() else ""


def _attack(run: RunDirectory) -> dict[str, Any] | None:
    """What `whet redteam` found in its model; None without it, or where its file is damaged."""
    try:
        found = json.loads(red_team_path(run.path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return section(found)


def outcome_lines(run: RunDirectory) -> list[str]:
    """What a finished run prints at its end: the measures before and after, the verdict, the best model, warnings."""
    metrics, results = run.metrics(), run.results() or {}
    found = evaluations(metrics, results)
    lines = [outcome_line(measure, rows) for measure, rows in found.items()]
    lines += _part_lines(metrics)
    concluded = verdict(read_history(run), (results.get("best") or {}).get("metric", ""))
    lines += [f"{'warning' if one.is_alarm else 'verdict'}: {one.sentence}" for one in concluded]
    best = results.get("best") or {}
    if best:
        by = f", {best['metric']} {measure_of(best['metric']).text(best['value'])}" if "metric" in best else ""
        lines.append(f"best model: {run.best_model()} (step {best['step']}{by}{_rounded_to(run)})")
    said = {one.sentence for one in concluded}
    return lines + [f"warning: {one.sentence}" for one in _alarms_left(run) if one.sentence not in said]


def outcome(run: RunDirectory) -> dict[str, Any]:
    """A finished run for scripts: its results, where its files are, the verdict and the warnings."""
    results = run.results() or {}
    concluded = verdict(read_history(run), (results.get("best") or {}).get("metric", ""))
    warnings = [one.sentence for one in _alarms_left(run)]
    best = run.best_model()
    return {
        "run": str(run.path.absolute()),
        **results,
        "best_model": None if best is None else str(best.absolute()),
        "report": str(run.report_path.absolute()) if run.report_path.exists() else None,
        "verdict": [one.sentence for one in concluded],
        "warnings": warnings,
    }


def _part_lines(metrics: Sequence[Row]) -> list[str]:
    """The parts of the reward on held-out prompts before and after training, if there are several."""
    rows = [row for row in metrics if "eval/reward" in row]
    names = [name for name in (rows[-1] if rows else {}) if name.startswith("eval/parts/")]
    names = [name for name in names if not name.endswith(("_low", "_high"))]
    if len(names) < 2:
        return []
    ends = rows[:1] + rows[-1:] if len(rows) > 1 else rows
    values = {name: " → ".join(f"{row[name]:.4g}" for row in ends if row.get(name) is not None) for name in names}
    shown = ", ".join(f"{name.removeprefix('eval/parts/')} {value}" for name, value in values.items())
    return [f"held-out reward by parts: {shown}"]


def _rounded_to(run: RunDirectory) -> str:
    """The dtype of the best model if its weights were rounded, which may change its metrics a little; else empty."""
    best = run.best_model()
    try:
        dtype = "float32" if best is None else json.loads((best / "config.json").read_text("utf-8")).get("dtype")
    except (OSError, ValueError):
        return ""
    return f"; saved in {dtype}, model.dtype" if dtype in ("bfloat16", "float16") else ""


def outcome_line(measure: Measure, rows: Sequence[Row]) -> str:
    """A measure before and after, what its intervals are, and on how many prompts or rows it was measured."""
    about = ["95 % intervals"] if measure.interval[0] in rows[-1] else []
    about += filter(None, [measure.sample_size(rows[-1])])
    values = " → ".join(measure.with_interval(row) for row in rows)
    return f"{measure.label}: {values}" + (f" ({', '.join(about)})" if about else "")


def _alarms_left(run: RunDirectory) -> list[Finding]:
    """The alarms that hold at the end of a run."""
    return [one for one in examine_run(run).findings if one.is_alarm and one.until is None]


def _facts(run: RunDirectory, results: Row | None, metrics: Sequence[Row]) -> list[str]:
    config = config_of(run)
    done = max((row["step"] for row in metrics), default=0)
    if results is None:
        steps = f"{done:,} of {config['steps']:,} steps" if "steps" in config else f"{done:,} steps"
        return [run.path.name, steps, "not finished"]
    time = duration(results["seconds"])
    steps = f"{results['steps']:,} step{'s' * (results['steps'] != 1)}"
    return [run.path.name, f"{results['loop']} loop", steps, f"seed {results['seed']}", time]


def _pace(timings: Sequence[Row]) -> list[str]:
    """Seconds of a step on average, and what of them the trainer waited for rollouts that workers sample."""
    steps = [row["seconds/step"] for row in timings if row.get("seconds/step") is not None]
    if not steps:
        return []
    waits = [row["seconds/waiting"] for row in timings if row.get("seconds/waiting") is not None]
    waited = f", {number(sum(waits) / len(steps))} s of it waiting for rollouts" if waits else ""
    return [f"{number(sum(steps) / len(steps))} s a step{waited}"]


def _headline(metrics: Sequence[Row], results: Row | None) -> dict[str, Any]:
    """The main result: before and after, with intervals and details."""
    measured = evaluations(metrics, results)
    for measure, rows in measured.items():
        named = dict(zip(("before", "after")[-len(rows) :], rows, strict=True))
        details = _details(rows, results, others=list(measured)[1:])
        return {"label": _sentence_case(measure.label), "details": details, **_shown(measure, named)}
    return {"label": "Held-out result", "values": [], "spans": [], "note": "No evaluation yet.", "details": []}


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(measure: Measure, rows: Mapping[str, Row]) -> dict[str, Any]:
    """Values before and after; shares with their intervals, which are drawn."""
    low, high = measure.interval
    show = percent if measure.is_share else number
    intervals = [
        f"{100 * row[low]:.1f} to {100 * row[high]:.1f} %"
        if measure.is_share
        else f"{number(row[low])} to {number(row[high])}"
        for row in rows.values()
        if row.get(low) is not None and row.get(high) is not None
    ]
    size = measure.sample_size(list(rows.values())[-1])
    direction = "" if measure.is_higher_better else "lower is better"
    note = f"95 % interval{'s' if len(intervals) > 1 else ''}: {' and '.join(intervals)}" if intervals else ""
    return {
        "values": [show(row[measure.metric]) for row in rows.values()],
        "spans": [
            (name, row[low], row[high], row[measure.metric])
            for name, row in rows.items()
            if measure.is_share and row.get(low) is not None
        ],
        "note": ", ".join(part for part in (note, size, direction) if part),
    }


def _details(rows: Sequence[Row], results: Row | None, *, others: Sequence[Measure]) -> list[tuple[str, str]]:
    """Best model, the other measures, pass@k, length and truncation, before and after."""
    shown: dict[str, Callable[[float], str]] = {one.metric: percent if one.is_share else number for one in others}
    shown |= dict.fromkeys(pass_at_metrics(rows[-1:]), percent)
    shown |= {"eval/length": lambda value: f"{number(value)} tokens", "eval/truncated": percent}
    labels = LABELS | {one.metric: _sentence_case(one.label) for one in others}
    details = []
    best = results.get("best") if results else None
    if best:
        by = f", {measure_of(best['metric']).text(best['value'])}" if "metric" in best else ""
        details.append(("Best model", f"step {best['step']:,}{by}"))
    for name, show in shown.items():
        if rows[-1].get(name) is not None:
            values = [show(row[name]) for row in rows if row.get(name) is not None]
            details.append((labels.get(name, name.removeprefix("eval/")), " → ".join(values)))
    return details


def _changes(run: RunDirectory) -> dict[str, Any] | None:
    """Greedy answers of the first and last evaluation to the same examples; None without two evaluations."""
    steps = run.answer_steps()
    if len(steps) < 2:
        return None
    first, last = ([row for row in run.answers(steps[end]) if row["sample"] == 0] for end in (0, -1))
    before = {_named(row): row for row in first}
    pairs = [(before[_named(row)], row) for row in last if _named(row) in before]
    changed = [pair for pair in pairs if _judged(pair[0]) != _judged(pair[1])]
    same = [pair for pair in pairs if _judged(pair[0]) == _judged(pair[1])]
    shown = [pair for pair in pairs if pair in changed[:CHANGED] or pair in same[:SAME]]
    count = f"{len(shown)} of {len(pairs)}" if len(shown) < len(pairs) else f"{len(pairs)}"
    return {
        "lead": f"{count} held-out examples, answered greedily.{_moved(pairs)}",
        "pairs": [(_told(before), _told(after), _judged(before) != _judged(after)) for before, after in shown],
        "steps": (steps[0], steps[-1]),
    }


def _judged(answer: Row) -> Any:
    """Whether an answer is correct or, without a reference answer, its reward; None if nothing judged it."""
    return answer.get("reward") if answer["correct"] is None else answer["correct"]


def _told(answer: Row) -> dict[str, Any]:
    """An answer with its reward and the parts of it, in words."""
    if "reward" not in answer:
        return dict(answer)
    parts = [f"{name} {number(value)}" for name, value in answer["parts"].items()]
    return {**answer, "told": ", ".join([f"reward {number(answer['reward'])}", *parts])}


def _moved(pairs: Sequence[tuple[Row, Row]]) -> str:
    """How many answers became right and wrong, and how many rewards rose and fell."""
    text = ""
    if any(after["correct"] is not None for _, after in pairs):
        moves = [bool(after["correct"]) for before, after in pairs if before["correct"] != after["correct"]]
        text += f" {sum(moves)} became right, {len(moves) - sum(moves)} became wrong."
    rewards = [
        (before["reward"], after["reward"]) for before, after in pairs if "reward" in before and "reward" in after
    ]
    if rewards:
        rose, fell = (sum(sign * (after - before) > 0 for before, after in rewards) for sign in (1, -1))
        text += f" The reward of {rose} rose, that of {fell} fell."
    return text


def _named(answer: Row) -> tuple[str, str]:
    """The evaluation set and the id of an example."""
    return answer.get("set", ""), answer["id"]


def _rollout_groups(files: RolloutFiles, step: int) -> list[dict[str, Any]]:
    """A few groups of one step, every token shaded by its log-prob."""
    groups = [list(group) for _, group in groupby(files.summaries(step), key=lambda one: one.group)]
    # Groups with different rewards first; sorted() is stable.
    groups = sorted(groups, key=lambda group: len({one.reward for one in group}) == 1)[:GROUPS]
    found = []
    for group in groups:
        rewards = [one.reward for one in group if one.reward is not None]  # None: the reward failed on it
        mean = number(sum(rewards) / len(rewards)) if rewards else "none"
        more = f", {ROLLOUTS} shown" if len(group) > ROLLOUTS else ""
        parts = list(dict.fromkeys(name for one in group for name in one.parts))
        shown = []
        for one in group[:ROLLOUTS]:
            with suppress(RunFailed):  # damaged, as the diagnosis says
                shown.append(_rollout(files.row(step, one.group, one.number)))
        found.append({"about": f"{len(group)} rollouts, mean reward {mean}{more}", "parts": parts, "rows": shown})
    return found


def _rollout(row: Row) -> dict[str, Any]:
    chosen = zip(row["tokens"], row["mask"], row["logprobs"], strict=True)
    shades = [
        {"id": token, "heat": round(HEAT * min(1.0, max(0.0, logprob / COLDEST))), "label": _label(logprob)}
        for token, picked, logprob in chosen
        if picked
    ]
    turns = row.get("turns", ())
    ends = dict(zip(accumulate(turn["tokens"] for turn in turns), turns, strict=True))  # sampled tokens so far → turn
    return {**row, "shades": shades, "pieces": _pieces(row, len(shades)), "ends": ends}


def _pieces(row: Row, count: int) -> Sequence[str] | None:
    """Text of each token as recorded, or by character if the counts match; "" is a special token."""
    if "pieces" in row:
        return list(row["pieces"])
    ended = 1 if row["finish"] == "stop" else 0
    return [*row["text"], *[""] * ended] if len(row["text"]) + ended == count else None


def _label(logprob: float) -> str:
    return f"log-prob {logprob:.3f} ({100 * math.exp(min(0.0, logprob)):.1f} %)".replace("-0.000", "0.000")
