"""Several workers that score the shares of a batch at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import groupby, pairwise
from queue import SimpleQueue
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


class WorkerPool:
    """Scores shares of whole prompts in whichever worker is free.

    Which prompts make a share depends on their number alone, so a function sees the same batches however fast the
    workers are.
    """

    def __init__(self, workers: Sequence[Worker], prompts_per_call: int | None) -> None:
        """`prompts_per_call`: the size of a share; None: as many shares as workers."""
        self._workers, self._prompts_per_call = workers, prompts_per_call
        self._free: SimpleQueue[Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(len(workers), thread_name_prefix="reward")
        for worker in workers:
            self._free.put(worker)

    def start(self) -> None:
        """Starts all workers at the same time; raises the error of the first that does not load."""
        self._wait([self._begin(worker.start) for worker in self._workers])

    def shares(self, prompts: int) -> list[range]:
        size = self._prompts_per_call
        if size is not None:
            return [range(first, min(first + size, prompts)) for first in range(0, prompts, size)]
        count = min(len(self._workers), prompts)
        bounds = [prompts * share // count for share in range(count + 1)] if count else [0]
        return [range(low, high) for low, high in pairwise(bounds)]

    def submit(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> Awaited:
        future = self._begin(self._grade, examples, texts, sampled)
        return lambda: self._wait([future])[0]

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        if len(examples) != len(texts):
            raise ValueError(f"{len(examples)} examples and {len(texts)} texts")
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
        for worker in self._workers:
            worker.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def _grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> list[Score]:
        worker = self._free.get()  # there are as many threads as workers
        try:
            return worker.grade(examples, texts, sampled)
        finally:
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
