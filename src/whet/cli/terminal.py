"""The only way to the terminal: everything is printed literally.

Data, prompts, completions, file names and messages of others may contain escape sequences that set the clipboard, move
the cursor or reverse text, and markup of the library that draws tables. All of it is escaped.
"""

import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.status import Status
from rich.table import Column, Table
from rich.text import Text

from whet.errors import escaped
from whet.runs.logs import json_bytes

NARROWEST, BORDER = 8, 3  # characters of a column of text, and of the line before it with its space
UNLIMITED = 10_000  # characters of a line that is not for a terminal
LINES = "\n\t"  # control characters that text of several lines may contain
_format_warning = warnings.formatwarning
_json_to: ContextVar[TextIO | None] = ContextVar("json_to", default=None)  # None: standard output


def say(line: str = "", *, err: bool = False) -> None:
    """Prints one line, on standard error if `err`; a newline in it is shown as \\n."""
    typer.echo(escaped(line), err=err)


def say_text(text: str, *, end: str = "\n") -> None:
    """Prints text of one or more lines."""
    typer.echo(escaped(text, keep=LINES) + end, nl=False)


def say_file(text: str) -> None:
    """Prints the text of a file: as it is where it goes to a file or a program, escaped on a terminal."""
    if sys.stdout.isatty():
        say_text(text, end="")
    else:
        typer.echo(text.encode(), nl=False)


def say_json(value: Any) -> None:
    """Prints a value as indented JSON in ASCII, so that it holds no character a terminal would act on."""
    typer.echo(_json_text(value, indent=2), file=_json_to.get())


def say_json_line(row: Any) -> None:
    """Prints a value as one line of JSON, as `say_json` does."""
    typer.echo(_json_text(row), file=_json_to.get())


def _json_text(value: Any, indent: int | None = None) -> str:
    return json_bytes(value, other=str, indent=indent).decode().replace("\x7f", "\\u007f")


@contextmanager
def only_json() -> Iterator[None]:
    """Nothing but `say_json` writes to standard output: prints of the user's code go to standard error."""
    token = _json_to.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _json_to.reset(token)


def readable_bytes(size: int, base: int = 1000, units: Sequence[str] = ("kB", "MB", "GB")) -> str:
    """Bytes with a unit: 269.1 MB."""
    value, unit = float(size), ""
    for larger in units:
        if value < base:
            break
        value, unit = value / base, larger
    return f"{value:.1f} {unit}" if unit else f"{size} B"


class Screen(Console):
    """A console for tables and live displays; strings are escaped, and are neither markup nor emoji names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "markup": False, "emoji": False})

    def render_str(self, text: str, **settings: Any) -> Text:
        """Every printed string, line or cell, passes through here."""
        return super().render_str(escaped(text, keep=LINES), **settings)

    def say(self, line: str) -> None:
        """Prints one line, above a live display."""
        self.print(escaped(line), highlight=False, soft_wrap=True)

    def status(self, status: Any, **_: Any) -> Status:
        """A spinner with a line of text, removed at the end."""
        return Waiting(status, self)


class Waiting(Status):
    def __init__(self, line: str, screen: Screen) -> None:
        super().__init__(Text(escaped(line)), console=screen)

    def update(self, status: Any = None, **settings: Any) -> None:
        super().update(Text(escaped(status)), **settings)


class Description(ProgressColumn):
    """The description of a progress bar, escaped."""

    def render(self, task: Task) -> Text:
        return Text(escaped(task.description))


def say_table(rows: Iterable[Sequence[str]], *columns: str | Column, **look: Any) -> None:
    """Prints a table; it has no header without columns.

    The first column holds names, which are never wrapped, so that they can be copied: where a terminal is too narrow,
    the lines are longer. Output that is no terminal has no width.
    """
    table = Table(*columns, show_header=bool(columns), **look)
    for row in rows:
        table.add_row(*row)
    screen = Screen()
    names, *others = table.columns
    names.no_wrap = True
    longest = max((cell_len(line) for cell in names.cells for line in str(cell).splitlines()), default=0)
    least = longest + BORDER + (NARROWEST + BORDER) * len(others) + 1
    screen.width = max(least, screen.width if screen.is_terminal else UNLIMITED)
    screen.print(table)


def show_help(context: typer.Context) -> None:
    """Prints the help of a group that was called without a command."""
    if context.invoked_subcommand is None:
        say_text(context.get_help())


class LastResort(logging.Handler):
    """Prints log records that no other handler takes, in one line without a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage(), err=True)


def guard_streams() -> None:
    """Escapes what others print on our behalf: help, warnings, logs, tracebacks."""
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
