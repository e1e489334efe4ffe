"""The process that runs the user's reward functions: `python -m whet.tasks.grading.worker`. `wire` has the protocol.

The user's code runs in the main thread, as libraries with signal-based timeouts require. A second thread reads
standard input and ends the process when the parent is gone. A watchdog that does not need the interpreter lock ends it
when a call exceeds its time and no parent is left to kill it. A forked copy that returns reports that and exits.
"""

import asyncio
import faulthandler
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TextIO

from whet.errors import UserError
from whet.records import Example, Sampled, Score
from whet.tasks.grading.reward_arguments import OF_SAMPLES
from whet.tasks.grading.reward_functions import (
    Report,
    RewardFailed,
    Runner,
    alarms_end,
    load_rewards,
    raised,
    score_with,
)
from whet.tasks.grading.wire import OUT_OF_MEMORY, pack_score, unpack_batch, unpack_setup
from whet.tasks.loading import load_task
from whet.tasks.protocol import Task, is_reward, too_large

GRACE_SECONDS = 5.0  # a living parent kills first


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """The user's reward functions or task, loaded."""

    score: Callable[[Sequence[Example], Sequence[str], Sampled | None, Report], list[Score]]
    wants_samples: bool  # whether it asks for `Sampled`


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbox:
    """The pipe for replies."""

    stream: TextIO
    owner: int  # process id

    def send(self, request: int, message: Mapping[str, Any]) -> None:
        is_copy = os.getpid() != self.owner
        content = {"forked": True} if is_copy else message
        try:
            self.stream.write(json.dumps({**content, "request": request}) + "\n")
            self.stream.flush()
        except OSError:
            os._exit(1)  # the user's code closed the pipe
        if is_copy:
            os._exit(0)


def main() -> None:
    """Serves batches until standard input ends."""
    try:
        _serve()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # a message would need memory


def _serve() -> None:
    inbox, outbox, nowhere = claim_pipes()
    setup = unpack_setup(inbox.get())
    sys.path.extend(entry for entry in setup.path if entry not in sys.path)
    limit_memory(setup.memory_limit_gb)
    try:
        faulthandler.dump_traceback_later(setup.load_limit_seconds + GRACE_SECONDS, exit=True, file=nowhere)
        with alarms_end():
            # One event loop for all batches: clients that the user's functions keep are bound to it.
            runner = asyncio.Runner()
            scorer = make_scorer(setup.task, setup.options, setup.rewards, runner, may_abstain=setup.may_abstain)
    except UserError as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from None
        outbox.send(0, {"user_error": str(error)})
        os._exit(0)  # a normal exit would wait for the reading thread
    outbox.send(0, {"ready": True, "wants_samples": scorer.wants_samples})
    while True:
        faulthandler.cancel_dump_traceback_later()
        request = inbox.get()
        number = request["request"]
        faulthandler.dump_traceback_later(setup.time_limit_seconds + GRACE_SECONDS, exit=True, file=nowhere)
        outbox.send(number, answer(scorer, request, partial(_report, outbox, number)))


def _report(outbox: Outbox, request: int, function: str, row: int | None) -> None:
    outbox.send(request, {"at": function, "row": row})


def limit_memory(limit_gb: float | None) -> None:
    """Makes allocations fail beyond the limit.

    Not RLIMIT_AS, which also counts address space that CUDA, torch's allocators and mapped files only reserve.
    """
    if limit_gb is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(limit_gb * 1e9) if hard == resource.RLIM_INFINITY else min(int(limit_gb * 1e9), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def make_scorer(
    task: str, options: Mapping[str, Any], rewards: Sequence[tuple[str, float]], runner: Runner, *, may_abstain: bool
) -> Scorer:
    """The user's reward functions, or the score of the user's task if there are none."""
    if not rewards:
        return Scorer(score=partial(score_task, load_task(task, options)), wants_samples=False)
    functions = load_rewards(rewards)

    def score(
        examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None, report: Report
    ) -> list[Score]:
        return score_with(
            functions, examples, texts, runner=runner, report=report, may_abstain=may_abstain, sampled=sampled
        )

    return Scorer(score=score, wants_samples=any(function.accepts_one_of(OF_SAMPLES) for function in functions))


def answer(scorer: Scorer, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    examples, texts, sampled = unpack_batch(request)
    try:
        return {"scores": [pack_score(score) for score in scorer.score(examples, texts, sampled, report)]}
    except RewardFailed as error:
        return {"failed": str(error), "row": error.row, "traceback": error.traceback}
    except UserError as error:
        return {"user_error": str(error)}


def score_task(
    task: Task, examples: Sequence[Example], texts: Sequence[str], _sampled: Sampled | None, report: Report
) -> list[Score]:
    scores = []
    for row, (example, text) in enumerate(zip(examples, texts, strict=True)):
        report("score", row)
        scores.append(_score_row(task, example, text, row))
    return scores


def _score_row(task: Task, example: Example, text: str, row: int) -> Score:
    try:
        with alarms_end():
            score = task.score(example, text)
        if not isinstance(score, Score):
            raise TypeError(f"it gave a {type(score).__name__}, not a Score")
        plain = Score(reward=float(score.reward), parts={str(k): float(v) for k, v in score.parts.items()})
    except SystemExit:
        raise
    except BaseException as error:  # as for reward functions
        raise raised(f"the score of task {task.name}", error, row=row) from error
    for name, value in (("reward", plain.reward), *plain.parts.items()):
        if not is_reward(value):
            what = f"{name} = {value} for row {row}{too_large(value)}"
            raise RewardFailed(f"the score of task {task.name} gave {what}", row=row)
    return plain


def claim_pipes() -> tuple[SimpleQueue[dict[str, Any]], Outbox, TextIO]:
    """Reserves the pipes for the protocol; the user's code prints to standard error and reads nothing.

    Standard error is the terminal, or a pipe to the log of the run.
    """
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115 - kept open for the watchdog
    os.dup2(nowhere.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read, args=(requests, inbox), daemon=True).start()
    return inbox, Outbox(stream=replies, owner=os.getpid()), nowhere


def _read(requests: TextIO, inbox: SimpleQueue[dict[str, Any]]) -> None:
    try:
        for line in requests:
            inbox.put(json.loads(line))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with processes that the user's code started
    os._exit(0)


if __name__ == "__main__":
    main()
