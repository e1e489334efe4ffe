"""The pool: one thread for each worker hands it tickets and keeps its answers. Imports no torch, knows no process.

The ticket of a lost worker is given to the next one that is free, and the worker is started again; the random streams
of a draw are named by its number, so the answer is the same. How many workers there are changes no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import Condition, Thread
from typing import TYPE_CHECKING, Protocol

from whet.errors import RunFailed
from whet.train.rollout_pool.schedule import Assignments

if TYPE_CHECKING:
    from whet.train.rollout_pool.orders import Order

MOST_LOSSES = 5  # in a row of one worker, or with one ticket, before the run ends
PAUSE_SECONDS = 1.0  # before a worker is started again, for every loss in a row but the first
NOTICE_SECONDS = 1.0  # how often a waiting main thread looks for signals
EXIT_SECONDS = 10.0


class WorkerLost(Exception):
    """The worker was killed, crashed, does not answer, or is out of reach; the message says which."""


class NoPlace(WorkerLost):
    """The worker could not be placed: no node has room for it now. Others go on without it."""


class Worker(Protocol):
    """A sampler in another process. `sample` and `start` are called by one thread, `end` by any."""

    @property
    def name(self) -> str:
        """As a user can find it: a process id, a node."""
        ...

    @property
    def last_output(self) -> str:
        """The end of what it printed."""
        ...

    def start(self) -> None:
        """Builds its model. Raises WorkerLost, or RunFailed if no other worker could do better."""
        ...

    def sample(self, order: Order) -> bytes:
        """The packed answer. Raises as `start`."""
        ...

    def end(self) -> None:
        """Ends it at once, also in the middle of an order."""
        ...

    def close(self) -> None:
        """Ends it and releases what it holds here; by the thread that started it."""
        ...


class RolloutPool:
    """Workers that sample orders, in any order of time; `answer` waits for one."""

    def __init__(self, make: Callable[[int], Worker], count: int) -> None:
        """`make` gives the worker of a number, not started."""
        self._make = make
        self._changed = Condition()  # guards everything below
        self._assignments = Assignments()
        self._orders: dict[int, Order] = {}  # draw → order without an answer
        self._answers: dict[int, bytes] = {}
        self._workers: dict[int, Worker] = {}
        self._threads: dict[int, Thread] = {}
        self._notes: list[str] = []
        self._failure: BaseException | None = None
        self._count = 0
        self.resize(count)

    @property
    def versions(self) -> set[int]:
        """Versions of the weights that are still needed."""
        with self._changed:
            return self._assignments.versions

    def resize(self, count: int) -> None:
        """Workers join at once; those that leave finish their ticket first."""
        with self._changed:
            self._count = count
            for number in range(count):
                # One that was told to leave and has not noticed stays; one that is gone is replaced at the next call.
                if number not in self._threads:
                    self._threads[number] = Thread(target=self._serve, args=(number,), daemon=True)
                    self._threads[number].start()
            self._changed.notify_all()

    def submit(self, order: Order) -> None:
        with self._changed:
            self._orders[order.ticket.draw] = order
            self._assignments.add(order.ticket)
            self._changed.notify_all()

    def answer(self, draw: int) -> bytes:
        """Waits for the answer of a draw; raises what ended a worker for good."""
        with self._changed:
            while draw not in self._answers:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(NOTICE_SECONDS)
            return self._answers[draw]

    def forget_but(self, draws: Collection[int]) -> None:
        """Drops the answers of other draws. Not by `answer`: a signal may abandon a step that has just got one."""
        with self._changed:
            self._answers = {draw: answer for draw, answer in self._answers.items() if draw in draws}

    def notes(self) -> list[str]:
        """What happened to workers since the last call."""
        with self._changed:
            notes, self._notes = self._notes, []
            return notes

    def close(self) -> None:
        """Ends all workers, also in the middle of an order."""
        with self._changed:
            self._count = 0
            workers, threads = list(self._workers.values()), list(self._threads.values())
            self._changed.notify_all()
        for worker in workers:
            worker.end()
        for thread in threads:
            thread.join(EXIT_SECONDS)

    def _serve(self, number: int) -> None:
        """The life of one worker's place: started, given tickets, started again."""
        losses, worker = 0, None
        try:
            while self._is_wanted(number):
                try:
                    if worker is None:
                        worker = self._hire(number)
                    order = self._next(number)
                    if order is None:
                        break
                    answer = worker.sample(order)
                except NoPlace as error:
                    self._miss(number, str(error))
                    worker = None
                except WorkerLost as error:
                    losses += 1
                    self._lose(number, worker, str(error), losses)
                    worker = None
                else:
                    losses = 0
                    self._keep(number, answer)
        except BaseException as error:  # noqa: BLE001 - raised in the main thread, by `answer`
            self._fail(error)
        finally:
            with self._changed:
                left = self._workers.pop(number, None)
                del self._threads[number]
            if left is not None:
                left.close()

    def _is_wanted(self, number: int) -> bool:
        with self._changed:
            return number < self._count and self._failure is None

    def _hire(self, number: int) -> Worker:
        worker = self._make(number)
        with self._changed:
            self._workers[number] = worker  # before it is started, so that `close` ends it
        worker.start()
        return worker

    def _next(self, number: int) -> Order | None:
        """Waits for an order; None if the worker is to leave."""
        with self._changed:
            while number < self._count and self._failure is None:
                ticket = self._assignments.give(number)
                if ticket is not None:
                    return self._orders[ticket.draw]
                self._changed.wait()
            return None

    def _keep(self, number: int, answer: bytes) -> None:
        with self._changed:
            ticket = self._assignments.finish(number)
            del self._orders[ticket.draw]
            self._answers[ticket.draw] = answer
            self._changed.notify_all()

    def _lose(self, number: int, worker: Worker | None, how: str, losses: int) -> None:
        """Gives the ticket back; ends the run if workers are lost again and again."""
        with self._changed:
            lost = self._workers.pop(number, worker)
            ticket = self._assignments.lose(number)
            times = 0 if ticket is None else self._assignments.losses[ticket.draw]
            self._changed.notify_all()
        if lost is not None:
            lost.close()
        name = f"rollout worker {number} ({'not started' if lost is None else lost.name})"
        with self._changed:
            if self._count == 0:
                return
            told = "" if ticket is None else f"; draw {ticket.draw} is sampled by another one"
            self._notes.append(f"{name} {how}{told}")
            if max(losses, times) >= MOST_LOSSES:
                said = "" if lost is None else lost.last_output
                self._failure = RunFailed(
                    f"{name} {how}, the {max(losses, times)}th time in a row"
                    f"{'' if ticket is None else f', in draw {ticket.draw}'}; "
                    + (f"its last output: {said}" if said else "it printed nothing")
                )
                self._changed.notify_all()
            elif losses > 1:
                self._changed.wait_for(lambda: self._count == 0, PAUSE_SECONDS * (losses - 1))

    def _miss(self, number: int, why: str) -> None:
        """A worker found no place: the run goes on as long as it has others."""
        with self._changed:
            missing = self._workers.pop(number, None)
            if not self._workers and self._count:
                raise RunFailed(f"no rollout worker could be started: worker {number} {why}")
            self._notes.append(f"rollout worker {number} {why}; the others go on, and it is tried again")
        if missing is not None:
            missing.close()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
