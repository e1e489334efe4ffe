"""The lock of a run directory: at most one writing process."""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from whet.errors import UserError

# POSIX locks, not flock: a forked worker that outlives a killed trainer must not keep the run locked. They do not
# conflict within a process, and closing any handle of the file releases them, hence this table.
_held: weakref.WeakValueDictionary[tuple[int, int], WriterLock] = weakref.WeakValueDictionary()


class WriterLock:
    """Released by `release`, by garbage collection, and by the end of the process."""

    def __init__(self, path: Path) -> None:
        """Locks a file of the run's directory; the error names the process that holds it."""
        if path.exists() and _identity(path) in _held:
            raise _refusal(path.parent, str(os.getpid()))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._close = weakref.finalize(self, os.close, file)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip()
            self._close()
            raise _refusal(path.parent, holder or "(unknown)") from error
        with suppress(OSError):  # only for the error above; a full disk must not prevent a resume
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._identity = _identity(path)
        _held[self._identity] = self

    def release(self) -> None:
        _held.pop(self._identity, None)
        self._close()


def is_held(path: Path) -> bool:
    """Whether a process, this one included, writes the run of this lock."""
    if not path.is_file():
        return False
    if _identity(path) in _held:  # not opened: closing it would release the lock of this process
        return True
    with path.open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
    return False


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _refusal(run: Path, holder: str) -> UserError:
    return UserError(f"run {run} is being written by process {holder}; stop it or wait for it to end")
