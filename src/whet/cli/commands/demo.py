"""`whet demo`: SFT, then GRPO, from scratch to a report in minutes on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from whet.cli import arguments
from whet.cli.terminal import say

if TYPE_CHECKING:
    from whet.runs.directory import RunDirectory

SHOWN = 6  # held-out examples, before and after


def demo(
    seed: int = typer.Option(0, "--seed", help="Random seed; the same seed gives the same run."),
    runs: arguments.Runs = Path("runs"),
) -> None:
    """Run SFT, then GRPO, on a tiny GPT: minutes on a CPU. It learns to sort five digits.

    Example: whet demo --seed 1
    """
    from whet.cli.progress import make_progress
    from whet.recipe import read_recipe
    from whet.runs.directory import RunDirectory
    from whet.train.start import start_run

    say("1/2  supervised start: a GPT from scratch reads 768 sorted examples")
    start = start_run(read_recipe("demo-sft", [f"seed={seed}"]), runs, make_progress)
    say("2/2  reinforcement: it tries, is graded, and GRPO makes what scored better likelier")
    recipe = read_recipe("demo-grpo", [f"seed={seed}", "model.new=null", f"model.path={start}"])
    path = start_run(recipe, runs, make_progress)
    run = RunDirectory.open(path, is_writer=False)
    results = run.results()
    assert results is not None
    say()
    _samples(run)
    say()
    say(f"held-out accuracy before  {_accuracy(results['before'])}")
    say(f"held-out accuracy after   {_accuracy(results['after'])}")
    say(f"report   {run.report_path}")
    say(f"model    {run.best_model()}   (try: whet sample {path})")


def _samples(run: RunDirectory) -> None:
    steps = run.answer_steps()
    before, after = ({row["id"]: row for row in run.answers(step)} for step in (steps[0], steps[-1]))
    say(f"{'prompt':<10}{'before':<12}{'after':<12}right answer")
    for name in list(before)[:SHOWN]:
        texts = [f"{row['text'][:8]}{' ✓' if row['correct'] else ' ✗'}" for row in (before[name], after[name])]
        say(f"{before[name]['prompt']:<10}{texts[0]:<12}{texts[1]:<12}{before[name]['answer']}")


def _accuracy(metrics: dict[str, float]) -> str:
    low, high = metrics["eval/accuracy_low"], metrics["eval/accuracy_high"]
    return f"{metrics['eval/accuracy']:.1%}  (95 % interval {low:.1%} to {high:.1%})"
