"""Tickets: which draw of prompts is sampled with which weights, and in what order. Imports no torch, knows no process.

A ticket is (draw, version). Step t has the weights of version t − 1. It tops the outstanding tickets up to S + 1, each
new one of version t − 1, and consumes them in the order of their draws; if it needs more than are outstanding, further
ones are of version t − 1 too. Every step consumes at least one, so a ticket waits at most S steps: its version is at
least t − 1 − S, and exactly that where each step consumes one.

`Tickets` depends on S and on how many draws each step consumes, and on nothing else. `Assignments` says which worker
samples which ticket; that depends on timing, and no result depends on it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Ticket:
    """One draw of prompts, to be sampled with the weights of one version."""

    draw: int
    version: int  # finished steps when it was issued


def useful_workers(wanted: int, staleness: int) -> int:
    """How many of so many workers can have a ticket: no more than S + 1 are outstanding, and each is one worker's."""
    return min(wanted, staleness + 1)


class Tickets:
    """Issues tickets and hands them out in order."""

    def __init__(self, staleness: int, outstanding: Iterable[Ticket] = ()) -> None:
        """`staleness`: S, the most steps by which a rollout's weights are older than those that learn from it."""
        self.staleness = staleness
        self._outstanding = deque(sorted(outstanding))
        self._step = 0

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Issued and not yet consumed, in order."""
        return tuple(self._outstanding)

    def take(self, step: int, next_draw: Callable[[], int]) -> tuple[Ticket, list[Ticket]]:
        """The next ticket that this step consumes, and the tickets that are to be issued before it is waited for."""
        wanted = 1 if step == self._step else self.staleness + 1
        self._step = step
        issued = [Ticket(next_draw(), step - 1) for _ in range(wanted - len(self._outstanding))]
        self._outstanding += issued
        ticket = self._outstanding.popleft()
        assert 0 <= step - 1 - ticket.version <= self.staleness, f"{ticket} in step {step}"
        return ticket, issued


class Assignments:
    """Which worker has which ticket; the ticket of a lost worker goes to the next one that is free."""

    def __init__(self) -> None:
        self._waiting: list[Ticket] = []  # a heap: the earliest draw first
        self._working: dict[int, Ticket] = {}  # worker → its ticket
        self.losses: Counter[int] = Counter()  # draw → workers that were lost with it

    @property
    def versions(self) -> set[int]:
        """Versions of the weights that workers still need."""
        return {ticket.version for ticket in (*self._waiting, *self._working.values())}

    def add(self, ticket: Ticket) -> None:
        heapq.heappush(self._waiting, ticket)

    def give(self, worker: int) -> Ticket | None:
        """A ticket for a free worker; None if there is none."""
        assert worker not in self._working, f"worker {worker} has a ticket"
        if not self._waiting:
            return None
        ticket = heapq.heappop(self._waiting)
        self._working[worker] = ticket
        return ticket

    def finish(self, worker: int) -> Ticket:
        """The worker has sampled its ticket."""
        return self._working.pop(worker)

    def lose(self, worker: int) -> Ticket | None:
        """The worker is gone; its ticket waits again."""
        ticket = self._working.pop(worker, None)
        if ticket is not None:
            self.losses[ticket.draw] += 1
            self.add(ticket)
        return ticket
