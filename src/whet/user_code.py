"""Calls of a user's code: where its errors arose, and a log for what it prints.

While a run trains, what reward functions and tasks print goes to a log file of the run (`keeping_output`): printed to
the terminal it would break the progress display, and the JSON of `--json`.
"""

import io
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from types import CodeType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LOG_BYTES = 5 * 10**6  # the log is begun anew beyond this size, and the one before it is kept
OLDER = ".1"  # at the end of its name
TRACEBACK_CHARACTERS = 20_000
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # names of their code
OURS = str(Path(__file__).resolve().parent)
PYTHONS = ("<frozen ", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))
INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))


def one_line(error: BaseException) -> str:
    """Type and message of an error in one line, truncated."""
    message = " ".join(str(error).split())
    short = message if len(message) <= 300 else message[:297] + "..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__


def located(error: BaseException) -> str:
    """An error with the last line of the user's code: `rewards.py:12 in short: KeyError: 'x'`.

    Frames of libraries that the user's code called are passed over. Without a frame of the user's, only the error.
    """
    places = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [(code, line) for code, line in places if not _is_ours(code.co_filename)]
    own = [(code, line) for code, line in places if not code.co_filename.startswith((*PYTHONS, *INSTALLED))]
    installed = [(code, line) for code, line in places if code.co_filename.startswith(INSTALLED)]
    if not own and not installed:
        return one_line(error)
    code, line = (own or installed)[-1]
    return f"{_shown(code.co_filename)}:{line} in {_function(code)}: {one_line(error)}"


def happened(error: BaseException) -> str:
    """What happened, after the name of the function: `failed at FILE:LINE in NAME: …`, or `raised …`."""
    place = located(error)
    return f"raised {place}" if place == one_line(error) else f"failed at {place}"


def whole_traceback(error: BaseException) -> str:
    """The traceback from the user's code on, with those of its causes; the end of a very long one."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))[-TRACEBACK_CHARACTERS:]


def frames_of(error: BaseException) -> str:
    """The traceback with those of its causes; the end of a very long one."""
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]


def by_lines(trace: str) -> dict[str, list[str]]:
    """A traceback for a JSON file, in which the end of a line inside a string would be shown as \\n."""
    return {"traceback": trace.splitlines()} if trace else {}


class OutputLog:
    """A file of bounded size, made by the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self.stream = io.TextIOWrapper(_Bytes(self), "utf-8", errors="backslashreplace", write_through=True)

    def write(self, data: bytes) -> None:
        # A disk that is full stops the run at its next metrics; a print alone does not.
        with self._lock, suppress(OSError):
            if self.path.exists() and self.path.stat().st_size + len(data) > LOG_BYTES:
                self.path.replace(self.path.with_name(self.path.name + OLDER))
            with self.path.open("ab") as file:
                file.write(data)


class _Bytes(io.BytesIO):
    """A log as a file of bytes, for code that writes to `sys.stdout.buffer`."""

    def __init__(self, log: OutputLog) -> None:
        super().__init__()
        self._log = log

    def write(self, data: "ReadableBuffer", /) -> int:
        content = bytes(data)
        self._log.write(content)
        return len(content)


_log: ContextVar[OutputLog | None] = ContextVar("output_log", default=None)  # None: the terminal


@contextmanager
def keeping_output(path: Path) -> Iterator[OutputLog]:
    """What a user's code prints inside is appended to the file at `path`."""
    log = OutputLog(path)
    token = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(token)


def output_log() -> OutputLog | None:
    """The log for what a user's code prints; None outside of a run."""
    return _log.get()


@contextmanager
def printing_to_log() -> Iterator[None]:
    """Around a call of the user's code in this process: its prints go to the log, if there is one."""
    log = _log.get()
    if log is None:
        yield
        return
    with redirect_stdout(log.stream), redirect_stderr(log.stream):
        yield


def _is_ours(file: str) -> bool:
    return file.startswith(OURS)


def _function(code: CodeType) -> str:
    """The name of the function, also of code in one of its comprehensions."""
    if code.co_name not in COMPREHENSIONS or ".<locals>." not in code.co_qualname:
        return code.co_name
    return code.co_qualname.partition(".<locals>.<")[0].rpartition(".")[2]


def _shown(file: str) -> str:
    """Relative to the working directory where that is shorter."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
