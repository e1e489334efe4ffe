"""Graders: in this process, or in a worker that can be killed when a user's reward function hangs or crashes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from whet.errors import RunFailed, UserError
from whet.imports import is_object
from whet.records import Example, Score
from whet.tasks.grading.mixture_grader import mixed_grader
from whet.tasks.grading.process import Child, ChildDied, ChildGarbled, ChildHung, withheld, worker_environment
from whet.tasks.grading.reward_functions import RewardFailed
from whet.tasks.grading.wire import (
    OUT_OF_MEMORY,
    At,
    Failure,
    WorkerSetup,
    check_ready,
    pack_batch,
    pack_setup,
    unpack_reply,
)
from whet.tasks.grading.worker import make_scorer
from whet.tasks.loading import is_packaged, load_task
from whet.tasks.mixture import MixedTasks, Mixture
from whet.tasks.protocol import Grader, Task
from whet.user_code import by_lines, output_log, printing_to_log

WORKER = (sys.executable, "-P", "-m", "whet.tasks.grading.worker")  # -P: files here must not shadow a library
LOAD_LIMIT_SECONDS = 120.0  # a module may import torch from a cold disk
# A failed allocation in C code, or the kernel's out-of-memory killer.
MEMORY_SIGNALS = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL)


class GradingFailed(RunFailed):
    """A reward function raised, hung, crashed or returned no number; carries the completion."""

    kind = "reward"  # of failure, in the name of its file

    def __init__(self, message: str, *, example: Example, text: str, traceback: str = "") -> None:
        super().__init__(message)
        self.example = example
        self.text = text
        self.traceback = traceback  # of the user's code, if it raised

    @property
    def culprit(self) -> dict[str, Any]:
        return {"example": self.example and asdict(self.example), "text": self.text, **by_lines(self.traceback)}


def make_grader(
    task_name: str,
    task_options: Mapping[str, Any],
    rewards: Sequence[tuple[str, float]],
    time_limit_seconds: float,
    *,
    memory_limit_gb: float | None = None,
    environment: Sequence[str] = (),
    may_abstain: bool = False,
    task: Task | None = None,
) -> Grader:
    """The grader of a run; the user's code is loaded now, so that a wrong name fails at once.

    `task` is the task if it is built already: a packaged task scores in this process and need not be built twice.
    """
    if not rewards and task_name == MixedTasks.name:
        same = partial(
            make_grader,
            rewards=(),
            time_limit_seconds=time_limit_seconds,
            memory_limit_gb=memory_limit_gb,
            environment=environment,
            may_abstain=may_abstain,
        )
        mixture = task if isinstance(task, MixedTasks) else Mixture(tasks=task_options["tasks"])
        return mixed_grader(mixture, task_options["tasks"], same)
    if not rewards and is_packaged(task_name):
        return DirectGrader(task or load_task(task_name, task_options))
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
    """Scores with a packaged task, which does not hang: a user's pattern has a time limit (`tasks/matching.py`)."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        return [self._task.score(example, text) for example, text in zip(examples, texts, strict=True)]

    def close(self) -> None:
        """Nothing to release."""


class InProcessGrader:
    """Scores with objects passed from Python, which no worker can import: the same checks, without the limits.

    Asynchronous functions run in a thread: the calling thread may have a running event loop, as in a notebook.
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
        self._score = make_scorer(task_name, task_options, rewards, self, may_abstain=may_abstain)

    def run(self, coro: Coroutine[Any, Any, object], /) -> object:
        return self._thread.submit(self._loop.run, coro).result()

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        outcome = self._ask(examples, texts)
        if isinstance(outcome, Failure):
            raise _blamed(self._ask, outcome, examples, texts)
        return outcome

    def close(self) -> None:
        self._thread.submit(self._loop.close).result()
        self._thread.shutdown()

    def _ask(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score] | Failure:
        for example in examples:
            _require_json(example.columns, f"the columns of example {example.id}")
        try:
            with printing_to_log():
                return self._score(list(examples), list(texts), lambda _function, _row: None)
        except RewardFailed as error:
            if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C, not a bug of the function
                raise error.__cause__ from None
            return Failure(message=str(error), row=error.row, traceback=error.traceback)
        except SystemExit as error:
            return Failure(message=f"{self._who} called sys.exit({error.code!r})", row=None)


class WorkerGrader:
    """Scores in a worker process, started on first use and restarted after it was killed."""

    def __init__(
        self,
        task_name: str,
        task_options: Mapping[str, Any],
        rewards: Sequence[tuple[str, float]],
        *,
        time_limit_seconds: float,
        memory_limit_gb: float | None = None,  # of each process
        environment: Sequence[str] = (),  # secrets to pass to the worker
        may_abstain: bool = False,  # a row may get no reward
    ) -> None:
        if not 0 < time_limit_seconds < float("inf"):
            raise UserError(f"the time limit of rewards is {time_limit_seconds} s, must be above 0 and finite")
        _require_json(task_options, f"the options of task {task_name}")
        self._limit = time_limit_seconds
        self._setup = WorkerSetup(
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
        """Starts the worker and loads the user's code, if it is not running."""
        if self._child is None:
            self._child = self._started()

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        if len(examples) != len(texts):
            raise ValueError(f"{len(examples)} examples and {len(texts)} texts")
        if not examples:
            return []
        outcome = self._ask(examples, texts)
        if isinstance(outcome, Failure):
            raise _blamed(self._ask, outcome, examples, texts, withheld=self._withheld)
        return outcome

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _started(self) -> Child:
        log = output_log()
        child = Child(WORKER, self._environment, printed=None if log is None else log.write)
        deadline = time.monotonic() + LOAD_LIMIT_SECONDS
        try:
            child.send(pack_setup(self._setup), deadline=deadline)
            check_ready(child.receive(deadline=deadline))
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
        return child

    def _what(self) -> str:
        return _who(self._setup.task, [spec for spec, _ in self._setup.rewards])

    def _death(self, who: str, death: ChildDied, how: str) -> str:
        """The error about a worker that exited; `how` goes between the culprit and the exit."""
        limit = self._setup.memory_limit_gb
        if death.code == OUT_OF_MEMORY:
            if limit is None:
                return f"{who} ran out of memory"
            return f"{who} needs more memory than its limit of {limit:g} GB: raise reward.memory_limit_gb"
        hint = "" if limit is None else f" or the limit reward.memory_limit_gb = {limit:g}"
        maybe = f" (if memory was short: the machine's{hint})" if death.code in MEMORY_SIGNALS else ""
        return f"{who}{how} {death}{maybe}"

    def _ask(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score] | Failure:
        """One batch through the worker, which is killed if it hangs, crashes or raises."""
        request = pack_batch(examples, texts)
        for example in examples:
            _require_json(example.columns, f"the columns of example {example.id}")
        self.start()
        assert self._child is not None
        deadline = time.monotonic() + self._limit
        doing, row = self._what(), None
        try:
            self._child.send(request, deadline=deadline)
            # At most one report per function and row, so that no one can keep this loop busy.
            for _ in range(len(examples) + len(self._setup.rewards) + 1):
                reply = unpack_reply(self._child.receive(deadline=deadline), len(examples))
                if not isinstance(reply, At):
                    break
                doing, row = self._name(reply.function), reply.row
            else:
                raise ChildGarbled("too many progress reports")
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
            # After an interrupt the next reply would belong to this batch.
            self._discard()
            raise
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
    """The error for a failed batch, with the row that caused it."""
    if failure.row is None:
        failure = _search(ask, failure, examples, texts)
    row, message = failure.row or 0, failure.message
    hidden = [name for name in withheld if name in message]
    if hidden:
        message += f"; {hidden[0]} looks like a secret and is withheld from the worker: name it in reward.environment"
    where = f"(example {examples[row].id}, row {row} of {len(examples)})"
    return GradingFailed(f"{message} {where}", example=examples[row], text=texts[row], traceback=failure.traceback)


def _search(ask: Ask, failure: Failure, examples: Sequence[Example], texts: Sequence[str]) -> Failure:
    """The failure of the first row that fails by itself; of row 0 if rows fail only together."""
    if len(examples) == 1:
        return replace(failure, row=0)
    for row, (example, text) in enumerate(zip(examples, texts, strict=True)):
        outcome = ask([example], [text])
        if isinstance(outcome, Failure):
            return replace(outcome, row=row)
    return replace(failure, row=0, message=f"{failure.message}; no row fails by itself, so this is the first")


def _who(task: str, rewards: Sequence[str]) -> str:
    return f"reward function {', '.join(rewards)}" if rewards else f"task {task}"


def _garbled(who: str, found: ChildGarbled) -> str:
    return (
        f"{who} broke the protocol of its worker, which sent {found}: a forked process must end with os._exit "
        "instead of returning, and nothing else may write to the worker's pipe"
    )


def _require_json(values: Mapping[str, Any], what: str) -> None:
    try:
        json.dumps(dict(values))
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} are not JSON: {error}") from error
