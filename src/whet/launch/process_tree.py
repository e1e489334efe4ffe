"""The processes below this one, by Linux's /proc; elsewhere none are seen."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def adopt_orphans() -> None:
    """From now on processes below this one whose parent dies become its children, so that it can end them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def children(process: int) -> list[int]:
    """The processes that this process started, or adopted."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            # The name of a program is in brackets, and may hold spaces and brackets.
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == process and state != "Z":
                found.append(int(entry.parent.name))
    return sorted(found)


def ending_in(words: Sequence[str]) -> list[int]:
    """The processes whose command lines end in these words."""
    last = b"\0" + b"".join(word.encode() + b"\0" for word in words)
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if line.read_bytes().endswith(last):
                found.append(int(line.parent.name))
    return sorted(found)


def end_children() -> None:
    """Kills everything below this process, generation by generation."""
    while left := children(os.getpid()):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in left:
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
