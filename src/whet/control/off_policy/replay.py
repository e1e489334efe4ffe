"""The replay buffer: the newest transitions of several copies of an environment, and draws from them.

Time counts the steps that every copy has taken. The transition of a time stands in a ring, behind those of the time
before. What is drawn depends on the buffer's contents and the random numbers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.control.off_policy.hindsight import Goals
from whet.control.spaces import Floats

Places = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]
BLOCK = 32_768  # transitions, at most, of a block: what is saved is saved block by block
UNKNOWN = -1  # the end of an episode that is under way


@dataclass(frozen=True, kw_only=True, slots=True)
class Transitions:
    """n transitions as rows."""

    observations: Floats  # (n, D)
    actions: Floats  # (n, K) in [−1, 1]
    rewards: Floats  # (n,)
    next_observations: Floats  # (n, D) those after the action, also where it ended the episode
    terminated: NDArray[np.bool_]  # (n,) not where the episode was truncated


class ReplayBuffer:
    """A ring of the newest `capacity` transitions, the same number of every copy."""

    def __init__(self, capacity: int, copies: int, *, width: int, actions: int) -> None:
        self.copies, self.count = copies, 0  # count: times so far
        self.length = max(1, capacity // copies)  # times that are drawn from
        self.block = max(1, min(BLOCK // copies, self.length))
        # Room for whole blocks around the newest times, so that blocks are in memory as long as they are saved.
        slots = (-(-self.length // self.block) + 1) * self.block
        self._slots = slots
        self.arrays: dict[str, NDArray[Any]] = {
            "observations": np.zeros((slots, copies, width), np.float32),
            "actions": np.zeros((slots, copies, actions), np.float32),
            "rewards": np.zeros((slots, copies), np.float32),
            "next_observations": np.zeros((slots, copies, width), np.float32),
            "terminated": np.zeros((slots, copies), np.bool_),
            "ended": np.zeros((slots, copies), np.bool_),  # terminated or truncated
        }
        self._last = np.full((slots, copies), UNKNOWN, np.int64)  # the time at which the episode ended
        self._began = np.zeros(copies, np.int64)  # the first time of the episode under way

    @property
    def oldest(self) -> int:
        """The first time that is drawn from."""
        return max(0, self.count - self.length)

    @property
    def size(self) -> int:
        """Transitions that are there."""
        return (self.count - self.oldest) * self.copies

    @property
    def bytes(self) -> int:
        """Of all that is saved of a full buffer."""
        return sum(one.nbytes for one in self.arrays.values()) * self.length // self._slots

    def add(self, **rows: NDArray[Any]) -> None:
        """One transition of every copy."""
        slot = self.count % self._slots
        for name, array in self.arrays.items():
            array[slot] = rows[name]
        self._last[slot] = UNKNOWN
        self.count += 1
        for copy in np.flatnonzero(rows["ended"]).tolist():
            self._end(copy, self.count - 1)

    def _end(self, copy: int, time: int) -> None:
        """The episode of this copy ended with the step at `time`."""
        first = max(self._began[copy], time + 1 - self._slots)
        self._last[np.arange(first, time + 1) % self._slots, copy] = time
        self._began[copy] = time + 1

    def can_draw(self, *, finished: bool) -> bool:
        """Whether there is a transition, of a finished episode if so asked."""
        return self.count > 0 and (not finished or int(self._began.max()) > self.oldest)

    def draw(self, count: int, rng: np.random.Generator) -> Transitions:
        """Transitions, each as likely as any other, with replacement."""
        times = rng.integers(self.oldest, self.count, size=count)
        return self._at(times, rng.integers(self.copies, size=count))

    def draw_hindsight(self, count: int, rng: np.random.Generator, goals: Goals, *, share: float) -> Transitions:
        """Transitions of finished episodes; a share of them has a goal that is achieved later in the same episode."""
        oldest, there = self.oldest, np.maximum(0, self._began - self.oldest)
        ends = there.cumsum()
        places = rng.integers(ends[-1], size=count)
        copies = ends.searchsorted(places, side="right")
        times = oldest + places - (ends[copies] - there[copies])
        found = self._at(times, copies)
        changed = round(share * count)
        times, copies = times[:changed], copies[:changed]
        later = rng.integers(times, self._last[times % self._slots, copies] + 1)
        achieved = self.arrays["next_observations"][later % self._slots, copies][:, goals.achieved]
        found.observations[:changed, goals.desired] = achieved
        found.next_observations[:changed, goals.desired] = achieved
        found.rewards[:changed] = goals.rewards(found.next_observations[:changed])
        return found

    def _at(self, times: Places, copies: Places) -> Transitions:
        slots = times % self._slots
        return Transitions(**{name: self.arrays[name][slots, copies] for name in Transitions.__slots__})

    def last_episode(self, copy: int) -> Transitions:
        """The newest finished episode of a copy, as far as it is there."""
        end = int(self._began[copy]) - 1
        first = end
        while first > self.oldest and self._last[(first - 1) % self._slots, copy] == end:
            first -= 1
        times = np.arange(first, end + 1)
        return self._at(times, np.full(len(times), copy))

    def blocks(self) -> range:
        """The numbers of the blocks that have what is drawn from."""
        return range(self.oldest // self.block, -(-self.count // self.block))

    def is_full(self, number: int) -> bool:
        """Whether nothing will be added to a block."""
        return (number + 1) * self.block <= self.count

    def read_block(self, number: int) -> dict[str, NDArray[Any]]:
        """The arrays of a block, as far as it is filled."""
        times = slice(number * self.block % self._slots, None)
        count = min(self.block, self.count - number * self.block)
        return {name: array[times][:count] for name, array in self.arrays.items()}

    def write_block(self, number: int, arrays: Arrays) -> None:
        """Puts back what `read_block` gave; blocks are put back in their order."""
        first = number * self.block
        count = len(arrays["ended"])
        for name, array in self.arrays.items():
            array[first % self._slots :][:count] = arrays[name]
        self._last[first % self._slots :][:count] = UNKNOWN
        if self.count == 0:
            self._began[:] = first
        self.count = first + count
        for place, copy in np.argwhere(arrays["ended"]).tolist():
            self._end(copy, first + place)
