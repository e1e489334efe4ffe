"""`whet launch`: starts runs on other machines, or detached on this one; lists, shows and stops them."""

from __future__ import annotations

import typer

from whet.cli.commands.launch import clouds, clusters, following
from whet.cli.terminal import show_help

HELP = """Start a training run somewhere else, and see what becomes of it.

Each command writes a job file, says by formula whether the recipe fits the GPU, and submits the file by the tool's own
command. --dry-run prints the file instead. A run that dies is started again and resumes.

\b
Examples:
  whet launch local grpo-sorting
  whet launch slurm grpo-sorting --nodes 2 --gpus 8 --gpu h100 --time 12h
  whet launch k8s grpo-sorting --image IMAGE --runs CLAIM --dry-run
  whet launch list
"""
app = typer.Typer(help=HELP, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _all(context: typer.Context) -> None:
    show_help(context)


app.command("local")(clusters.local)
app.command("slurm")(clusters.slurm)
app.command("ray")(clusters.ray)
app.command("skypilot")(clouds.skypilot)
app.command("modal")(clouds.modal)
app.command("k8s")(clouds.k8s)
app.command("list")(following.list_launches)
app.command("logs")(following.logs)
app.command("stop")(following.stop)
