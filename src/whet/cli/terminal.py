"""The only way to the terminal: whatever is printed is shown as the characters that it holds, and does nothing.

Data, prompts, completions, file names and other people's messages may hold sequences that set the clipboard, move the
cursor or reverse the text around them, and markup of the library that prints tables. All of it is printed literally.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import traceback
import warnings
from types import TracebackType
from typing import Any

import typer
from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.status import Status
from rich.text import Text

from whet.errors import ACTIVE, escaped

LINES = "\n\t"  # what text of several lines may hold
_format_warning = warnings.formatwarning


def say(line: str = "", *, err: bool = False) -> None:
    """Prints one line, on standard error if `err`; a newline in it is shown as \\n."""
    typer.echo(escaped(line), err=err)


def say_text(text: str, *, end: str = "\n") -> None:
    """Prints text that may have several lines."""
    typer.echo(escaped(text, keep=LINES) + end, nl=False)


def say_json(text: str) -> None:
    """Prints JSON; what a terminal would act on is written as JSON's own escapes, so that the value stays the same."""
    typer.echo(ACTIVE.sub(lambda found: found[0] if found[0] in LINES else _json_escape(found[0]), text))


class Screen(Console):
    """For tables and what is redrawn: strings are neither markup nor emoji names, and are escaped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "markup": False, "emoji": False})

    def render_str(self, text: str, **settings: Any) -> Text:
        """Every string that is printed, be it a line or a cell, passes here."""
        return super().render_str(escaped(text, keep=LINES), **settings)

    def say(self, line: str) -> None:
        """Prints one line, above what is redrawn."""
        self.print(escaped(line), highlight=False, soft_wrap=True)

    def status(self, status: Any, **_: Any) -> Status:
        """A line that says what goes on until it is over."""
        return Waiting(status, self)


class Waiting(Status):
    """A spinner with a line, which goes away."""

    def __init__(self, line: str, screen: Screen) -> None:
        super().__init__(Text(escaped(line)), console=screen)

    def update(self, status: Any = None, **settings: Any) -> None:
        """Shows another line."""
        super().update(Text(escaped(status)), **settings)


class Description(ProgressColumn):
    """What a progress bar is about."""

    def render(self, task: Task) -> Text:
        """In one line."""
        return Text(escaped(task.description))


class LastResort(logging.Handler):
    """Prints a warning that nobody else handles."""

    def emit(self, record: logging.LogRecord) -> None:
        """In one line, without a traceback, as logging's own does."""
        say(record.getMessage(), err=True)


def guard_streams() -> None:
    """What others print on our behalf (help, warnings, logs, tracebacks) must neither act nor fail to be encoded."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.excepthook = _show_bug
    logging.lastResort = LastResort(logging.WARNING)
    warnings.formatwarning = _escaped_warning


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    for part in traceback.format_exception(kind, error, trace):
        typer.echo(escaped(part, keep=LINES), nl=False, err=True)


def _escaped_warning(*arguments: Any, **named: Any) -> str:
    return escaped(_format_warning(*arguments, **named), keep=LINES)


def _json_escape(character: str) -> str:
    """json.dumps alone would leave DEL as it is."""
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
