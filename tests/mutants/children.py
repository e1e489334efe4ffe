"""Children that run one job each, several at a time, with limits: an endless loop ends, and so does what it started."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

J = TypeVar("J")
FEW_SECONDS = 10.0
MEMORY = 6 * 2**30  # bytes that a child may take beyond what it starts with
WAIT = 0.004


@dataclass(frozen=True, slots=True)
class Ended(Generic[J]):
    """How a child ended: its exit code, minus the signal, or None where the time was up."""

    job: J
    code: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class _Running(Generic[J]):
    job: J
    start: float
    limit: float


def children(
    jobs: Iterable[J], work: Callable[[J], int], *, workers: int, seconds: Callable[[J], float], log: Path | None = None
) -> Iterator[Ended[J]]:
    """Runs `work` in a fork for each job. `seconds`: the processor time that it may take, and a sixth of the wait."""
    waiting, running = iter(jobs), dict[int, _Running[J]]()
    is_over = False
    while running or not is_over:
        while not is_over and len(running) < workers:
            job = next(waiting, None)
            if job is None:
                is_over = True
                break
            limit = max(FEW_SECONDS, seconds(job))
            sys.stdout.flush()
            running[_fork(work, job, limit, log)] = _Running(job, time.monotonic(), 6 * limit)
        yield from _ended(running)
        if running:
            time.sleep(WAIT)


def _ended(running: dict[int, _Running[J]]) -> Iterator[Ended[J]]:
    for child, one in list(running.items()):
        taken = time.monotonic() - one.start
        found, status = os.waitpid(child, os.WNOHANG)
        is_late = not found and taken > one.limit
        if found or is_late:
            _kill_group(child)
            if is_late:
                os.waitpid(child, 0)
            code = None if is_late else os.waitstatus_to_exitcode(status)
            del running[child]
            yield Ended(one.job, None if code == -signal.SIGXCPU else code, taken)


def _kill_group(child: int) -> None:
    """The child and what it has started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _fork(work: Callable[[J], int], job: J, limit: float, log: Path | None) -> int:
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 3))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        taken = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
        output = os.open(os.devnull if log is None else log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = work(job)
    except BaseException:  # noqa: BLE001 - the parent must hear of it, whatever it is
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
