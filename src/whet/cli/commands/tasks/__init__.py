"""`whet tasks`: list, show, play and check. `whet tasks NAME` is short for `whet tasks show NAME`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from whet.cli import arguments
from whet.cli.commands.tasks.playing import play
from whet.cli.commands.tasks.reward_check import check
from whet.cli.commands.tasks.showing import list_tasks, show

HELP = """List, show, play and check tasks. A task is prompts with a reward.

\b
Examples:
  whet tasks                             all tasks
  whet tasks arithmetic level=3          prompts and answers of one (show)
  whet tasks play countdown              answer yourself
  whet tasks check hanoi                 attack its reward
  whet tasks check rewards.py:f --data rows.jsonl
"""


class Shorthand(TyperGroup):
    """A group in which the name of a task stands for `show` and that name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        name = next((word for word in args if not word.startswith("-")), None)
        return super().parse_args(ctx, args if name is None or name in self.commands else ["show", *args])


app = typer.Typer(cls=Shorthand, help=HELP, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _all(context: typer.Context, as_json: arguments.AsJson = False) -> None:
    if context.invoked_subcommand is None:
        list_tasks(as_json=as_json)


app.command("list")(list_tasks)
app.command("show")(show)
app.command("play")(play)
app.command("check")(check)
