"""A user's own task behind a guard: what its code does wrong becomes one line that names the task and the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from whet.errors import RunFailed, UserError
from whet.imports import is_object, one_line
from whet.records import LARGEST_REWARD, Example, Score
from whet.tasks.check import HasAlphabet
from whet.tasks.protocol import Gold, Task, is_reward
from whet.tasks.table import TASKS, load_task

P = ParamSpec("P")
T = TypeVar("T")
NO_REWARD = f"not a finite number within ±{LARGEST_REWARD:g}"


def guarded_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task of this name, made with these options; a user's own with a guard around it."""
    task = load_task(name, options)
    if name in TASKS:
        return task
    try:
        spelled = isinstance(task, HasAlphabet)  # looks at `alphabet`, which is the user's code too
    except (Exception, SystemExit) as error:
        raise RunFailed(f"task {name}: alphabet raised {one_line(error)}") from error
    return GUARDS[spelled, isinstance(task, Gold)](name, task)


class GuardedTask:
    """Passes every question on, and raises `RunFailed` where the answer is an exception or of the wrong type."""

    def __init__(self, name: str, task: Task) -> None:
        self._name, self._task = name, task

    @property
    def name(self) -> str:
        """As the recipe spells it: `module:Class`."""
        return self._name

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return self._examples("draw", self._ask("draw", self._task.draw, count, seed=seed))

    def held_out(self, count: int) -> list[Example]:
        return self._examples("held_out", self._ask("held_out", self._task.held_out, count))

    def score(self, example: Example, text: str) -> Score:
        score: object = self._ask("score", self._task.score, example, text)
        if not isinstance(score, Score):
            raise self._failure("score", f"gave a {type(score).__name__}, not a Score", example)
        reward = self._ask("score", float, score.reward)
        if not is_reward(reward):
            raise self._failure("score", f"gave the reward {reward}, {NO_REWARD}", example)
        return replace(score, reward=reward)

    def correct(self, example: Example, text: str) -> bool:
        right: object = self._ask("correct", self._task.correct, example, text)
        if not isinstance(right, bool):
            raise self._failure("correct", f"gave a {type(right).__name__}, not True or False", example)
        return right

    def _examples(self, method: str, given: object) -> list[Example]:
        if not isinstance(given, list) or not all(isinstance(example, Example) for example in given):
            raise self._failure(method, "gave something else than a list of Examples")
        return given

    def _ask(self, method: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            example = args[0] if args and isinstance(args[0], Example) else None
            raise self._failure(method, f"raised {one_line(error)}", example) from error

    def _failure(self, method: str, what: str, example: Example | None = None) -> RunFailed:
        where = "" if example is None else f" on example {example.id!r}"
        way = "whet.tasks.check.check_task(task)" if is_object(self._name) else f"whet tasks {self._name}"
        return RunFailed(f"task {self._name}: {method} {what}{where}; try it with: {way}")


class GuardedSpelledTask(GuardedTask):
    """A guarded task that knows every character it uses."""

    @property
    def alphabet(self) -> str:
        assert isinstance(self._task, HasAlphabet)
        alphabet: object = self._task.alphabet
        if not isinstance(alphabet, str):
            raise self._failure("alphabet", f"is a {type(alphabet).__name__}, not a string")
        return alphabet


class GuardedGoldTask(GuardedTask):
    """A guarded task whose true reward is known."""

    def gold(self, example: Example, text: str) -> float:
        assert isinstance(self._task, Gold)
        worth: object = self._ask("gold", self._task.gold, example, text)
        if isinstance(worth, bool) or not isinstance(worth, int | float) or not is_reward(worth):
            raise self._failure("gold", f"gave {worth!r}, {NO_REWARD}", example)
        return float(worth)


class GuardedSpelledGoldTask(GuardedSpelledTask, GuardedGoldTask):
    """Both."""


GUARDS: dict[tuple[bool, bool], type[GuardedTask]] = {  # by whether a task lists its characters, and knows its gold
    (False, False): GuardedTask,
    (True, False): GuardedSpelledTask,
    (False, True): GuardedGoldTask,
    (True, True): GuardedSpelledGoldTask,
}
