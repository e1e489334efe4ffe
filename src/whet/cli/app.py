"""The command `whet`. Each command parses, calls the library and prints; heavy imports wait until a command runs."""

import os
import signal
import sys
from contextlib import nullcontext
from types import FrameType
from typing import Any

import typer

from whet import __version__
from whet.cli.commands import (
    chat,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    launch,
    learn,
    metrics,
    models,
    redteam,
    report,
    runs,
    sample,
    score,
    tasks,
    train,
    ui,
)
from whet.cli.commands.recipes import check_loss, explain, keys, listing, plan
from whet.cli.key_flags import KeyFlagCommand
from whet.cli.terminal import guard_streams, only_json, say, show_help
from whet.errors import RunFailed, UserError

# Raised for a wrong command line: click's class, or that of typer's own copy of click, depending on typer's version.
UsageError: Any = typer.BadParameter.__mro__[1]
NO_MEMORY = ("out of memory", "can't allocate memory", "Storage size calculation overflowed")  # torch's messages

HELP = """Post-training for language models: SFT, reward models, DPO, PPO, GRPO and relatives; evaluation, reports.

\b
Begin with:
  whet demo                          SFT and GRPO of a tiny GPT on a CPU
  whet recipes                       the packaged recipes
  whet explain grpo-sorting          its loss, batch size and memory
  whet plan grpo-sorting --gpu 4090  memory, hours and price on a GPU
  whet train grpo-sorting lr=1e-4    train; any key can be overridden
  whet launch slurm grpo-sorting     train elsewhere; also local, ray, skypilot, modal, k8s
  whet report @last                  learning curves and samples of the newest run
  whet doctor @last                  what is wrong with it, and which key to change
  whet redteam RUN                   what a reward model pays for besides good answers
  whet ui                            a live page over all runs
  whet keys                          every key of a recipe
  whet metrics                       every metric of a run, and what it means
  whet learn                         exercises to go with docs/learn

Settings of TRL, verl and OpenRLHF, and what they are called here: docs/coming-from.md.
"""
app = typer.Typer(
    name="whet",
    help=HELP,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("demo")(demo.demo)
app.command("train", cls=KeyFlagCommand)(train.train)
app.add_typer(launch.app, name="launch")
app.command("eval")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("score")(score.score)
app.command("redteam")(redteam.redteam)
app.command("sample")(sample.sample)
app.command("chat")(chat.chat)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.command("ui")(ui.ui)
app.command("metrics")(metrics.metrics)
app.command("runs")(runs.runs)
app.command("explain")(explain.explain)
app.command("plan")(plan.plan)
app.command("keys")(keys.keys)
app.command("check-loss")(check_loss.check_loss)
app.add_typer(tasks.app, name="tasks")
app.command("recipes")(listing.recipes)
app.command("sandbox")(listing.sandbox)
app.add_typer(models.app, name="models")
app.add_typer(data.app, name="data")
app.add_typer(learn.app, name="learn")


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and stop.")
) -> None:
    if version:
        say(f"whet {__version__}")
        raise typer.Exit
    show_help(context)


def _is_busy() -> bool:
    """Whether other processes use more than half of the cores."""
    try:
        return os.getloadavg()[0] > (os.cpu_count() or 1) / 2
    except (AttributeError, OSError):  # not on every system
        return True


def _command_typed() -> str:
    """The command of this process, for errors that do not know theirs, e.g. `whet models pull`."""
    commands, path = getattr(typer.main.get_command(app), "commands", {}), ["whet"]
    for word in sys.argv[1:]:
        if word not in commands:
            break
        commands = getattr(commands[word], "commands", {})
        path.append(word)
    return " ".join(path)


def main() -> None:
    """Runs the command: exit code 2 for wrong input, 1 for a run that failed, 130 for Ctrl-C and SIGTERM."""
    guard_streams()
    signal.signal(signal.SIGTERM, _as_interrupt)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if _is_busy():
        # Before torch loads OpenMP: threads that spin while waiting make a small model ten times slower when other
        # processes need the cores; on an idle machine, threads that sleep between two matrix products cost more.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        # Calling typer's app would replace sys.excepthook.
        with only_json() if "--json" in sys.argv else nullcontext():
            sys.exit(typer.main.get_command(app)(prog_name="whet", standalone_mode=False))
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else _command_typed()
        _stop(f"{error.format_message().rstrip('.')} (see `{command} --help`)", 2)
    except UserError as error:
        _stop(str(error), 2)
    except RunFailed as error:
        _stop(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        _stop("stopped", 130)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        _stop("out of memory: lower update.micro_batch_tokens or engine.max_sequences, or use a smaller model", 1)


def _as_interrupt(number: int, _frame: FrameType | None) -> None:
    """SIGTERM, which schedulers send, ends a command as Ctrl-C does."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def _stop(message: str, code: int) -> None:
    say(f"whet: {' '.join(message.split())}", err=True)
    sys.exit(code)
