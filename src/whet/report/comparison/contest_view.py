"""Table and notes of a pipeline's comparison."""

from whet.number_format import number, percent
from whet.report.comparison.entries import (
    Cell,
    ComparisonView,
    Entry,
    Values,
    bracketed,
    failed_runs,
    mean_text,
    method_entry,
)
from whet.report.comparison.verdict import TRUTHS, compare_with_start, task_key

AGAINST_START = frozenset({"gain", "wins", "pairwise", "kl"})  # columns that the start model has no value in


def contest_view(results: Values) -> ComparisonView:
    keys, count = _columns(results), len(results["methods"])
    start = {"method": results["start_name"], "summary": results["start"], "pairwise": None, "seeds": []}
    first = [Cell(main="–") if key in AGAINST_START else _cell(key, start, results) for key in keys]
    seeds = sorted({seed["seed"] for method in results["methods"] for seed in method["seeds"]})
    return ComparisonView(
        title=results["title"],
        subtitle="rewards are those that training saw",
        facts=[
            f"task {results['task']}",
            f"{count} method{'s' if count > 1 else ''}, all from {results['start_name']}",
            f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
            f"{results['prompts']} held-out prompts",
        ],
        verdict=compare_with_start(results),
        columns=list(keys.values()),
        entries=[
            Entry(name=results["start_name"], colour=None, cells=first),
            *(
                method_entry(results, method, [_cell(key, method, results) for key in keys])
                for method in results["methods"]
            ),
        ],
        notes=_legend(results, set(keys)),
        failures=failed_runs(results),
    )


def _legend(results: Values, shown: set[str]) -> list[str]:
    """Notes on how the numbers were measured."""
    settings, start = results["settings"], results["start_name"]
    samples = "one completion" if settings["samples"] == 1 else f"{settings['samples']} completions"
    lines = [
        f"{results['prompts']} held-out prompts, {samples} of each by every model, at temperature "
        f"{settings['temperature']:g} and at most {settings['max_tokens']} tokens; the same random numbers for all "
        f"(seed {results['seed']}). Runs are compared with their last weights.",
        "Intervals are 95 %, each by itself, and over prompts: completions of the same prompt, from several samples "
        "and seeds, become one mean first. Other seeds may differ by more; see the numbers of each seed.",
    ]
    if "score" in shown:
        lines.append(f"Score by the task: the reward that {results['task']} itself gives; it knows no gold reward.")
    key = task_key(results)
    if key is not None:
        lines.append(f"Gain: mean {TRUTHS[key]} minus that of {start} on the same prompts, paired (Student's t).")
    if "wins" in shown:
        margin = settings["tie_margin"]
        near = "equal" if margin == 0 else f"no further apart than {margin:g}"
        lines.append(
            f"Wins: how often the judge scores a completion above {start}'s completion of the same prompt, ties "
            f"({near}) counted half; Wilson's interval with as many trials as prompts, rather too wide than too narrow."
        )
    if "pairwise" in shown:
        lines.append(
            f"{settings['judge_model']}: asked about each pair in both orders. An answer that changes with the order "
            "is a tie, and so is one without a readable verdict."
        )
    lines.append(
        f"KL to {start}: nats per completion, the mean of log π − log π_start over the method's own completions; "
        "in small letters nats per token by the k3 estimator."
    )
    return lines


def _columns(results: Values) -> dict[str, str]:
    """Key → heading, of the columns that have values."""
    start, settings, task = results["start"], results["settings"], task_key(results)
    wanted = {
        "method": ("method", True),
        "gold": (TRUTHS["gold"], task == "gold"),
        "score": (TRUTHS["score"], task == "score"),
        "gain": ("gain", task is not None),
        "judge": (TRUTHS["judge"], results["truth"] == "judge"),
        "proxy": ("proxy reward", start["proxy"] is not None),
        "wins": ("wins, by the judge", start["wins"] is not None),
        "pairwise": (f"wins, by {settings['judge_model']}", any(m["pairwise"] for m in results["methods"])),
        "kl": (f"KL to {results['start_name']}", True),
        "length": ("tokens", True),
    }
    return {key: name for key, (name, is_shown) in wanted.items() if is_shown}


def _cell(key: str, method: Values, results: Values) -> Cell:
    summary = method["summary"]
    if key == "method":
        return Cell(main=method["method"])
    if summary is None:
        return Cell(main="failed" if key == (results["truth"] or "kl") else "–")
    if key in ("wins", "pairwise"):
        return _wins(summary["wins"] if key == "wins" else method["pairwise"])
    truncated = f"{percent(summary['cut_off'])} truncated" if summary["cut_off"] else ""
    more = {"gain": "", "proxy": "", "kl": f"{number(summary['kl_token'])} a token", "length": truncated}
    interval = summary[f"{task_key(results)}_gain" if key == "gain" else key]
    return _measured(interval, sign=key == "gain", more=more[key] if key in more else _each_seed(method, key))


def _measured(interval: Values | None, *, sign: bool = False, more: str = "") -> Cell:
    return Cell(main=mean_text(interval, sign=sign), small=tuple(filter(None, (bracketed(interval), more))))


def _wins(wins: Values | None) -> Cell:
    if wins is None:
        return Cell(main="–")
    lines = [bracketed(wins["rate"], scale=100), "{wins} won, {ties} tied, {losses} lost".format(**wins)]
    if "unreadable" in wins:
        lines.append("{contradictions} contradictory, {unreadable} unreadable".format(**wins))
    return Cell(main=f"{mean_text(wins['rate'], scale=100)} %", small=tuple(filter(None, lines)))


def _each_seed(method: Values, key: str) -> str:
    """Means of the single seeds, if there are several."""
    seeds = method["seeds"]
    means = ["failed" if seed["summary"] is None else mean_text(seed["summary"][key]) for seed in seeds]
    return f"seeds {', '.join(means)}" if len(seeds) > 1 else ""
