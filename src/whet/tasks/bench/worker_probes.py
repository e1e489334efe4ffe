"""Functions that the worker of `tasks/grading` calls as reward functions, so that its limits hold for them too.

The column `bench` says what to load: the same description in every row.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from whet.records import Example
from whet.tasks.check import check_task
from whet.tasks.grading.reward_functions import arguments_of, load_rewards
from whet.tasks.grading.wire import unpack_batch
from whet.tasks.loading import load_task
from whet.tasks.protocol import Task

CONTRACT = f"{__name__}:contract"
MUTATION = f"{__name__}:mutation"
COLUMN = "bench"


def contract(completions: Sequence[Any], bench: Sequence[Mapping[str, Any]]) -> list[float]:
    """Raises what `check_task` raises."""
    check_task(load_task(bench[0]["task"], bench[0]["options"]))
    return [0.0] * len(completions)


def mutation(completions: Sequence[Any], bench: Sequence[Mapping[str, Any]]) -> list[float]:
    """1 in every row if a reward function changes its arguments, or a task an example; else 0."""
    setup = bench[0]
    examples, texts, _ = unpack_batch(setup)
    if setup["rewards"]:
        functions = load_rewards([(spec, weight) for spec, weight in setup["rewards"]])
        found = any(changes_arguments(one.call, arguments_of(one, examples, texts)) for one in functions)
    else:
        found = changes_examples(load_task(setup["task"], setup["options"]), examples, texts)
    return [float(found)] * len(completions)


def changes_arguments(call: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    """Whether a reward function changes the lists that it is called with, or what they hold."""
    given = deepcopy(dict(arguments))
    result = call(**given)
    if inspect.isawaitable(result):
        asyncio.run(_finish(result))
    elif not isinstance(result, list):
        list(result)  # a generator runs here
    return given != arguments


def changes_examples(task: Task, examples: Sequence[Example], texts: Sequence[str]) -> bool:
    given = deepcopy(list(examples))
    for example, text in zip(given, texts, strict=True):
        task.score(example, text)
    return given != list(examples)


async def _finish(result: Any) -> Any:
    return await result
