"""What processes that run a user's code have in common: their pipes, their limits, and the order of a service.

The user's code runs in the main thread, as libraries with signal-based timeouts require. A second thread reads
standard input and ends the process when the parent is gone. A watchdog that does not need the interpreter lock ends it
when a call exceeds its time and no parent is left to kill it. A forked copy that returns reports that and exits.
"""

import faulthandler
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TextIO, TypeVar

from whet.errors import UserError
from whet.tasks.grading.reward_functions import alarms_end
from whet.tasks.grading.wire import OUT_OF_MEMORY, unpack_setup

T = TypeVar("T")
GRACE_SECONDS = 5.0  # a living parent kills first


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbox:
    """The pipe for replies."""

    stream: TextIO
    owner: int  # process id

    def send(self, request: int, message: Mapping[str, Any]) -> None:
        is_copy = os.getpid() != self.owner
        content = {"forked": True} if is_copy else message
        try:
            self.stream.write(json.dumps({**content, "request": request}) + "\n")
            self.stream.flush()
        except OSError:
            os._exit(1)  # the user's code closed the pipe
        if is_copy:
            os._exit(0)


class Service:
    """The worker's side of the protocol: the setup, what it names, then requests."""

    def __init__(self) -> None:
        self._inbox, self._outbox, self._nowhere = claim_pipes()
        self.setup = unpack_setup(self._inbox.get())
        sys.path.extend(entry for entry in self.setup.path if entry not in sys.path)
        _limit_memory(self.setup.memory_limit_gb)

    def loaded(self, load: Callable[[], T]) -> T:
        """What the setup names; where the user is to blame, the sentence is sent and the process ends."""
        try:
            self._watch(self.setup.load_limit_seconds)
            with alarms_end():
                return load()
        except UserError as error:
            if isinstance(error.__cause__, MemoryError):
                raise error.__cause__ from None
            self.send(0, {"user_error": str(error)})
            os._exit(0)  # a normal exit would wait for the reading thread

    def requests(self, *, wants_samples: bool) -> Iterator[dict[str, Any]]:
        """Says that the worker is ready; then the requests, until standard input ends."""
        self.send(0, {"ready": True, "wants_samples": wants_samples})
        while True:
            faulthandler.cancel_dump_traceback_later()
            yield self._inbox.get()

    def begin_call(self) -> None:
        """Gives the user's code the time of one call from now on."""
        self._watch(self.setup.time_limit_seconds)

    def send(self, request: int, message: Mapping[str, Any]) -> None:
        self._outbox.send(request, message)

    def _watch(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=self._nowhere)


def run(serve: Callable[[], None]) -> None:
    """The whole life of a worker."""
    try:
        serve()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # a message would need memory


def _limit_memory(limit_gb: float | None) -> None:
    """Makes allocations fail beyond the limit.

    Not RLIMIT_AS, which also counts address space that CUDA, torch's allocators and mapped files only reserve.
    """
    if limit_gb is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(limit_gb * 1e9) if hard == resource.RLIM_INFINITY else min(int(limit_gb * 1e9), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def claim_pipes() -> tuple[SimpleQueue[dict[str, Any]], Outbox, TextIO]:
    """Reserves the pipes for the protocol; the user's code prints to standard error and reads nothing.

    Standard error is the terminal, or a pipe to the log of the run.
    """
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115 - kept open for the watchdog
    os.dup2(nowhere.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read, args=(requests, inbox), daemon=True).start()
    return inbox, Outbox(stream=replies, owner=os.getpid()), nowhere


def _read(requests: TextIO, inbox: SimpleQueue[dict[str, Any]]) -> None:
    try:
        for line in requests:
            inbox.put(json.loads(line))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with processes that the user's code started
    os._exit(0)
