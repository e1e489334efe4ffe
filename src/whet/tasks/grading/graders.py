"""Graders: in this process, or in a worker that can be killed when a user's reward function hangs or crashes."""

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from whet.errors import RunFailed, UserError
from whet.imports import is_object
from whet.records import Example, Sampled, Score
from whet.tasks.grading.elastic import Cancelled
from whet.tasks.grading.failures import Blame, Tolerance
from whet.tasks.grading.pool import WorkerPool
from whet.tasks.grading.process import Child, ChildDied, ChildGarbled, ChildHung, withheld, worker_environment
from whet.tasks.grading.reward_functions import RewardFailed
from whet.tasks.grading.starting import death_of, garbled, started
from whet.tasks.grading.wire import At, Failure, WorkerSetup, pack_batch, unpack_reply
from whet.tasks.grading.worker import make_scorer
from whet.tasks.loading import is_packaged, load_task
from whet.tasks.protocol import Awaited, Batched, Grader, Task
from whet.tasks.selection.mixture import MixedTasks, Mixture, members
from whet.user_code import printing_to_log

WORKER = (sys.executable, "-P", "-m", "whet.tasks.grading.worker")  # -P: files here must not shadow a library
LOAD_LIMIT_SECONDS = 120.0  # a module may import torch from a cold disk


def make_grader(  # noqa: PLR0913
    task_name: str,
    task_options: Mapping[str, Any],
    rewards: Sequence[tuple[str, float]],
    time_limit_seconds: float,
    *,
    memory_limit_gb: float | None = None,
    environment: Sequence[str] = (),
    may_abstain: bool = False,
    task: Task | None = None,
    workers: int = 1,
    prompts_per_call: int | None = None,
    tolerance: Tolerance | None = None,
) -> Grader:
    """The grader of a run; the user's code is loaded now, so that a wrong name fails at once.

    `task` is the task if it is built already: a packaged task scores in this process and need not be built twice.
    """
    tolerance = tolerance or Tolerance()
    if not rewards and task_name == MixedTasks.name:
        same = partial(
            make_grader,
            rewards=(),
            time_limit_seconds=time_limit_seconds,
            memory_limit_gb=memory_limit_gb,
            environment=environment,
            may_abstain=may_abstain,
            tolerance=tolerance,
        )
        mixture = task if isinstance(task, MixedTasks) else Mixture(tasks=task_options["tasks"])
        return mixed_grader(mixture, task_options["tasks"], same)
    if not rewards and is_packaged(task_name):
        return DirectGrader(task or load_task(task_name, task_options))
    if any(is_object(spec) for spec in ([spec for spec, _ in rewards] or [task_name])):
        return InProcessGrader(task_name, task_options, rewards, may_abstain=may_abstain, tolerance=tolerance)
    make = partial(
        WorkerGrader,
        task_name,
        task_options,
        rewards,
        time_limit_seconds=time_limit_seconds,
        memory_limit_gb=memory_limit_gb,
        environment=environment,
        may_abstain=may_abstain,
        tolerance=tolerance,
    )
    grader = make() if workers == 1 and prompts_per_call is None else WorkerPool(make, workers, prompts_per_call)
    grader.start()
    return grader


class InOneCall(ABC):
    """A grader that scores a batch as a whole, when it is asked for the result."""

    @abstractmethod
    def grade(
        self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None
    ) -> list[Score]: ...

    def shares(self, prompts: int) -> list[range]:
        return [range(prompts)]

    def submit(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> Awaited:
        return partial(self.grade, examples, texts, sampled)


class DirectGrader(InOneCall):
    """Scores with a packaged task, which does not hang: a user's pattern has a time limit (`tasks/matching.py`)."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def grade(
        self,
        examples: Sequence[Example],
        texts: Sequence[str],
        sampled: Sampled | None = None,  # noqa: ARG002 - as the protocol has it
    ) -> list[Score]:
        if isinstance(self._task, Batched):
            return self._task.score_many(examples, texts)
        return [self._task.score(example, text) for example, text in zip(examples, texts, strict=True)]

    def close(self) -> None:
        """Nothing to release."""


class MixedGrader(InOneCall):
    """Sends every completion to the grader of its task."""

    def __init__(self, mixture: MixedTasks, graders: Mapping[str, Grader]) -> None:
        self._mixture, self._graders = mixture, graders

    def grade(
        self,
        examples: Sequence[Example],
        texts: Sequence[str],
        sampled: Sampled | None = None,  # noqa: ARG002 - as the protocol has it
    ) -> list[Score]:
        scores: dict[int, Score] = {}
        for label, grader in self._graders.items():
            places = [place for place, example in enumerate(examples) if example.part == label]
            own = [self._mixture.owner(examples[place])[1] for place in places]
            found = grader.grade(own, [texts[place] for place in places]) if places else []
            scores |= dict(zip(places, found, strict=True))
        return [scores[place] for place in range(len(examples))]

    def close(self) -> None:
        for grader in self._graders.values():
            grader.close()


def mixed_grader(mixture: MixedTasks, tasks: Sequence[Any], make: Callable[..., Grader]) -> MixedGrader:
    """The grader of a mixture of these tasks; `make(name, options, task=…)` makes that of one of them."""
    named = members(tasks)
    return MixedGrader(
        mixture, {one.label: make(one.name, one.options, task=mixture.parts[one.label]) for one in named}
    )


class InProcessGrader(InOneCall):
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
        tolerance: Tolerance | None = None,
    ) -> None:
        self._tolerance = tolerance or Tolerance()
        self._who = _who(task_name, [spec for spec, _ in rewards])
        self._loop, self._thread = asyncio.Runner(), ThreadPoolExecutor(max_workers=1)  # starts with its first task
        self._scorer = make_scorer(task_name, task_options, rewards, self, may_abstain=may_abstain)

    def run(self, coro: Coroutine[Any, Any, object], /) -> object:
        return self._thread.submit(self._loop.run, coro).result()

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        return _graded(self._ask, examples, texts, sampled, self._tolerance)

    def close(self) -> None:
        self._thread.submit(self._loop.close).result()
        self._thread.shutdown()

    def _ask(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> list[Score] | Failure:
        for example in examples:
            _require_json(example.columns, f"the columns of example {example.id}")
        try:
            with printing_to_log():
                return self._scorer.score(list(examples), list(texts), sampled, lambda _function, _row: None)
        except RewardFailed as error:
            if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C, not a bug of the function
                raise error.__cause__ from None
            return Failure(message=str(error), row=error.row, traceback=error.traceback)
        except SystemExit as error:
            return Failure(message=f"{self._who} called sys.exit({error.code!r})", row=None)


class WorkerGrader(InOneCall):
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
        tolerance: Tolerance | None = None,
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
        self._tolerance = tolerance or Tolerance()
        self._child: Child | None = None
        self._wants_samples = False  # whether a function asks for `Sampled`; known when it is loaded
        self._is_cancelled = False

    def start(self) -> None:
        """Starts the worker and loads the user's code, if it is not running."""
        if self._is_cancelled:
            raise Cancelled
        if self._child is None:
            self._child = self._started()

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        if len(examples) != len(texts):
            raise ValueError(f"{len(examples)} examples and {len(texts)} texts")
        if not examples:
            return []
        return _graded(self._ask, examples, texts, sampled, self._tolerance, withheld=self._withheld)

    def cancel(self) -> None:
        """Ends the batch under way in another thread, which raises `Cancelled`; the grader cannot be used again."""
        self._is_cancelled = True
        child = self._child
        if child is not None:
            child.end()

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _started(self) -> Child:
        child, self._wants_samples = started(WORKER, self._environment, self._setup, self._what())
        return child

    def _what(self) -> str:
        return _who(self._setup.task, [spec for spec, _ in self._setup.rewards])

    def _ask(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> list[Score] | Failure:
        """One batch through the worker, which is killed if it hangs, crashes or raises."""
        for example in examples:
            _require_json(example.columns, f"the columns of example {example.id}")
        self.start()
        assert self._child is not None
        request = pack_batch(examples, texts, sampled if self._wants_samples else None)
        deadline = time.monotonic() + self._limit
        doing, row, limit = self._what(), None, self._setup.memory_limit_gb
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
            if self._is_cancelled:
                raise Cancelled from None
            return Failure(message=death_of(doing, death, " ended its process: the worker", limit), row=row)
        except ChildGarbled as found:
            self._discard()
            raise RunFailed(garbled(doing, found)) from None
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


def _graded(
    ask: Callable[[Sequence[Example], Sequence[str], Sampled | None], list[Score] | Failure],
    examples: Sequence[Example],
    texts: Sequence[str],
    sampled: Sampled | None,
    tolerance: Tolerance,
    *,
    withheld: Sequence[str] = (),
) -> list[Score]:
    """The scores of a batch; raises a failure unless the tolerance allows it."""

    def ask_rows(rows: Sequence[int]) -> list[Score] | Failure:
        of_rows = None if sampled is None else sampled.rows(rows)
        return ask([examples[row] for row in rows], [texts[row] for row in rows], of_rows)

    outcome = ask(examples, texts, sampled)
    if not isinstance(outcome, Failure):
        return outcome
    blame = Blame(ask_rows, examples, texts, withheld)
    if not tolerance.allowed:
        raise blame.error(outcome)
    return blame.tolerated(outcome, tolerance)


def _who(task: str, rewards: Sequence[str]) -> str:
    return f"reward function {', '.join(rewards)}" if rewards else f"task {task}"


def _require_json(values: Mapping[str, Any], what: str) -> None:
    try:
        json.dumps(dict(values))
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} are not JSON: {error}") from error
