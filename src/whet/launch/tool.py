"""What a tool is here: a file that it takes, and the commands that submit, show and stop it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Any, Protocol

from whet.errors import RunFailed, UserError, escaped
from whet.launch.job import Job

SHOWN = 2000  # characters of what a tool says when it fails, from the end
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STATE_SECONDS = 20.0  # a cluster that is away answers never


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A run that was started elsewhere, as its record has it."""

    name: str
    tool: str
    id: str  # the tool's own: number of a job, name of a cluster, …
    recipe: str
    run: str  # its directory, where it runs
    started: str
    file: str  # what was given to the tool
    log: str = ""  # a file with its output, where there is one
    stopped: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


class Logs(Protocol):
    def __call__(self, launch: Launch, *, follow: bool) -> list[str]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A launcher that is not ours."""

    name: str
    program: str  # its command
    install: str  # how one comes by it
    ending: str  # of the file
    render: Callable[[Job], str]
    submit: Callable[[Job, Path], list[str]]
    identify: Callable[[str, Job], str]  # from what submitting printed
    logs: Logs
    stop: Callable[[Launch], list[str]]
    state: Callable[[Launch], list[str]]
    read_state: Callable[[str, Launch], str] = lambda said, _launch: last_line(said)
    log: Callable[[Job], str] = lambda _job: ""


def last_line(text: str) -> str:
    """The last line with words, with single spaces; `ended` where a tool has nothing more to say."""
    lines = [line for line in text.splitlines() if re.search(r"\w", line)]
    return " ".join(lines[-1].split()) if lines else "ended"


def without_colours(text: str) -> str:
    """Text without the sequences that colour it; all others are left, and are escaped where text is printed."""
    return COLOUR.sub("", text)


def require_exported(job: Job) -> None:
    """Refuses a job whose secrets are not in this shell, from which the tool takes them."""
    missing = [name for name in job.secrets if not os.environ.get(name)]
    if missing:
        raise UserError(f"--secret {missing[0]}: it is not set in this shell; export it first")


def called(words: Sequence[str], install: str, *, seconds: float | None = None) -> str:
    """What a command of a tool prints; its own error, if it fails."""
    if which(words[0]) is None:
        raise UserError(f"{words[0]} is not installed here: {install}; --dry-run shows the file without it")
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{words[0]} did not answer within {seconds:g} s") from error
    if done.returncode:
        said = escaped(without_colours(done.stderr.strip() or done.stdout.strip() or "nothing")[-SHOWN:], keep="\n")
        raise RunFailed(f"{' '.join(words[:3])} failed with exit code {done.returncode} and said: {said}")
    return without_colours(done.stdout)
