"""Tickets: which draw of prompts is sampled with which weights, and in what order. Imports no torch, knows no process.

A ticket is (draw, version). Step t has the weights of version t − 1. It tops the outstanding tickets up to S + 1, each
new one of version t − 1, and consumes them in the order of their draws; if it needs more than are outstanding, further
ones are of version t − 1 too. Every step consumes at least one, so a ticket waits at most S steps: its version is at
least t − 1 − S, and exactly that where each step consumes one.

A ticket is sampled in a fixed number of parts. With in-flight updates a part is sampled in segments, of which each has
the weights of one step more than the one before: segment j those of version v + j, where v is the ticket's. A step that
consumes the ticket before such weights exist takes its own.

`Tickets` depends on S and on how many draws each step consumes, and on nothing else; so do the versions of segments.
`Assignments` says which worker samples which part; that depends on timing, and no result depends on it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, order=True, slots=True)
class Ticket:
    """One draw of prompts, to be sampled with the weights of one version."""

    draw: int
    version: int  # finished steps when it was issued


@dataclass(frozen=True, order=True, slots=True)
class Part:
    """Prompts of a draw that one worker samples at a time: the part `number`, from 0, of `of`."""

    draw: int
    number: int = 0
    of: int = 1

    def __str__(self) -> str:
        return f"draw {self.draw}" if self.of == 1 else f"part {self.number + 1} of {self.of} of draw {self.draw}"


def useful_workers(wanted: int, staleness: int, parts: int = 1) -> int:
    """How many of so many workers can have a part: no more than S + 1 tickets are outstanding."""
    return min(wanted, parts * (staleness + 1))


def divided(prompts: int, parts: int, batch: int) -> list[range]:
    """The prompts of each part. A part is whole batches of the engine, as far as there are as many of these as parts.

    A draw that is divided so is sampled in the batches of one that is not.
    """
    size = batch if -(-prompts // batch) >= parts else 1
    batches = -(-prompts // size)
    ends = [min(prompts, size * (number * batches // parts)) for number in range(parts + 1)]
    return [range(low, high) for low, high in pairwise(ends)]


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
    """Which worker has which part; the part of a lost worker goes to the next one that is free.

    A part waits until the weights that it is to be sampled with are published.
    """

    def __init__(self) -> None:
        self.newest = -1  # the last published version
        self._waiting: list[Part] = []  # a heap: the earliest draw first
        self._early: dict[Part, int] = {}  # part → the version that it waits for
        self._working: dict[int, Part] = {}  # worker → its part
        self._versions: dict[Part, tuple[int, int]] = {}  # unfinished part → of this segment, and of its last one
        self._due: set[int] = set()  # draws that a step waits for
        self.losses: Counter[Part] = Counter()  # part → workers that were lost with it

    @property
    def versions(self) -> set[int]:
        """Published versions of the weights that workers still need."""
        needed = (range(first, last + 1) for first, last in self._versions.values())
        return {version for some in needed for version in some if version <= self.newest}

    def publish(self, version: int) -> None:
        """The weights of a version are there."""
        self.newest = version
        self._ripen()

    def add(self, part: Part, version: int, last: int | None = None) -> None:
        """A part to be sampled with a version; `last` is that of its last segment, if more follow."""
        self._versions[part] = version, max(version, version if last is None else last)
        self._early[part] = version
        self._ripen()

    def due(self, draw: int) -> None:
        """A step waits for the draw: what is left of it is sampled with the newest weights at most."""
        self._due.add(draw)
        self._ripen()

    def _ripen(self) -> None:
        for part, version in list(self._early.items()):
            if version <= self.newest or part.draw in self._due:
                del self._early[part]
                self._versions[part] = min(version, self.newest), self._versions[part][1]
                heapq.heappush(self._waiting, part)

    def give(self, worker: int) -> tuple[Part, int] | None:
        """A part for a free worker, and the version to sample it with; None if there is none."""
        assert worker not in self._working, f"worker {worker} has a part"
        if not self._waiting:
            return None
        part = heapq.heappop(self._waiting)
        self._working[worker] = part
        return part, self._versions[part][0]

    def finish(self, worker: int) -> Part:
        """The worker has sampled its part, or a segment of it."""
        part = self._working.pop(worker)
        del self._versions[part]
        return part

    def lose(self, worker: int) -> Part | None:
        """The worker is gone; its part waits again."""
        part = self._working.pop(worker, None)
        if part is not None:
            self.losses[part] += 1
            heapq.heappush(self._waiting, part)
        return part

    def is_early(self, part: Part) -> bool:
        """Whether the weights that a part is to be sampled with are not there yet."""
        return part in self._early
