"""Several workers that score the shares of a batch at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from itertools import groupby, pairwise
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Protocol, TypeVar

from whet.records import Example, Sampled, Score
from whet.tasks.protocol import Awaited

T = TypeVar("T")


class Cancelled(Exception):
    """The batch was abandoned, and its worker killed."""


class Worker(Protocol):
    """A grader with a process of its own."""

    def start(self) -> None: ...

    def grade(
        self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None
    ) -> list[Score]: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="reward")


class WorkerPool:
    """Scores shares of whole prompts in whichever worker is free.

    Which prompts make a share depends on their number alone, so a function sees the same batches however fast the
    workers are, and however many join or leave.
    """

    def __init__(self, make: Callable[[], Worker], count: int, prompts_per_call: int | None) -> None:
        """`make` gives a worker, not started. `prompts_per_call`: the size of a share; None: `count` shares."""
        self._make, self._shares, self._prompts_per_call = make, count, prompts_per_call
        self._lock = Lock()  # guards the next three
        self._workers = [make() for _ in range(count)]
        self._leaving = 0  # how many of them end when they are free
        self._threads = _threads(count)
        self._free: SimpleQueue[Worker] = SimpleQueue()
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
        """New workers load with their first share; those that leave finish theirs first."""
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

    def shares(self, prompts: int) -> list[range]:
        size = self._prompts_per_call
        if size is not None:
            return [range(first, min(first + size, prompts)) for first in range(0, prompts, size)]
        count = min(self._shares, prompts)
        bounds = [prompts * share // count for share in range(count + 1)] if count else [0]
        return [range(low, high) for low, high in pairwise(bounds)]

    def submit(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> Awaited:
        self._look()
        future = self._begin(self._grade, examples, texts, sampled)
        return lambda: self._wait([future])[0]

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        if len(examples) != len(texts):
            raise ValueError(f"{len(examples)} examples and {len(texts)} texts")
        self._look()
        prompts = [list(rows) for _, rows in groupby(range(len(examples)), key=lambda row: examples[row].id)]
        waiting = []
        for share in self.shares(len(prompts)):
            rows = [row for prompt in share for row in prompts[prompt]]
            of_rows = None if sampled is None else sampled.rows(rows)
            share_of = [examples[row] for row in rows], [texts[row] for row in rows], of_rows
            waiting.append(self._begin(self._grade, *share_of))
        return [score for scores in self._wait(waiting) for score in scores]

    def close(self) -> None:
        """Ends all workers, also in the middle of a batch."""
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

    def _grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> list[Score]:
        worker = self._free.get()
        try:
            return worker.grade(examples, texts, sampled)
        finally:
            self._release(worker)

    def _release(self, worker: Worker) -> None:
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
