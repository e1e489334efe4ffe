"""`whet tasks check`: the reward bench."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import Screen, say, say_json, say_table, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.tasks.bench.reward_findings import Finding, Report
    from whet.tasks.bench.subjects import Subject

SHOWN = 200  # characters of a completion
KEPT = 2_000  # and in JSON


def check(
    what: str = typer.Argument(
        ..., metavar="NAME", help="A task, file.py:Class, a reward function rewards.py:function, or a recipe."
    ),
    options: list[str] = typer.Argument(
        None, metavar="KEY=VALUE", help="Options of the task, or overrides of the recipe."
    ),
    *,
    task: str = typer.Option(None, "--task", metavar="NAME", help="Task with rows for a reward function."),
    data: str = typer.Option(None, "--data", metavar="FILE", help="File with rows for a reward function."),
    gold: str = typer.Option(
        "", "--gold", metavar="FORM", help="Form of right answers: '<result>{answer}</result>'.  [default: tried]"
    ),
    open_ended: bool = typer.Option(
        False, "--open-ended", help="There is no one final answer: leave out attacks that assume one."
    ),
    examples: int = typer.Option(24, min=2, help="Examples to attack."),
    seed: int = typer.Option(0, min=0, help="The same seed gives the same report."),
    time_limit: float = typer.Option(10.0, "--time-limit", metavar="SECONDS", help="For a batch of completions."),
    as_json: arguments.AsJson = False,
) -> None:
    """Attack a reward before training with it.

    Sends completions that must not score (empty, the prompt, lists of answers, the right answer among wrong ones, empty
    formats, legal play without a solution, very long and odd text) and tests that scores are finite, repeatable,
    independent of the batch, and that nothing leaks from evaluation into training. The exit code is 1 if a check fails.

    \b
    Examples:
      whet tasks check hanoi level=2
      whet tasks check rewards.py:exact --data rows.jsonl
      whet tasks check rewards.py:exact --task arithmetic chat=true
      whet tasks check grpo-sorting reward.functions=[rewards.py:exact]
    """
    from whet.tasks.bench import check_subject

    with redirect_stdout(sys.stderr), Screen(stderr=True).status(f"checking {what}"):  # what it prints is no report
        subject, more = _subject(what, options or [], task=task, data=data, form=gold, open_ended=open_ended)
        report = check_subject(subject, examples=examples, seed=seed, seconds=time_limit)
    if as_json:
        say_json(_plain(report, more))
    else:
        _print(report, more)
    if report.failed:
        raise typer.Exit(1)


def _subject(what: str, words: list[str], *, task: str | None, data: str | None, **more: Any) -> tuple[Subject, str]:
    """What is checked, and a remark about what is not."""
    from whet.tasks.bench.subjects import subject_of, subject_of_parts
    from whet.tasks.loading import is_packaged

    if task is not None and data is not None:
        raise UserError("rows come from --task or from --data: leave one of them out")
    if is_packaged(what) or (":" in what and not what.endswith((".yaml", ".yml"))):
        options = arguments.read_options(words)
        rows = "data" if data is not None else task
        given = {**({} if data is None else {"path": data}), **options}
        return subject_of(what, given, task=rows, **more), ""
    if task is not None or data is not None:
        raise UserError(f"{what} is no reward function, and --task and --data are rows for one: leave them out")
    name, options, functions, remark = _of_recipe(what, words)
    return subject_of_parts(f"recipe {what}", name, options, functions, **more), remark


def _of_recipe(what: str, overrides: list[str]) -> tuple[str, dict[str, Any], list[tuple[str, float]], str]:
    """Task, options and reward functions of a recipe; an unknown name is an error about tasks and recipes."""
    from whet.recipe import packaged_recipes, read_recipe
    from whet.tasks.loading import find_task

    if what not in packaged_recipes() and not what.endswith((".yaml", ".yml")):
        find_task(what)  # raises with the nearest name
    config = read_recipe(what, arguments.with_runs(overrides)).config
    task, reward = getattr(config, "task", None), getattr(config, "reward", None)
    if task is None or reward is None:
        raise UserError(f"recipe {what} trains without a reward, so there is nothing to check")
    functions, _ = reward.plain()
    if reward.model is not None and not functions:
        raise UserError(f"recipe {what} is rewarded by a reward model, which is not attacked here: see `whet redteam`")
    remark = "the reward model of the recipe is left out" if reward.model is not None else ""
    return task.name, dict(task.options), functions, remark


def _plain(report: Report, remark: str) -> dict[str, Any]:
    findings = [{**asdict(finding), "completion": finding.completion[:KEPT]} for finding in report.findings]
    own = {**asdict(report), "findings": findings, "passed": report.is_passed, "verdict": report.verdict}
    return {**own, **({"remark": remark} if remark else {})}


def _print(report: Report, remark: str) -> None:
    say(f"{report.subject}: {report.examples} examples, {report.completions:,} completions")
    say_table([(one.outcome, one.check, one.sentence) for one in report.findings], "outcome", "check", "what was found")
    for finding in report.findings:
        if finding.outcome == "failed" or finding.completion:
            _details(finding)
    outcomes = Counter(finding.outcome for finding in report.findings)
    say_text(f"\n{outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['note']} notes")
    say(f"{report.per_second:,.0f} completions per second" + (f"; {remark}" if remark else ""))
    say(report.verdict)


def _details(finding: Finding) -> None:
    """The completion that shows a finding, and what to do."""
    say_text("")
    say(f"{finding.outcome} {finding.check}: {finding.sentence}")
    if finding.example:
        rewards = [f"score {finding.score:.4g}"] if finding.score is not None else []
        rewards += [f"right answer {finding.gold:.4g}"] if finding.gold is not None else []
        say(f"  example {finding.example}" + (f" ({', '.join(rewards)})" if rewards else ""))
        shown = finding.completion if len(finding.completion) <= SHOWN else f"{finding.completion[:SHOWN]} …"
        say(f"  completion {shown!r} ({len(finding.completion):,} characters)")
    if finding.fix:
        say(f"  to do: {finding.fix}")
