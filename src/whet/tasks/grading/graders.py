"""Scores completions: in this process, or in a worker that can be killed when a user's reward hangs or crashes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from whet.errors import RunFailed, UserError
from whet.imports import is_object
from whet.records import Example, Score
from whet.tasks.grading.process import Child, ChildDied, ChildGarbled, ChildHung, withheld, worker_environment
from whet.tasks.grading.reward_functions import RewardFailed
from whet.tasks.grading.wire import (
    OUT_OF_MEMORY,
    At,
    Failure,
    Refusal,
    Setup,
    pack_batch,
    pack_setup,
    unpack_loaded,
    unpack_reply,
)
from whet.tasks.grading.worker import make_judge
from whet.tasks.protocol import Grader, Task
from whet.tasks.table import TASKS, load_task

WORKER = (
    sys.executable,
    "-P",
    "-m",
    "whet.tasks.grading.worker",
)  # -P: files of the current directory shadow no library
LOAD_LIMIT_SECONDS = 120.0  # a user's module may import torch from a cold disk
# How a process ends whose C code was refused memory, or that the kernel chose when the machine had none left.
MEMORY_SIGNALS = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL)


class GradingFailed(RunFailed):
    """A reward raised, hung, crashed or gave no number; carries the completion that it happened on."""

    def __init__(self, message: str, *, example: Example, text: str) -> None:
        super().__init__(message)
        self.example = example
        self.text = text


def make_grader(
    task_name: str,
    task_options: Mapping[str, Any],
    rewards: Sequence[tuple[str, float]],
    time_limit_seconds: float,
    *,
    memory_limit_gb: float | None = None,
    environment: Sequence[str] = (),
    may_abstain: bool = False,
) -> Grader:
    """The grader of a run; the user's own code is loaded now, in a worker, so that a wrong name shows at once."""
    if not rewards and task_name in TASKS:
        return DirectGrader(load_task(task_name, task_options))
    if any(is_object(spec) for spec in ([spec for spec, _ in rewards] or [task_name])):
        return InProcessGrader(task_name, task_options, rewards, may_abstain=may_abstain)
    grader = WorkerGrader(
        task_name,
        task_options,
        rewards,
        time_limit_seconds=time_limit_seconds,
        memory_limit_gb=memory_limit_gb,
        environment=environment,
        may_abstain=may_abstain,
    )
    grader.start()
    return grader


class DirectGrader:
    """Scores with a task of ours, here: it neither raises nor hangs."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        return [self._task.score(example, text) for example, text in zip(examples, texts, strict=True)]

    def close(self) -> None:
        """Owns nothing."""


class InProcessGrader:
    """Scores with objects that no other process can find, here: the same checks as in a worker, and none of its limits.

    Asynchronous functions run in a thread of their own: where this is called, as in a notebook, a loop may be running.
    """

    def __init__(
        self,
        task_name: str,
        task_options: Mapping[str, Any],
        rewards: Sequence[tuple[str, float]],
        *,
        may_abstain: bool = False,
    ) -> None:
        self._who = _who(task_name, [spec for spec, _ in rewards])
        self._loop, self._thread = asyncio.Runner(), ThreadPoolExecutor(max_workers=1)  # starts with its first task
        self._judge = make_judge(task_name, task_options, rewards, self, may_abstain=may_abstain)

    def run(self, coro: Coroutine[Any, Any, object], /) -> object:
        """What a coroutine of the user's gives."""
        return self._thread.submit(self._loop.run, coro).result()

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        """A score per row."""
        outcome = self._ask(examples, texts)
        if isinstance(outcome, Failure):
            raise _blamed(self._ask, outcome, examples, texts)
        return outcome

    def close(self) -> None:
        """Ends the thread."""
        self._thread.submit(self._loop.close).result()
        self._thread.shutdown()

    def _ask(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score] | Failure:
        for example in examples:
            _require_json(example.columns, f"the columns of example {example.id}")
        try:
            return self._judge(list(examples), list(texts), lambda _function, _row: None)
        except RewardFailed as error:
            if isinstance(error.__cause__, KeyboardInterrupt):  # the user's own, not a mistake of the function
                raise error.__cause__ from None
            return Failure(message=str(error), row=error.row)
        except SystemExit as error:
            return Failure(message=f"{self._who} called sys.exit({error.code!r})", row=None)


class WorkerGrader:
    """Scores in a process of its own, which starts when it is first needed and again after it had to be killed."""

    def __init__(
        self,
        task_name: str,
        task_options: Mapping[str, Any],
        rewards: Sequence[tuple[str, float]],
        *,
        time_limit_seconds: float,
        memory_limit_gb: float | None = None,  # of each process that the user's code runs in
        environment: Sequence[str] = (),  # secrets that the user's code may see
        may_abstain: bool = False,  # functions may give a row no reward at all
    ) -> None:
        if not 0 < time_limit_seconds < float("inf"):
            raise UserError(f"the time limit of rewards is {time_limit_seconds} s, must be above 0 and finite")
        _require_json(task_options, f"the options of task {task_name}")
        self._limit = time_limit_seconds
        self._setup = Setup(
            task=task_name,
            options=task_options,
            rewards=tuple(rewards),
            load_limit_seconds=LOAD_LIMIT_SECONDS,
            time_limit_seconds=time_limit_seconds,
            memory_limit_gb=memory_limit_gb,
            may_abstain=may_abstain,
            path=tuple(sys.path),
        )
        self._environment = worker_environment(os.environ, environment)
        self._withheld = withheld(os.environ, environment)
        self._child: Child | None = None

    def start(self) -> None:
        """Starts the worker and loads the user's code, unless that is done."""
        if self._child is None:
            self._child = self._started()

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        """A score per row; no batch takes longer than the time limit."""
        if len(examples) != len(texts):
            raise ValueError(f"{len(examples)} examples and {len(texts)} texts")
        if not examples:
            return []
        outcome = self._ask(examples, texts)
        if isinstance(outcome, Failure):
            raise _blamed(self._ask, outcome, examples, texts, withheld=self._withheld)
        return outcome

    def close(self) -> None:
        """Ends the worker; a later `grade` would start another."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _started(self) -> Child:
        child = Child(WORKER, self._environment)
        deadline = time.monotonic() + LOAD_LIMIT_SECONDS
        try:
            child.send(pack_setup(self._setup), deadline=deadline)
            refusal = unpack_loaded(child.receive(deadline=deadline))
        except ChildHung:
            child.kill()
            raise RunFailed(f"{self._what()} did not load within {LOAD_LIMIT_SECONDS:g} s") from None
        except ChildDied as death:
            child.kill()
            raise RunFailed(self._death(f"the worker that loads {self._what()}", death, "")) from None
        except ChildGarbled as found:
            child.kill()
            raise RunFailed(_garbled(self._what(), found)) from None
        except BaseException:
            child.kill()
            raise
        if refusal is not None:
            child.close()
            raise UserError(refusal.message)
        return child

    def _what(self) -> str:
        return _who(self._setup.task, [spec for spec, _ in self._setup.rewards])

    def _death(self, who: str, death: ChildDied, how: str) -> str:
        """The sentence about a worker that ended; `how` stands between who did it and the way it ended."""
        limit = self._setup.memory_limit_gb
        if death.code == OUT_OF_MEMORY:
            if limit is None:
                return f"{who} ran out of memory"
            return f"{who} needs more memory than its limit of {limit:g} GB: raise reward.memory_limit_gb"
        hint = "" if limit is None else f" or the limit reward.memory_limit_gb = {limit:g}"
        maybe = f" (if memory was short: the machine's{hint})" if death.code in MEMORY_SIGNALS else ""
        return f"{who}{how} {death}{maybe}"

    def _ask(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score] | Failure:
        """One batch through the worker, which is dead afterwards if it hung or crashed."""
        request = pack_batch(examples, texts)
        for example in examples:
            _require_json(example.columns, f"the columns of example {example.id}")
        self.start()
        assert self._child is not None
        deadline = time.monotonic() + self._limit
        doing, row = self._what(), None
        try:
            self._child.send(request, deadline=deadline)
            # One report for each function or row: whoever sends more would keep us listening.
            for _ in range(len(examples) + len(self._setup.rewards) + 1):
                reply = unpack_reply(self._child.receive(deadline=deadline), len(examples))
                if not isinstance(reply, At):
                    break
                doing, row = self._name(reply.function), reply.row
            else:
                raise ChildGarbled("more reports than there is to do")
        except ChildHung:
            self._discard()
            late = f"{doing} took longer than {self._limit:g} s and was stopped: see reward.time_limit_seconds"
            return Failure(message=late, row=row)
        except ChildDied as death:
            self._discard()
            return Failure(message=self._death(doing, death, " ended its process: the worker"), row=row)
        except ChildGarbled as found:
            self._discard()
            raise RunFailed(_garbled(doing, found)) from None
        except BaseException:
            # An interrupt in mid-sentence: the next reply would belong to this batch.
            self._discard()
            raise
        if isinstance(reply, Refusal):
            raise UserError(reply.message)
        return reply

    def _name(self, function: str) -> str:
        return f"reward function {function}" if self._setup.rewards else f"the score of task {self._setup.task}"

    def _discard(self) -> None:
        assert self._child is not None
        self._child.kill()
        self._child = None


Ask = Callable[[Sequence[Example], Sequence[str]], list[Score] | Failure]


def _blamed(
    ask: Ask, failure: Failure, examples: Sequence[Example], texts: Sequence[str], *, withheld: Sequence[str] = ()
) -> GradingFailed:
    """What to raise for a failed batch, with the row that it failed on."""
    row, message = (failure.row, failure.message) if failure.row is not None else _search(ask, failure, examples, texts)
    hidden = [name for name in withheld if name in message]
    if hidden:
        message += f"; {hidden[0]} looks like a secret, so the worker does not see it: name it in reward.environment"
    where = f"(example {examples[row].id}, row {row} of {len(examples)})"
    return GradingFailed(f"{message} {where}", example=examples[row], text=texts[row])


def _search(ask: Ask, failure: Failure, examples: Sequence[Example], texts: Sequence[str]) -> tuple[int, str]:
    """The first row that fails alone, and how; row 0 if the rows only fail together."""
    if len(examples) == 1:
        return 0, failure.message
    for row, (example, text) in enumerate(zip(examples, texts, strict=True)):
        outcome = ask([example], [text])
        if isinstance(outcome, Failure):
            return row, outcome.message
    return 0, f"{failure.message}; no row alone repeats it, so here is the first"


def _who(task: str, rewards: Sequence[str]) -> str:
    return f"reward function {', '.join(rewards)}" if rewards else f"task {task}"


def _garbled(who: str, found: ChildGarbled) -> str:
    return (
        f"{who} disturbed its worker, from which came {found}: a process that is forked there must end with os._exit "
        "instead of returning, and nothing else may write to the worker's pipe"
    )


def _require_json(values: Mapping[str, Any], what: str) -> None:
    try:
        json.dumps(dict(values))
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} are not JSON: {error}") from error
