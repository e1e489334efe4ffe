"""The tables of docs/preferences.md, from the results of studies.

With one seed a table has 95 % intervals over prompts. With several it has the mean over seeds and the smallest and
largest of them; wins are pooled, and their interval is over prompts, of which no seed adds any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from studies.results import Seed, Study, Values
from whet.evaluate.statistics import Interval, wilson
from whet.number_format import duration
from whet.report.comparison.contest_figures import truth_label
from whet.report.comparison.contest_view import contest_view
from whet.report.comparison.entries import bracketed, fixed, mean_text, table
from whet.report.comparison.verdict import listed, measured_methods, task_key

NONE = "–"
CPUS = ("x86_64", "aarch64", "arm64", "AMD64")  # what a run calls its device where there is no GPU


def contest_lines(study: Study) -> Iterator[str]:
    """The table of methods, and under it how it was measured."""
    contests = study.contests
    yield from [table(contest_view(contests[0]))] if len(contests) == 1 else _rows(_over_seeds(contests))
    first = contests[0]
    samples = first["settings"]["samples"]
    start = first["start_name"]
    parts = [
        f"seed{'s' if len(contests) > 1 else ''} {listed([str(seed.seed) for seed in study.seeds])}",
        f"{first['prompts']} held-out prompts" + (f" × {samples} samples" if samples > 1 else ""),
    ]
    if len(contests) == 1:
        parts.append("95 % intervals over prompts")
    else:
        parts.append("means over seeds, in round brackets the smallest and the largest")
        parts.append("wins of all seeds together with a 95 % interval over prompts")
        parts.append(f"above {start}: in how many seeds the 95 % intervals of the {truth_label(first)} are apart")
    sentence = "; ".join([*parts, *_where(study.seeds)])
    yield from ("", f"{sentence[0].upper()}{sentence[1:]}.")


def rank_lines(study: Study) -> Iterator[str]:
    """How often the reward model and the judge, by their best weights, rank a held-out pair as the data does."""
    first = study.contests[0]
    seeds = [f"seed {seed.seed}" for seed in study.seeds]
    rows = [["held-out pairs that are ranked right", *seeds, "longer", "training"]]
    for what, name in (("the reward model", first["proxy_path"]), ("the judge", first["judge_path"])):
        runs = _ranking(study, name)
        if runs:
            longer = fmean(run["analysis"]["longer"]["mean"] for run in runs)
            seconds = fmean(run["seconds_of_steps"] for run in runs)
            shares = [_share(run["analysis"]["accuracy"]) for run in runs]
            rows.append([what, *shares, f"{100 * longer:.1f} %", duration(seconds)])
    if len(rows) > 1:
        yield from _rows(rows)
        yield from ("", "`longer` is what preferring the longer completion would reach.")


def _ranking(study: Study, name: str | None) -> list[Values]:
    """The runs of a stage that learned from pairs; none where a model came from elsewhere or learned otherwise."""
    place = f"stages/{(name or '').removeprefix('@')}"
    runs = [seed.runs[place] for seed in study.seeds if place in seed.runs]
    return runs if len(runs) == len(study.seeds) and all("pairs" in run.get("analysis", {}) for run in runs) else []


def reward_model_lines(study: Study) -> Iterator[str]:
    """The reward models by themselves, a row for each and every seed."""
    rows = [["model", "seed", "held out", "training and evaluation"]]
    names = dict.fromkeys(name for seed in study.seeds for name in seed.runs)
    for name in names:
        entries = {seed.seed: seed.runs[name] for seed in study.seeds if name in seed.runs}
        for seed, entry in entries.items():
            rows.append([name, str(seed), _held_out(entry["analysis"]), f"{_seconds([entry]) / 60:.1f} min"])
    yield from _rows(rows)
    where = _where(study.seeds, with_time=False)
    yield from ("", f"{'; '.join(where)}.") if where else ()


def _over_seeds(contests: Sequence[Values]) -> list[list[str]]:
    """The start model first, then the methods, the highest mean first."""
    first = contests[0]
    truth, start, task = first["truth"], first["start_name"], task_key(first)
    gain = f"{task}_gain"
    columns = [(truth_label(first), truth)] if truth else []
    columns += [("gain", gain)] if task else []
    columns += [("proxy reward", "proxy")] if first["start"]["proxy"] is not None else []
    has_wins = first["start"]["wins"] is not None
    names = [name for name, _ in columns] + ["wins, by the judge"] * has_wins
    rows = [["method", *names, f"KL to {start}", "tokens", f"above {start}"]]
    own = [contest["start"] for contest in contests]
    cells = [NONE if key == gain else _spread(own, key) for _, key in columns]
    rows.append([start, *cells, *[NONE] * has_wins, NONE, _spread(own, "length"), NONE])
    found = _summaries(contests)
    for method in sorted(found, key=lambda name: -_mean(found[name], truth)):
        own = [summary for summary, _ in found[method]]
        cells = [_spread(own, key, sign=key == gain) for _, key in columns]
        cells += [_pooled(own, first["prompts"])] if has_wins else []
        rows.append([method, *cells, _spread(own, "kl"), _spread(own, "length"), _above(found[method], truth)])
    return rows


def _summaries(contests: Sequence[Values]) -> dict[str, list[tuple[Values, Values]]]:
    """Method → its numbers with each seed that finished, beside those of the start model of that seed."""
    found: dict[str, list[tuple[Values, Values]]] = {}
    for contest in contests:
        for method in measured_methods(contest):
            own = [seed["summary"] for seed in method["seeds"] if seed["summary"] is not None]
            found.setdefault(method["method"], []).extend((summary, contest["start"]) for summary in own)
    return found


def _mean(pairs: Sequence[tuple[Values, Values]], truth: str | None) -> float:
    return fmean(summary[truth]["mean"] for summary, _ in pairs) if truth else 0.0


def _spread(summaries: Sequence[Values], key: str, *, sign: bool = False) -> str:
    """Mean over seeds (smallest … largest), to the digits that the interval of one seed leaves meaningful."""
    means = [summary[key]["mean"] for summary in summaries]
    digits = summaries[0][key]
    mean = fmean(means)
    ends = "" if len(means) == 1 else f" ({fixed(min(means), digits)} … {fixed(max(means), digits)})"
    return ("+" if sign and mean > 0 else "") + fixed(mean, digits) + ends


def pooled_rate(summaries: Sequence[Values], prompts: int) -> Interval:
    """The share of comparisons won in all seeds together.

    Every seed answered the same prompts, so a prompt's outcomes of all seeds become one mean, as its samples do:
    the interval has as many trials as there are prompts.
    """
    rate = fmean(summary["wins"]["rate"]["mean"] for summary in summaries)
    return wilson(rate * prompts, prompts)


def _pooled(summaries: Sequence[Values], prompts: int) -> str:
    rate = pooled_rate(summaries, prompts)
    interval = {"mean": rate.mean, "low": rate.low, "high": rate.high}
    return f"{mean_text(interval, scale=100)} % {bracketed(interval, scale=100)}"


def _above(pairs: Sequence[tuple[Values, Values]], truth: str | None) -> str:
    if truth is None:
        return NONE
    apart = sum(own[truth]["low"] > start[truth]["high"] for own, start in pairs)
    return f"{apart} of {len(pairs)} seeds"


def _decimals(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _share(interval: Values | None) -> str:
    if interval is None:
        return NONE
    return f"{100 * interval['mean']:.1f} % [{100 * interval['low']:.1f} … {100 * interval['high']:.1f}]"


def _preference(analysis: Values) -> str:
    longer = 100 * analysis["longer"]["mean"]
    return f"{_share(analysis['accuracy'])} of {analysis['pairs']:,} pairs (longer: {longer:.1f} %)"


def _outcome(analysis: Values) -> str:
    chance, ceiling = (f"{100 * analysis[key]:.1f} %" for key in ("chance", "ceiling"))
    each = analysis["solutions"] / analysis["problems"]
    return (
        f"of {analysis['problems']:,} problems the best of {each:g} is right: {_share(analysis['top'])} "
        f"(chance {chance}, ceiling {ceiling}); area {_decimals(analysis['area'])}"
    )


def _process(analysis: Values) -> str:
    return (
        f"{analysis['steps']:,} steps {_share(analysis['accuracy'])}; area {_decimals(analysis['area'])}; "
        f"first error {_share(analysis['first_error'])}; F1 {_decimals(analysis['f1'])}"
    )


def _held_out(analysis: Values) -> str:
    """By what the model was measured on: pairs, solutions of problems, or steps of traces."""
    if "pairs" in analysis:
        return _preference(analysis)
    return _outcome(analysis) if "problems" in analysis else _process(analysis)


def _where(seeds: Sequence[Seed], *, with_time: bool = True) -> list[str]:
    """The machines, and the time of a seed, as far as the runs say."""
    entries = [entry for seed in seeds for entry in seed.runs.values()]
    machines = dict.fromkeys(_machine(entry) for entry in entries if "machine" in entry)
    times = sorted(_seconds(seed.runs.values()) for seed in seeds)
    shown = dict.fromkeys(duration(seconds) for seconds in (times[0], times[-1]))
    return [*machines, *([f"{' to '.join(shown)} of steps and evaluations"] if with_time else [])]


def _machine(entry: Values) -> str:
    device, threads = entry["machine"]["device"], entry["machine"]["threads"]
    counted = f", {threads} thread{'s' if threads > 1 else ''}" if device in CPUS else ""
    return f"{device}{counted}, torch {entry['versions']['torch']}"


def _seconds(entries: Iterable[Mapping[str, Any]]) -> float:
    return math.fsum(entry["seconds_of_steps"] + entry["seconds_of_evaluations"] for entry in entries)


def _rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table with columns of equal width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = " | ".join("-" * width for width in widths)
    return [f"| {line} |" for line in (lines[0], rule, *lines[1:])]
