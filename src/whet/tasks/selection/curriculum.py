"""A difficulty curriculum: a task whose level rises when the policy passes the current one often enough."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from whet.errors import UserError
from whet.records import Example
from whet.tasks.loading import find_task, guarded_task, is_packaged, task_options
from whet.tasks.selection.mixture import MixedTasks


class LevelledTask(MixedTasks):
    """Draws from one level at a time; holds out the same number of examples of every level.

    The level is raised by one when, of the newest `window` rollouts at it, a share of `promote_at` or more is correct.
    """

    def __init__(self, name: str, options: Mapping[str, Any], *, to_level: int, promote_at: float, window: int) -> None:
        start = max(1, options.get("level", 1))
        if not is_packaged(name) or "level" not in task_options(find_task(name)):
            raise UserError(f"curriculum is for packaged tasks with a level, and task {name} is none: leave it out")
        if to_level <= start:
            raise UserError(f"curriculum.to_level is {to_level} and the task begins at level {start}: raise to_level")
        levels = range(start, to_level + 1)
        parts = {f"level-{level}": guarded_task(name, {**options, "level": level}) for level in levels}
        super().__init__(parts, (Fraction(1),) * len(parts))
        self.name = name
        self.level, self._to_level, self._promote_at, self._window = start, to_level, promote_at, window
        self._passed: list[bool] = []  # of the newest rollouts at this level

    def described(self) -> str:
        rule = f"the next level when {self._promote_at:.0%} of the last {self._window} rollouts are correct"
        return f"{self.name} from level {self.level} to {self._to_level} ({rule}); all levels are evaluated"

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return self._draw(f"level-{self.level}")(count, seed)

    def learn(self, passed: Sequence[tuple[str, bool]]) -> dict[str, float]:
        """Takes in which rollouts of a step were correct, and gives metrics of the level that they were drawn at."""
        self._passed = [*self._passed, *(is_right for _, is_right in passed)][-self._window :]
        rate = sum(self._passed) / max(1, len(self._passed))
        metrics = {"curriculum/level": float(self.level), "curriculum/pass_rate": rate}
        if len(self._passed) == self._window and rate >= self._promote_at and self.level < self._to_level:
            self.level, self._passed = self.level + 1, []
        return metrics

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "passed": list(self._passed)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.level, self._passed = state["level"], list(state["passed"])
