"""The user's reward functions, called as in TRL: f(prompts, completions, **columns) -> list."""

import errno
import inspect
import math
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, SupportsFloat

from whet.errors import RunFailed, UserError
from whet.imports import load_named
from whet.records import Example, Sampled, Score
from whet.tasks.grading.reward_arguments import ALWAYS_OFFERED, LOGGING, OF_SAMPLES, Logged, NotLoggable, offered_to_all
from whet.tasks.protocol import is_reward, too_large
from whet.user_code import happened, whole_traceback

TORCH_HAS_NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"  # in a RuntimeError
NEVER_OFFERED = ("environments",)  # of TRL's trainer

Report = Callable[[str, int | None], None]  # called with function and row, if known, before it runs


class Runner(Protocol):
    """Runs asynchronous functions: `asyncio.Runner`, or one in another thread."""

    def run(self, coro: Coroutine[Any, Any, object], /) -> object: ...


class RewardFailed(RunFailed):
    """A reward function raised or returned an invalid reward; `row` is the culprit, if known."""

    def __init__(self, message: str, *, row: int | None, traceback: str = "") -> None:
        super().__init__(message)
        self.row = row
        self.traceback = traceback  # of the user's code, if it raised


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedReward:
    """A user's function and its weight."""

    name: str  # of its part of the score
    weight: float
    call: Callable[..., Any]
    accepts: frozenset[str]  # keyword names
    requires: frozenset[str]  # those without a default
    accepts_any: bool  # has **kwargs

    def accepts_one_of(self, names: Iterable[str]) -> bool:
        return self.accepts_any or not self.accepts.isdisjoint(names)


def load_rewards(rewards: Sequence[tuple[str, float]]) -> tuple[LoadedReward, ...]:
    """The functions of (`module:function` or `file.py:function`, weight) pairs."""
    functions: list[LoadedReward] = []
    for spec, weight in rewards:
        taken = {function.name for function in functions}
        functions.append(_load(spec, weight, taken))
    return tuple(functions)


def score_with(
    functions: Sequence[LoadedReward],
    examples: Sequence[Example],
    texts: Sequence[str],
    *,
    runner: Runner,
    report: Report = lambda _function, _row: None,
    may_abstain: bool = False,
    sampled: Sampled | None = None,
) -> list[Score]:
    """reward = Σ weight × part over the functions that did not return None; `runner` runs the asynchronous ones.

    A row for which all return None is an error unless `may_abstain`: a reward of 0 would be made up.
    """
    columns: list[list[float | None]] = []
    logged = Logged()
    for function in functions:
        # A copy for each, so that a function that changes its arguments does not affect the next.
        arguments = deepcopy(arguments_of(function, examples, texts, sampled, logged))
        report(function.name, None)
        values = _call(function, arguments, runner, len(examples))
        columns.append([_number(function.name, value, row) for row, value in enumerate(values)])
    rows = [[values[row] for values in columns] for row in range(len(examples))]
    for row, given in enumerate(rows):
        if not may_abstain and all(value is None for value in given):
            names = ", ".join(function.name for function in functions)
            raise RewardFailed(
                f"every reward function ({names}) gave None for row {row}, so it has no reward: at least one must "
                "give a number",
                row=row,
            )
    try:
        extras, means = logged.extras(len(examples)), logged.means()
    except NotLoggable as error:
        raise RewardFailed(str(error), row=None) from error
    combined = [_combine(functions, given, row) for row, given in enumerate(rows)]
    return [replace(score, extra=extra, logged=means) for score, extra in zip(combined, extras, strict=True)]


def raised(who: str, error: BaseException, *, row: int | None) -> RewardFailed:
    """The error for an exception of the user's code; out of memory is raised as MemoryError."""
    by_kernel = isinstance(error, OSError) and error.errno == errno.ENOMEM
    by_torch = type(error) is RuntimeError and TORCH_HAS_NO_MEMORY in str(error)
    if isinstance(error, MemoryError) or by_kernel or by_torch:
        raise MemoryError from error
    return RewardFailed(f"{who} {happened(error)}", row=row, traceback=whole_traceback(error))


@contextmanager
def alarms_end() -> Iterator[None]:
    """Cancels an alarm that the user's code leaves behind, which would go off in other code.

    An alarm set before is the host program's and stays.
    """
    foreign, _ = signal.getitimer(signal.ITIMER_REAL)
    try:
        yield
    finally:
        if not foreign:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _load(spec: str, weight: float, taken: set[str]) -> LoadedReward:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UserError(f"reward function '{spec}': the weight must be a finite number, not {weight!r}")
    call = load_named(spec, "reward function")
    if not callable(call):
        raise UserError(f"reward function '{spec}' is a {type(call).__name__}, not a function")
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError as error:
        raise UserError(f"reward function '{spec}' has no readable signature: wrap it in a def") from error
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = frozenset(p.name for p in named if p.default is p.empty)
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise UserError(f"reward function '{spec}': '{parameter.name}' must be accepted by keyword: remove the '/'")
    for name in NEVER_OFFERED:
        if name in required:
            raise UserError(f"reward function '{spec}' requires '{name}', which whet does not offer: give it a default")
    return LoadedReward(
        name=part_name(spec, taken),
        weight=float(weight),
        call=call,
        accepts=frozenset(p.name for p in named),
        requires=required,
        accepts_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def part_name(spec: str, taken: set[str]) -> str:
    """The part of a score that this function gives, beside parts of these names."""
    return distinct(spec.rpartition(":")[2], taken)


def distinct(name: str, taken: set[str]) -> str:
    """`name`, or the first free one of name_2, name_3, …"""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def arguments_of(
    function: LoadedReward,
    examples: Sequence[Example],
    texts: Sequence[str],
    sampled: Sampled | None = None,
    logged: Logged | None = None,
) -> dict[str, Any]:
    """What a function is called with: those of all arguments that it accepts."""
    offered = {**offered_to_all(examples, texts, sampled), **(logged or Logged()).callbacks()}
    missing = sorted(function.requires - offered.keys())
    if missing and missing[0] in OF_SAMPLES:
        raise UserError(
            f"reward function {function.name} requires '{missing[0]}', which is known only of completions that were "
            "sampled here, by an engine that tells their tokens: give it a default"
        )
    if missing:
        known = (*ALWAYS_OFFERED, *OF_SAMPLES, *LOGGING)
        columns = ", ".join(name for name in offered if name not in known) or "none"
        raise UserError(
            f"reward function {function.name} requires '{missing[0]}', which is not a column of the task (columns: "
            f"{columns}; always there: {', '.join(ALWAYS_OFFERED)})"
        )
    return {name: values for name, values in offered.items() if function.accepts_any or name in function.accepts}


def _call(function: LoadedReward, arguments: dict[str, Any], runner: Runner, count: int) -> list[object]:
    try:
        with alarms_end():
            result = function.call(**arguments)
            if inspect.isawaitable(result):
                result = runner.run(_finish(result))
            return _listed(function.name, result, count)  # inside: a generator runs the user's code here
    except (SystemExit, RewardFailed):
        raise
    except BaseException as error:  # asyncio's CancelledError is not an Exception
        raise raised(f"reward function {function.name}", error, row=None) from error


async def _finish(result: Awaitable[object]) -> object:
    return await result


def _listed(name: str, result: object, count: int) -> list[object]:
    if not isinstance(result, Iterable) or isinstance(result, str | bytes | Mapping | Set):
        raise RewardFailed(f"reward function {name} gave a {type(result).__name__}, not a list of numbers", row=None)
    values = list(result if isinstance(result, Sized) else islice(result, count + 1))  # a generator may be endless
    if len(values) != count:
        given = len(values) if isinstance(result, Sized) or len(values) < count else f"more than {count}"
        raise RewardFailed(f"reward function {name} gave {given} rewards for {count} completions", row=None)
    return values


def _number(name: str, value: object, row: int) -> float | None:
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, SupportsFloat) and not isinstance(value, complex) else None
    except OverflowError:  # a whole number beyond the largest float
        number = math.inf
    except Exception:  # noqa: BLE001 - e.g. a tensor of two numbers raises a RuntimeError
        number = None
    if number is None:
        raise RewardFailed(
            f"reward function {name} gave a {type(value).__name__} for row {row}, not a number or None", row=row
        )
    if not is_reward(number):
        raise RewardFailed(f"reward function {name} gave {number} for row {row}{too_large(number)}", row=row)
    return number


def _combine(functions: Sequence[LoadedReward], values: Sequence[float | None], row: int) -> Score:
    pairs = [(function, value) for function, value in zip(functions, values, strict=True) if value is not None]
    reward = sum((function.weight * value for function, value in pairs), start=0.0)
    if not is_reward(reward):
        sentence = f"the weighted sum of the reward functions is {reward} for row {row}{too_large(reward)}"
        raise RewardFailed(sentence, row=row)
    return Score(reward=reward, parts={function.name: value for function, value in pairs})
