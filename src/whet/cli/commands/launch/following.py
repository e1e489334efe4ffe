"""`whet launch list`, `logs`, `stop`: what became of runs that were launched."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Column

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_json_line, say_table, say_text

Launched = Annotated[str, typer.Argument(metavar="NAME", help="Name of a launch, as `whet launch list` has it.")]


def list_launches(
    ask: bool = typer.Option(True, "--ask/--no-ask", help="Ask each tool how its runs stand, 20 s at most each."),
    as_json: arguments.AsJson = False,
) -> None:
    """List the runs that were launched from here, newest first.

    \b
    Examples:
      whet launch list
      whet launch list --no-ask --json
    """
    from whet.launch.launches import every, folder
    from whet.launch.local import LOCAL
    from whet.launch.submission import state

    rows = []
    for one in every():
        stands = state(one) if ask or one.tool == LOCAL.name else "stopped" if one.stopped else "not asked"
        rows.append({**asdict(one), "state": stands})
    if as_json:
        say_json(rows)
    elif rows:
        shown = ("name", "tool", "id", "state", "run", "started")
        say_table(
            [[str(row[key]) for key in shown] for row in rows], *(Column(name, overflow="fold") for name in shown)
        )
    else:
        say(f"nothing was launched: there is no record in {folder()}")


def logs(
    name: Launched,
    follow: bool = typer.Option(
        False, "--follow", "-f", help="Go on until Ctrl-C, or the end where the tool tells it."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object for each line."),
) -> None:
    """Print the output of a launched run.

    \b
    Examples:
      whet launch logs NAME
      whet launch logs NAME --follow
    """
    from whet.launch.launches import find
    from whet.launch.submission import log_lines

    for line in log_lines(find(name), follow=follow):
        if as_json:
            say_json_line({"line": line})
        else:
            say_text(line)


def stop(
    name: Launched,
    forget: bool = typer.Option(False, "--forget", help="Also remove the record, whatever the tool says."),
    as_json: arguments.AsJson = False,
) -> None:
    """End a launched run. Its directory stays, and the same launch resumes it.

    \b
    Examples:
      whet launch stop NAME
      whet launch stop NAME --forget
    """
    from whet.errors import RunFailed, UserError
    from whet.launch import launches, submission

    launch = launches.find(name)
    try:
        launch = submission.stop(launch)
        told = f"{name}: asked to end; the run is {launch.run}"
    except (RunFailed, UserError) as error:
        if not forget:
            raise
        told = f"{name}: {error}"
    if forget:
        launches.forget(launch)
    if as_json:
        say_json({**asdict(launch), "forgotten": forget})
    else:
        say(told)
