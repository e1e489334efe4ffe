"""`whet runs`: the runs below a folder, newest first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Column

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_table

if TYPE_CHECKING:
    from whet.runs.directory import RunDirectory


def runs(
    folder: Path = typer.Argument(None, metavar="DIR", help="Folder of runs.  [default: $WHET_RUNS, else runs]"),
    as_json: arguments.AsJson = False,
) -> None:
    """List the runs below a folder: status, main result, start.

    Runs of pipelines and comparisons are listed too. Where a command takes a run, @last is the newest, and a part of a
    name stands for the one run that has it.

    \b
    Examples:
      whet runs
      whet runs experiments --json
    """
    from whet.runs.catalogue import known_runs, runs_below, runs_root
    from whet.runs.directory import RunDirectory

    root = runs_root(folder)
    rows = [_about(RunDirectory.open(path, is_writer=False), root) for path in reversed(runs_below(root))]
    if as_json:
        say_json(rows)
    elif rows:
        shown = ("run", "status", "result", "started")
        columns = [Column(name, overflow="fold") for name in shown]
        say_table([[str(row[key]) for key in shown] for row in rows], *columns)
    else:
        say(known_runs(root))


def _about(run: RunDirectory, root: Path) -> dict[str, Any]:
    """What is listed of a run; a damaged one has its error in place of a result."""
    from whet.doctor.findings import ended_by
    from whet.errors import RunFailed
    from whet.evaluate.measures import main_result
    from whet.runs.catalogue import standing, started

    about: dict[str, Any] = {"run": str(run.path.relative_to(root)), "path": str(run.path), "recipe": run.recipe}
    when = started(run.path).isoformat(sep=" ", timespec="minutes")
    try:
        found, results = standing(run), run.results()
        result = f"{results['rows']:,} rows" if results and "rows" in results else main_result(run.metrics(), results)
    except RunFailed as error:
        return {**about, "status": "damaged", "step": None, "result": str(error), "started": when}
    alarm = ended_by(str((results or {}).get("ended", "")))
    finished = f"finished, {found.step:,} step{'s' * (found.step != 1)}"
    if alarm is not None:
        finished = f"stopped by an alarm after step {found.step:,}" + f": {alarm}" * bool(alarm)
    status = {
        "finished": finished,
        "stopped": f"stopped after step {found.step:,}" if found.step else "stopped before step 1",
        "failed": f"failed in step {found.step + 1:,}",
        "being written": f"being written, step {found.step:,}",
    }[found.status]
    return {**about, "status": status, "step": found.step, "result": found.error or result, "started": when}
