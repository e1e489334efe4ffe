"""Tasks by name: the packaged ones, or a user's own as `module:Class`. A new task is one file and one line here.

A user's task runs behind a guard that turns its exceptions and wrong types into one line with task and method.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from whet.errors import RunFailed, UserError, nearest
from whet.imports import is_object, load_named
from whet.records import LARGEST_REWARD, Example, Score
from whet.tasks.environments.adventure import Adventure
from whet.tasks.environments.connections_game import ConnectionsGame
from whet.tasks.environments.guessing import Guessing
from whet.tasks.environments.hanoi_moves import HanoiMoves
from whet.tasks.environments.text_grid import GridWorld
from whet.tasks.gym.reasoning import ReasoningGym
from whet.tasks.instructions.ifeval import IFEval
from whet.tasks.procedural import Arithmetic, Reverse, Sorting
from whet.tasks.programs.code_task import Code
from whet.tasks.protocol import Gold, HasAlphabet, HasEnvironment, HasText, Task, Votes, is_reward
from whet.tasks.puzzles.connections import Connections
from whet.tasks.puzzles.countdown import Countdown
from whet.tasks.puzzles.countdown_rows import CountdownRows
from whet.tasks.puzzles.hanoi import Hanoi
from whet.tasks.puzzles.spelling import SpellBackward
from whet.tasks.reviews import Reviews
from whet.user_code import by_lines, happened, located, printing_to_log, whole_traceback

P = ParamSpec("P")
T = TypeVar("T")

TASKS: dict[str, type[Task]] = {
    "adventure": Adventure,
    "arithmetic": Arithmetic,
    "code": Code,
    "connections": Connections,
    "connections_game": ConnectionsGame,
    "countdown": Countdown,
    "countdown_rows": CountdownRows,
    "grid": GridWorld,
    "guessing": Guessing,
    "hanoi": Hanoi,
    "hanoi_moves": HanoiMoves,
    "ifeval": IFEval,
    "reasoning_gym": ReasoningGym,
    "reverse": Reverse,
    "reviews": Reviews,
    "sorting": Sorting,
    "spell_backward": SpellBackward,
}

# Packaged, in modules that import this one.
ELSEWHERE = {
    "corpus": "whet.data.corpus.corpus_task:CorpusTask",
    "data": "whet.data.task:DataTask",
    "maths": "whet.data.maths_task:MathsTask",
    "rows": "whet.data.rows_task:RowsTask",
    "mixture": "whet.tasks.selection.mixture:Mixture",
    "tools": "whet.tasks.tools.tool_task:ToolTask",
    "word_problems": "whet.tasks.tools.word_problems:WordProblems",
}

VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
# Annotations are strings under `from __future__ import annotations`, else types. Other types are not checked.
PLAIN_TYPES: dict[Any, type] = {
    **{"int": int, "float": float, "bool": bool, "str": str},
    **{int: int, float: float, bool: bool, str: str},
}
NO_REWARD = f"not a finite number within ±{LARGEST_REWARD:g}"


def load_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task of this name with these options."""
    make = _maker(name, options)
    try:
        with printing_to_log():
            task = make()
            complete = isinstance(task, Task)  # evaluates the property `name`, which is the user's code too
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"task {name} refuses its options: {located(error)}") from error
    if not complete:
        raise UserError(f"task {name} is not a task: it needs name, draw, held_out, score and correct")
    found: Task = task
    return found


def guarded_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task of this name with these options; a user's own with a guard around it."""
    task = load_task(name, options)
    return task if is_packaged(name) else GuardedTask(name, task, options)


def is_packaged(name: str) -> bool:
    return name in TASKS or name in ELSEWHERE


def find_task(name: str) -> type[Task]:
    """The class of a packaged task, or the user's own from `module:Class`."""
    if name in TASKS:
        return TASKS[name]
    name = ELSEWHERE.get(name, name)
    if ":" not in name:
        known = [*TASKS, *ELSEWHERE]
        listed = f"(known: {', '.join(known)}; your own: module:Class)"
        raise UserError(f"there is no task '{name}'{nearest(name, known)} {listed}")
    found = load_named(name, "task")
    if not isinstance(found, type):
        raise UserError(f"task '{name}' must name a class, not a {type(found).__name__}")
    return found


def task_options(task_class: type[Task]) -> dict[str, inspect.Parameter]:
    """The options of a task, by name."""
    try:
        return dict(inspect.signature(task_class).parameters)
    except ValueError as error:
        raise UserError(f"{task_class.__name__} has no readable signature, so it cannot be a task") from error


class TaskFailed(RunFailed):
    """A user's task raised or returned the wrong type."""

    kind = "task"  # of failure, in the name of its file

    def __init__(self, message: str, *, culprit: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.culprit = culprit  # the example and the traceback, as far as there are any


class GuardedTask:
    """Raises `TaskFailed` where a user's task raises or returns the wrong type.

    Has `gold`, `vote`, `training_text`, `alphabet` and `environment` where the task does.
    """

    def __init__(self, name: str, task: Task, options: Mapping[str, Any] | None = None) -> None:
        self.name, self._task, self.options = name, task, dict(options or {})
        try:
            with printing_to_log():
                has_alphabet = isinstance(task, HasAlphabet)  # evaluates `alphabet`, which is the user's code too
        except (Exception, SystemExit) as error:
            raise self._failure("alphabet", happened(error), error=error) from error
        if has_alphabet:
            self.alphabet = self._alphabet()
        if isinstance(task, Gold):
            self.gold = partial(self._gold, task)
        if isinstance(task, Votes):
            self.vote = partial(self._vote, task)
        if isinstance(task, HasEnvironment):
            self.environment = task.environment
        if isinstance(task, HasText):
            self.training_text = partial(self._training_text, task)

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

    def correct(self, example: Example, text: str) -> bool | None:
        right: object = self._ask("correct", self._task.correct, example, text)
        if right is not None and not isinstance(right, bool):
            raise self._failure("correct", f"gave a {type(right).__name__}, not True, False or None", example)
        return right

    def _alphabet(self) -> str:
        assert isinstance(self._task, HasAlphabet)
        alphabet: object = self._task.alphabet
        if not isinstance(alphabet, str):
            raise self._failure("alphabet", f"is a {type(alphabet).__name__}, not a string")
        return alphabet

    def _gold(self, task: Gold, example: Example, text: str) -> float:
        reward: object = self._ask("gold", task.gold, example, text)
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not is_reward(reward):
            raise self._failure("gold", f"gave {reward!r}, {NO_REWARD}", example)
        return float(reward)

    def _vote(self, task: Votes, example: Example, text: str) -> str | None:
        vote: object = self._ask("vote", task.vote, example, text)
        if vote is not None and not isinstance(vote, str):
            raise self._failure("vote", f"gave a {type(vote).__name__}, not a text or None", example)
        return vote

    def _training_text(self, task: HasText) -> Iterator[str]:
        pieces: list[object] = self._ask("training_text", lambda: list(task.training_text()))
        for piece in pieces:
            if not isinstance(piece, str):
                raise self._failure("training_text", f"gave a {type(piece).__name__}, not texts")
            yield piece

    def _examples(self, method: str, given: object) -> list[Example]:
        if not isinstance(given, list) or not all(isinstance(example, Example) for example in given):
            raise self._failure(method, "gave something else than a list of Examples")
        return given

    def _ask(self, method: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with printing_to_log():
                return call(*args, **kwargs)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            example = args[0] if args and isinstance(args[0], Example) else None
            raise self._failure(method, happened(error), example, error=error) from error

    def _failure(
        self, method: str, what: str, example: Example | None = None, *, error: BaseException | None = None
    ) -> TaskFailed:
        where = "" if example is None else f" on example {example.id!r}"
        way = "whet.tasks.check.check_task(task)" if is_object(self.name) else f"whet tasks {self.name}"
        culprit = {"example": example and asdict(example), **by_lines("" if error is None else whole_traceback(error))}
        return TaskFailed(f"task {self.name}: {method} {what}{where}; try it with: {way}", culprit=culprit)


def _maker(name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    """The constructor with its options; an object passed from Python exists already."""
    given = load_named(name, "task") if is_object(name) else None
    if given is None or isinstance(given, type):
        task_class = find_task(name)
        _check_options(name, task_class, options)
        return partial(task_class, **options)
    if options:
        raise UserError(f"task {name} is an object and has its options already: leave out {', '.join(options)}")
    return lambda: given


def _check_options(name: str, task_class: type[Task], options: Mapping[str, Any]) -> None:
    accepted = task_options(task_class)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    named = {key: p for key, p in accepted.items() if p.kind not in VARIADIC}
    for key, value in options.items():
        if key in named:
            _check_type(name, key, named[key].annotation, value)
        elif not takes_any:
            valid = ", ".join(named) or "none"
            raise UserError(f"task {name} has no option '{key}'{nearest(key, named)} (options: {valid})")
    for key, parameter in named.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise UserError(f"task {name} needs the option '{key}'")


def _check_type(name: str, key: str, annotation: Any, value: Any) -> None:
    expected = PLAIN_TYPES.get(annotation)
    if expected is None or type(value) is expected or (expected is float and type(value) is int):
        return
    raise UserError(f"task {name}: option '{key}' is {value!r} ({type(value).__name__}), must be {expected.__name__}")
