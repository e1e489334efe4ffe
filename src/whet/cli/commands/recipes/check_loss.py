"""`whet check-loss`: checks that the loop can train with a user's loss."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json

if TYPE_CHECKING:
    from whet.train.check.checks import Report

KINDS = {  # what a report calls them, but for surrogates and advantages
    "pair": "preference loss (pairs)",
    "label": "preference loss (labelled completions)",
    "preference": "reward-model loss (pairs)",
    "outcome": "reward-model loss (whole answers)",
    "process": "reward-model loss (steps)",
}


def check_loss(
    spec: str = typer.Argument(..., metavar="NAME", help="module:function, file.py:function, or a packaged one: clip."),
    settings: list[str] = typer.Argument(None, metavar="KEY=VALUE", help="Options of the function."),
    as_json: arguments.AsJson = False,
) -> None:
    """Check a loss of your own before training with it.

    A surrogate, an advantage, a preference loss or a reward-model loss must not depend on micro-batches, padding,
    packing or the order of sequences, and its gradient must be that of its value. The exit code is 1 if a check fails.

    \b
    Examples:
      whet check-loss losses.py:my_surrogate
      whet check-loss clip high=0.28
      whet check-loss dpo beta=0.3
    """
    from whet.train.check.checks import check_loss as check

    with redirect_stdout(sys.stderr):  # prints of the function are not part of the report
        report = check(spec, arguments.read_options(settings or [], "a loss", "high=0.28", literal=False))
    if as_json:
        say_json({**asdict(report), "failed": report.failed})
    else:
        for line in _page(report):
            say(line)
    if report.failed:
        raise typer.Exit(1)


def _page(report: Report) -> list[str]:
    given = ", ".join(f"{key}={value}" for key, value in report.options.items())
    heading = f"{report.cell}: {KINDS.get(report.kind, report.kind)} of {', '.join(report.terms)}" + (
        f" [{given}]" if given else ""
    )
    width = max(len(finding.check) for finding in report.findings)
    lines = [f"  {found.outcome:<6}  {found.check:<{width}}  {found.sentence}" for found in report.findings]
    outcomes = Counter(finding.outcome for finding in report.findings)
    summary = f"{outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['note']} notes"
    return [heading, *lines, summary]
