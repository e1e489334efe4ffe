"""The table of a contest, as cells for the page and as Markdown for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whet.report.comparison.methods import TRUTHS, Values, bracketed, judged_methods, mean_text, task_key
from whet.report.comparison.methods_verdict import verdict
from whet.report.numbers import number, percent

AGAINST_START = frozenset({"gain", "wins", "opinion", "kl"})  # what the start model has none of


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What stands in a cell: the number, and in small letters, line by line, what belongs to it."""

    main: str
    small: tuple[str, ...] = ()


def header(results: Values) -> list[str]:
    """The columns that have something to show."""
    return [name for name, _ in _columns(results)]


def start_row(results: Values) -> list[Cell]:
    """The start model's own numbers."""
    entry = {"method": results["start_name"], "summary": results["start"], "opinion": None, "seeds": []}
    keys = [key for _, key in _columns(results)]
    return [Cell(main="–") if key in AGAINST_START else _cell(key, entry, results) for key in keys]


def method_row(results: Values, method: Values) -> list[Cell]:
    """A method's numbers, seeds together."""
    return [_cell(key, method, results) for _, key in _columns(results)]


def markdown(results: Values) -> str:
    """The table with columns of equal width, the start model first and then the best method."""
    rows = [start_row(results), *(method_row(results, method) for method in results["methods"])]
    written = [header(results), *([" ".join([cell.main, *cell.small[:1]]) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in written) for column in range(len(written[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in written]
    rule = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


def document(results: Values, pictures: Sequence[tuple[str, str]]) -> str:
    """comparison.md: the verdict, the table, what its columns mean, and the (caption, file) of each picture."""
    lines = [
        f"# {results['title']}",
        " ".join(verdict(results)),
        markdown(results),
        "\n".join(f"- {line}" for line in details(results)),
        "\n".join(f"- {line}" for line in legend(results)),
        "\n".join(f"- {line}" for line in failures(results)),
        "\n\n".join(f"![{caption}]({file})" for caption, file in pictures),
    ]
    return "\n\n".join(part for part in lines if part) + "\n"


def details(results: Values) -> list[str]:
    """What the cells of each method hold besides their numbers: the table would be too wide with it."""
    lines = []
    for method in judged_methods(results):
        cells = zip(header(results), method_row(results, method), strict=True)
        small = [f"{name}: {', '.join(cell.small[1:])}" for name, cell in cells if cell.small[1:]]
        lines.append(f"{method['method']}: {'; '.join(small)}")
    return lines


def failures(results: Values) -> list[str]:
    """The runs that are not in the numbers, and why."""
    return [
        f"{method['method']}, seed {seed['seed']} did not finish: {seed['failure']}"
        for method in results["methods"]
        for seed in method["seeds"]
        if seed["failure"] is not None
    ]


def legend(results: Values) -> list[str]:
    """How the numbers were measured."""
    settings, start = results["settings"], results["start_name"]
    samples = "one completion" if settings["samples"] == 1 else f"{settings['samples']} completions"
    shown = {key for _, key in _columns(results)}
    lines = [
        f"{results['prompts']} held-out prompts, {samples} of each by every model, at temperature "
        f"{settings['temperature']:g} and at most {settings['max_tokens']} tokens; the same random numbers for all "
        f"(seed {results['seed']}). Runs are judged with their last weights.",
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
    if "opinion" in shown:
        lines.append(
            f"{settings['judge_model']}: asked about each pair in both orders. An answer that changes with the order "
            "is a tie, and so is one without a readable verdict."
        )
    lines.append(
        f"KL to {start}: nats per completion, the mean of log π − log π_start over the method's own completions; "
        "in small letters nats per token by the k3 estimator."
    )
    return lines


def _columns(results: Values) -> list[tuple[str, str]]:
    start, settings, task = results["start"], results["settings"], task_key(results)
    wanted = [
        ("method", "method", True),
        (TRUTHS["gold"], "gold", task == "gold"),
        (TRUTHS["score"], "score", task == "score"),
        ("gain", "gain", task is not None),
        ("judge's reward", "judge", results["truth"] == "judge"),
        ("proxy reward", "proxy", start["proxy"] is not None),
        ("wins, by the judge", "wins", start["wins"] is not None),
        (f"wins, by {settings['judge_model']}", "opinion", any(method["opinion"] for method in results["methods"])),
        (f"KL to {results['start_name']}", "kl", True),
        ("tokens", "length", True),
    ]
    return [(name, key) for name, key, is_shown in wanted if is_shown]


def _cell(key: str, method: Values, results: Values) -> Cell:
    summary = method["summary"]
    if key == "method":
        return Cell(main=method["method"])
    if summary is None:
        return Cell(main="failed" if key == (results["truth"] or "kl") else "–")
    makers: dict[str, Callable[[], Cell]] = {
        "gold": lambda: _measured(summary["gold"], more=_each_seed(method, "gold")),
        "score": lambda: _measured(summary["score"], more=_each_seed(method, "score")),
        "gain": lambda: _measured(summary[f"{task_key(results)}_gain"], sign=True),
        "judge": lambda: _measured(summary["judge"], more=_each_seed(method, "judge")),
        "proxy": lambda: _measured(summary["proxy"]),
        "wins": lambda: _wins(summary["wins"]),
        "opinion": lambda: _wins(method["opinion"]),
        "kl": lambda: _measured(summary["kl"], more=f"{number(summary['kl_token'])} a token"),
        "length": lambda: _measured(summary["length"], more=_cut(summary["cut_off"])),
    }
    return makers[key]()


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
    """The mean of every seed, where there are several."""
    seeds = method["seeds"]
    means = ["failed" if seed["summary"] is None else mean_text(seed["summary"][key]) for seed in seeds]
    return f"seeds {', '.join(means)}" if len(seeds) > 1 else ""


def _cut(share: float) -> str:
    return f"{percent(share)} cut off" if share else ""
