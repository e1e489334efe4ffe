"""comparison.md: the table, the verdict and the command that made them, readable in a terminal too."""

from __future__ import annotations

from collections.abc import Sequence

from whet.report.comparison.results import MethodResult, StepsTo
from whet.report.comparison.verdict import Gap, Verdict
from whet.report.numbers import number, percent


def table(results: Sequence[MethodResult], verdict: Verdict, *, target: float) -> str:
    """A Markdown table with columns of equal width, best method first."""
    header = [
        "method",
        "held-out accuracy",
        "95 % interval",
        "each seed",
        "behind the best",
        f"steps to {percent(target)}",
        "seconds",
    ]
    rows = [header, *(_row(result, verdict, target) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


def document(
    results: Sequence[MethodResult],
    verdict: Verdict,
    *,
    target: float,
    title: str,
    command: str,
    curves: str,
    notes: Sequence[str],
) -> str:
    """The whole file."""
    failures = [
        f"- {result.method}, seed {seed.seed} did not finish: {seed.failure}"
        for result in results
        for seed in result.seeds
        if seed.accuracy is None
    ]
    parts = [
        f"# {title}",
        verdict.sentence,
        table(results, verdict, target=target),
        "\n".join(_legend(target)),
        "\n".join(failures),
        "\n".join(f"- {note}" for note in notes),
        f"![held-out accuracy against steps]({curves})",
        f"Made by:\n\n```sh\n{command}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _legend(target: float) -> list[str]:
    return [
        "- held-out accuracy: after the last step, mean over seeds; its interval is Student's t over seeds, cut to "
        "0 … 100 %.",
        "- behind the best: accuracy of the first method minus this one's, in points, paired by seed; the intervals "
        "hold together with 95 % and include the error of finitely many held-out examples.",
        f"- steps to {percent(target)}: the median of the seeds, a seed that never got there counted as later than "
        "all others, and the range of those that did; only evaluated steps are looked at.",
        "- seconds: of training, evaluation not counted, mean over seeds.",
    ]


def _row(result: MethodResult, verdict: Verdict, target: float) -> list[str]:
    seeds = ", ".join("failed" if seed.accuracy is None else _share(seed.accuracy) for seed in result.seeds)
    if result.accuracy is None or result.seconds is None:
        return [result.method, "–", "–", seeds, "–", "–", "–"]
    return [
        result.method,
        f"{_share(result.accuracy.mean)} %",
        _interval(result),
        seeds,
        _behind(result.method, verdict),
        _steps(result.steps_to(target)),
        number(result.seconds),
    ]


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _interval(result: MethodResult) -> str:
    assert result.accuracy is not None
    if len(result.finished) == 1:
        return "none: one seed"
    if result.accuracy.low == result.accuracy.high:
        return "none: equal seeds"  # not certainty: the spread was too small to be seen
    return f"{_share(result.accuracy.low)} … {_share(result.accuracy.high)} %"


def _behind(method: str, verdict: Verdict) -> str:
    if method == verdict.best:
        return "best mean"
    gap: Gap | None = verdict.gaps.get(method)
    if gap is None:
        return "cannot be said"
    ends = f"{_signed(gap.interval.mean)} [{_signed(gap.interval.low)} … {_signed(gap.interval.high)}]"
    return f"{ends} {'below' if gap.below else 'unclear'}"


def _signed(share: float) -> str:
    return f"{100 * share + 0.0:.1f}".replace("-", "−")


def _steps(steps: StepsTo) -> str:
    if steps.reached == 0:
        return f"never, 0 of {steps.of} seeds"
    spread = f"{steps.first:,}" if steps.first == steps.last else f"{steps.first:,} to {steps.last:,}"
    middle = spread if steps.first == steps.last or steps.median is None else f"{steps.median:,g} ({spread})"
    return middle if steps.reached == steps.of else f"{middle}, {steps.reached} of {steps.of} seeds"
