"""The process in which user rewards run: `python -m whet.tasks.grading.worker`, spoken to by `grader` in JSON lines.

The user's code runs in the main thread, because libraries that limit time by signals insist on it. A second thread
reads standard input and ends the process when the parent is gone; a watchdog that needs no interpreter lock ends it
when a call runs over its time and nobody is left to kill it.

A copy of this process that the user's code forked, and that comes back from it, says so instead of an answer and ends.
"""

from __future__ import annotations

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
from whet.records import Example, Score
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
from whet.tasks.protocol import Task, is_reward, too_large
from whet.tasks.table import load_task

GRACE_SECONDS = 5.0  # the parent, while it lives, kills first

Judge = Callable[[list[Example], list[str], Report], list[Score]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbox:
    """Where answers go."""

    stream: TextIO
    owner: int  # the process that answers

    def say(self, request: int, message: Mapping[str, Any]) -> None:
        """Writes one line, with the number of the request that it belongs to."""
        is_copy = os.getpid() != self.owner
        said = {"forked": True} if is_copy else message
        try:
            self.stream.write(json.dumps({**said, "request": request}) + "\n")
            self.stream.flush()
        except OSError:
            os._exit(1)  # the user's code closed the pipe: there is nobody to tell
        if is_copy:
            os._exit(0)


def main() -> None:
    """Serves batches until standard input ends."""
    try:
        _serve()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # a sentence would need memory


def _serve() -> None:
    inbox, outbox, nowhere = _claim_pipes()
    setup = unpack_setup(inbox.get())
    sys.path.extend(entry for entry in setup.path if entry not in sys.path)
    _limit_memory(setup.memory_limit_gb)
    try:
        faulthandler.dump_traceback_later(setup.load_limit_seconds + GRACE_SECONDS, exit=True, file=nowhere)
        with alarms_end():
            # One event loop for the whole life: clients that the user's functions keep belong to it.
            runner = asyncio.Runner()
            judge = make_judge(setup.task, setup.options, setup.rewards, runner, may_abstain=setup.may_abstain)
    except UserError as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from None
        outbox.say(0, {"user_error": str(error)})
        os._exit(0)  # an orderly shutdown would trip over the thread that reads
    outbox.say(0, {"ready": True})
    while True:
        faulthandler.cancel_dump_traceback_later()
        request = inbox.get()
        number = request["request"]
        faulthandler.dump_traceback_later(setup.time_limit_seconds + GRACE_SECONDS, exit=True, file=nowhere)
        outbox.say(number, answer(judge, request, partial(_report, outbox, number)))


def _report(outbox: Outbox, request: int, function: str, row: int | None) -> None:
    outbox.say(request, {"at": function, "row": row})


def _limit_memory(limit_gb: float | None) -> None:
    """Makes allocations fail beyond the limit: of what this process writes, not of addresses that it only reserves.

    RLIMIT_AS would count what CUDA, torch's allocators and mapped files reserve, hundreds of GB that are no memory.
    """
    if limit_gb is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(limit_gb * 1e9) if hard == resource.RLIM_INFINITY else min(int(limit_gb * 1e9), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def make_judge(
    task: str,
    options: Mapping[str, Any],
    rewards: Sequence[tuple[str, float]],
    runner: Runner,
    *,
    may_abstain: bool,
) -> Judge:
    """The user's reward functions, or where there are none the score of the user's task."""
    if not rewards:
        return partial(score_task, load_task(task, options))
    functions = load_rewards(rewards)
    return lambda examples, texts, report: score_with(
        functions, examples, texts, runner=runner, report=report, may_abstain=may_abstain
    )


def answer(judge: Judge, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The reply to one batch."""
    examples, texts = unpack_batch(request)
    try:
        return {"scores": [pack_score(score) for score in judge(examples, texts, report)]}
    except RewardFailed as error:
        return {"failed": str(error), "row": error.row}
    except UserError as error:
        return {"user_error": str(error)}


def score_task(task: Task, examples: Sequence[Example], texts: Sequence[str], report: Report) -> list[Score]:
    """The task's own score of every row."""
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


def _claim_pipes() -> tuple[SimpleQueue[dict[str, Any]], Outbox, TextIO]:
    """Takes the pipes for the protocol; from now on the user's code prints to standard error and reads nothing."""
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
        os.killpg(0, signal.SIGKILL)  # with the processes that the user's code left behind
    os._exit(0)


if __name__ == "__main__":
    main()
