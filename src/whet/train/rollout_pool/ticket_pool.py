"""The pool: one thread for each worker hands it parts of tickets and keeps its answers. Imports no torch.

The part of a lost worker is given to the next one that is free, and the worker is started again; the random streams
of a draw are named by its number, so the answer is the same. How many workers there are changes no answer. Knows no
process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from threading import Condition, Thread
from typing import TYPE_CHECKING, Protocol

from whet.errors import RunFailed
from whet.train.rollout_pool.schedule import Assignments, Part

if TYPE_CHECKING:
    from whet.train.rollout_pool.orders import Order

MOST_LOSSES = 5  # in a row of one worker, or with one part, before the run ends
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

    def __init__(
        self,
        make: Callable[[int], Worker],
        count: int,
        follow: Callable[[Order, bytes], Order | None] = lambda *_: None,
    ) -> None:
        """`make` gives the worker of a number, not started; `follow` what is left of a part after an answer."""
        self._make, self._follow = make, follow
        self._changed = Condition()  # guards everything below
        self._assignments = Assignments()
        self._orders: dict[Part, Order] = {}  # without an answer
        self._answers: dict[Part, list[bytes]] = {}  # of its segments
        self._weights: dict[int, tuple[str, str]] = {}  # version → file and seal
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
        """Workers join at once; those that leave finish what they sample first."""
        with self._changed:
            self._count = count
            for number in range(count):
                # One that was told to leave and has not noticed stays; one that is gone is replaced at the next call.
                if number not in self._threads:
                    self._threads[number] = Thread(target=self._serve, args=(number,), daemon=True)
                    self._threads[number].start()
            self._changed.notify_all()

    def publish(self, version: int, file: str, seal: str) -> None:
        """Weights that orders are sampled with from now on."""
        with self._changed:
            self._weights = {old: self._weights[old] for old in self._assignments.versions} | {version: (file, seal)}
            self._assignments.publish(version)
            self._changed.notify_all()

    def submit(self, order: Order) -> None:
        with self._changed:
            self._add(order)
            self._changed.notify_all()

    def answer(self, part: Part) -> list[bytes]:
        """Waits for the answers of a part, one for each segment; raises what ended a worker for good."""
        with self._changed:
            self._assignments.due(part.draw)
            self._changed.notify_all()
            self._wait_while(lambda: part in self._orders or part not in self._answers)
            return self._answers[part]

    def answer_so_far(self, part: Part) -> list[bytes]:
        """As `answer`, of the segments whose weights are there."""
        with self._changed:
            self._wait_while(lambda: part in self._orders and not self._assignments.is_early(part))
            return list(self._answers.get(part, ()))

    def forget_but(self, draws: Collection[int]) -> None:
        """Drops the answers of other draws. Not by `answer`: a signal may abandon a step that has just got one."""
        with self._changed:
            self._answers = {part: answer for part, answer in self._answers.items() if part.draw in draws}

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
        """The life of one worker's place: started, given orders, started again."""
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
                    self._keep(number, answer, self._follow(order, answer))
        except BaseException as error:  # noqa: BLE001 - raised in the main thread, by `answer`
            self._fail(error)
        finally:
            with self._changed:
                left = self._workers.pop(number, None)
                del self._threads[number]
            if left is not None:
                left.close()

    def _add(self, order: Order) -> None:
        self._orders[order.part] = order
        self._assignments.add(order.part, order.version, order.last_version)

    def _wait_while(self, is_open: Callable[[], bool]) -> None:
        while is_open():
            if self._failure is not None:
                raise self._failure
            self._changed.wait(NOTICE_SECONDS)

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
                given = self._assignments.give(number)
                if given is not None:
                    part, version = given
                    file, seal = self._weights[version]
                    return replace(self._orders[part], version=version, weights=file, seal=seal)
                self._changed.wait()
            return None

    def _keep(self, number: int, answer: bytes, following: Order | None) -> None:
        with self._changed:
            part = self._assignments.finish(number)
            self._answers.setdefault(part, []).append(answer)
            del self._orders[part]
            if following is not None:
                self._add(following)
            self._changed.notify_all()

    def _lose(self, number: int, worker: Worker | None, how: str, losses: int) -> None:
        """Gives the part back; ends the run if workers are lost again and again."""
        with self._changed:
            lost = self._workers.pop(number, worker)
            part = self._assignments.lose(number)
            times = 0 if part is None else self._assignments.losses[part]
            self._changed.notify_all()
        if lost is not None:
            lost.close()
        name = f"rollout worker {number} ({'not started' if lost is None else lost.name})"
        with self._changed:
            if self._count == 0:
                return
            told = "" if part is None else f"; {part} is sampled by another one"
            self._notes.append(f"{name} {how}{told}")
            if max(losses, times) >= MOST_LOSSES:
                said = "" if lost is None else lost.last_output
                self._failure = RunFailed(
                    f"{name} {how}, the {max(losses, times)}th time in a row"
                    f"{'' if part is None else f', in {part}'}; "
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
