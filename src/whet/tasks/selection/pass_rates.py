"""Pass-rate filtering: prompts that the policy always or never answers right are skipped for a while."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count as integers
from typing import Any

from whet.records import Example
from whet.tasks.space import epoch_places
from whet.tasks.stored import FittedTask, StoredTask


class PassRateTask(FittedTask):
    """A task of stored prompts that skips, for `rest_epochs` epochs, those whose newest pass rate is out of range.

    A prompt is in range if low < pass rate < high; one that was not yet sampled is.
    """

    def __init__(self, task: StoredTask, *, low: float, high: float, rest_epochs: int) -> None:
        super().__init__(task, task.sides)
        self._low, self._high, self._rest = low, high, rest_epochs
        self._next = 0  # number of the next row to look at, over all epochs
        self._resting: dict[str, int] = {}  # id → the epoch in which its pass rate was out of range

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        """The next prompts in range, in shuffled epochs; where none is, those that have rested longest."""
        training, run = self.sides[0], seed[:-1]
        found: list[Example] = []
        for number in integers(self._next):
            example = training[next(epoch_places(len(training), number, 1, "training", *run))]
            measured = self._resting.get(example.id)
            if measured is None or number // len(training) - measured > self._rest:
                found.append(example)
            if len(found) == count:
                self._next = number + 1
                return found
        raise AssertionError("a prompt rests for a number of epochs")

    def learn(self, passed: Sequence[tuple[str, bool]]) -> dict[str, float]:
        """Takes in which rollouts of a step were correct; gives the share of the prompts that rest."""
        by_prompt: dict[str, list[bool]] = defaultdict(list)
        for name, is_right in passed:
            by_prompt[name].append(is_right)
        epoch = max(0, self._next - 1) // len(self.sides[0])
        for name, some in by_prompt.items():
            self._resting.pop(name, None)
            if not self._low < sum(some) / len(some) < self._high:
                self._resting[name] = epoch
        return {"pass_rate/resting": len(self._resting) / len(self.sides[0])}

    def state(self) -> dict[str, Any]:
        return {"next": self._next, "resting": dict(self._resting)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._next, self._resting = state["next"], dict(state["resting"])
