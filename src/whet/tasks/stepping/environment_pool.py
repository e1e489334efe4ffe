"""The environments of a task: in this process where the task is packaged, else in worker processes with limits."""

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from whet.errors import UserError
from whet.imports import is_object
from whet.records import Example
from whet.tasks.grading.graders import LOAD_LIMIT_SECONDS
from whet.tasks.grading.wire import WorkerSetup
from whet.tasks.loading import GuardedTask
from whet.tasks.protocol import Task, has_environment
from whet.tasks.selection.mixture import MixedTasks
from whet.tasks.stepping.in_process import OwnEnvironments
from whet.tasks.stepping.one_worker import OneWorker
from whet.tasks.stepping.replies import Environments, Reply

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Of the processes of a user's environments; in a recipe those of its rewards."""

    time_limit_seconds: float = 60.0  # for one answer
    memory_limit_gb: float | None = 16.0  # of each process
    workers: int = 1
    variables: tuple[str, ...] = ()  # secrets that they get


class WorkerEnvironments:
    """Conversations dealt out to several workers, which answer side by side."""

    is_instant = False

    def __init__(self, workers: Sequence[OneWorker]) -> None:
        self._workers = workers
        self._threads = ThreadPoolExecutor(len(workers), thread_name_prefix="environment")

    def begin(self, examples: Sequence[Example]) -> list[Reply]:
        found = self._everywhere(OneWorker.begin, dict(enumerate(examples)))
        return [found[number] for number in range(len(examples))]

    def step(self, texts: Mapping[int, str]) -> dict[int, Reply]:
        return self._everywhere(OneWorker.step, texts)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._threads.shutdown()

    def _everywhere(
        self, ask: Callable[[OneWorker, Mapping[int, T]], dict[int, Reply]], given: Mapping[int, T]
    ) -> dict[int, Reply]:
        """Every worker asked for its share; after an interrupt all of their processes are ended."""
        count = len(self._workers)
        shares = [{number: one for number, one in given.items() if number % count == which} for which in range(count)]
        waiting = [
            self._threads.submit(copy_context().run, ask, worker, share)
            for worker, share in zip(self._workers, shares, strict=True)
        ]
        try:
            answers = [one.result() for one in waiting]
        except BaseException:
            for worker in self._workers:
                worker.abandon()
            for one in waiting:
                one.exception()  # waits until its thread is free
            raise
        return {number: reply for some in answers for number, reply in some.items()}


def environments_of(task: Task, limits: Limits) -> Environments | None:
    """The environments of a task; None if its rollouts are single answers. Workers start when they are first asked."""
    if isinstance(task, MixedTasks) and any(map(has_environment, task.parts.values())):
        names = ", ".join(label for label, one in task.parts.items() if has_environment(one))
        raise UserError(
            f"task {task.name}: {names} {'are' if ',' in names else 'is'} played in turns with an environment, which a "
            "mixture or a curriculum cannot mix with other tasks: train on one such task"
        )
    make: Any = getattr(task, "environment", None)
    if not callable(make):
        return None
    if not isinstance(task, GuardedTask) or is_object(task.name):
        return OwnEnvironments(make)
    setup = WorkerSetup(
        task=task.name,
        options=task.options,
        rewards=(),
        load_limit_seconds=LOAD_LIMIT_SECONDS,
        time_limit_seconds=limits.time_limit_seconds,
        memory_limit_gb=limits.memory_limit_gb,
        may_abstain=False,
        path=tuple(sys.path),
    )
    return WorkerEnvironments([OneWorker(setup, limits.variables) for _ in range(limits.workers)])
