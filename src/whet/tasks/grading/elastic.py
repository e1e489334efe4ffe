"""Workers of which each serves one call at a time; others join and leave while calls go on."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Cancelled(Exception):
    """The call was abandoned, and its worker killed."""


class Serving(Protocol):
    """A worker with a process of its own."""

    def start(self) -> None:
        """Loads what it works with, if it is not running."""
        ...

    def cancel(self) -> None:
        """Ends the call under way in another thread, which raises `Cancelled`."""
        ...

    def close(self) -> None: ...


W = TypeVar("W", bound=Serving)


def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="reward")


class ElasticPool(Generic[W]):
    """Gives each call to whichever worker is free."""

    def __init__(self, make: Callable[[], W], count: int) -> None:
        """`make` gives a worker, not started."""
        self._make = make
        self._lock = Lock()  # guards the next three
        self._workers = [make() for _ in range(count)]
        self._leaving = 0  # how many of them end when they are free
        self._threads = _threads(count)
        self._free: SimpleQueue[W] = SimpleQueue()
        self._wanted: Callable[[], int | None] = lambda: None
        for worker in self._workers:
            self._free.put(worker)

    def start(self) -> None:
        """Starts all workers at the same time; raises the error of the first that does not load."""
        self._wait([self._begin(worker.start) for worker in self._workers])

    def follow(self, wanted: Callable[[], int | None]) -> None:
        """Asks before every batch for another number of workers; None: as many as before."""
        self._wanted = wanted

    def resize(self, count: int) -> None:
        """New workers load with their first call; those that leave finish theirs first."""
        with self._lock:
            missing = count - (len(self._workers) - self._leaving)
            stay = min(max(missing, 0), self._leaving)
            self._leaving -= stay
            joining = [self._make() for _ in range(missing - stay)]
            self._workers += joining
            self._leaving += max(-missing, 0)
            before, self._threads = self._threads, _threads(len(self._workers))
        before.shutdown(wait=False)  # what was given to it is finished
        for worker in joining:
            self._free.put(worker)
        with suppress(Empty):  # busy ones leave later
            while self._leaving:
                self._release(self._free.get_nowait())

    def close(self) -> None:
        """Ends all workers, also in the middle of a call."""
        with self._lock:
            workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in workers:
            worker.close()

    def _look(self) -> None:
        if (count := self._wanted()) is not None:
            self.resize(count)

    def _serve(self, call: Callable[[W], T]) -> T:
        """Waits for a free worker, in a thread of the pool."""
        worker = self._free.get()
        try:
            return call(worker)
        finally:
            self._release(worker)

    def _release(self, worker: W) -> None:
        """Back to the free ones, or out."""
        with self._lock:
            leaves = self._leaving > 0
            if leaves:
                self._leaving -= 1
                self._workers.remove(worker)
        if leaves:
            worker.close()
        else:
            self._free.put(worker)

    def _begin(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        return self._threads.submit(copy_context().run, work, *arguments)  # with the log for what functions print

    def _wait(self, futures: Sequence[Future[T]]) -> list[T]:
        """All results, in order; after an error or an interrupt no worker goes on."""
        try:
            return [future.result() for future in futures]
        except BaseException:
            self.close()
            raise
