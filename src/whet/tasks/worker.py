"""The process in which a user's rewards run: `python -m whet.tasks.worker`, spoken to by `grading` in JSON lines.

The user's code runs in the main thread, because libraries that limit time by signals insist on it. A second thread
reads standard input and ends the process when the parent is gone; a watchdog that needs no interpreter lock ends it
when a call runs over its time and nobody is left to kill it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, TextIO

from whet.errors import UserError
from whet.imports import one_line
from whet.records import Example, Score
from whet.tasks.protocol import Task
from whet.tasks.rewards import Report, RewardFailed, load_rewards, score_with
from whet.tasks.table import load_task
from whet.tasks.wire import Setup, pack_score, unpack_batch, unpack_setup

GRACE_SECONDS = 5.0  # the parent, while it lives, kills first

Judge = Callable[[list[Example], list[str], Report], list[Score]]


def main() -> None:
    """Serves batches until standard input ends."""
    inbox, outbox, nowhere = _claim_pipes()
    setup = unpack_setup(inbox.get())
    sys.path.extend(entry for entry in setup.path if entry not in sys.path)
    try:
        faulthandler.dump_traceback_later(setup.load_limit_seconds + GRACE_SECONDS, exit=True, file=nowhere)
        judge = make_judge(setup)
    except UserError as error:
        _say(outbox, {"user_error": str(error)})
        os._exit(0)  # an orderly shutdown would trip over the thread that reads
    _say(outbox, {"ready": True})
    while True:
        faulthandler.cancel_dump_traceback_later()
        request = inbox.get()
        faulthandler.dump_traceback_later(setup.time_limit_seconds + GRACE_SECONDS, exit=True, file=nowhere)
        _say(outbox, answer(judge, request, lambda name, row: _say(outbox, {"at": name, "row": row})))


def make_judge(setup: Setup) -> Judge:
    """The user's reward functions, or where there are none the score of the user's task."""
    if not setup.rewards:
        task = load_task(setup.task, setup.options)
        return lambda examples, texts, report: score_task(task, examples, texts, report)
    functions = load_rewards(setup.rewards)
    # One event loop for the whole life: clients that the user's functions keep belong to it.
    runner = asyncio.Runner()
    return lambda examples, texts, report: score_with(functions, examples, texts, runner=runner, report=report)


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
        score = task.score(example, text)
        if not isinstance(score, Score):
            raise TypeError(f"it gave a {type(score).__name__}, not a Score")
        plain = Score(reward=float(score.reward), parts={str(k): float(v) for k, v in score.parts.items()})
    except Exception as error:
        raise RewardFailed(f"the score of task {task.name} raised {one_line(error)}", row=row) from error
    for name, value in (("reward", plain.reward), *plain.parts.items()):
        if not math.isfinite(value):
            raise RewardFailed(f"the score of task {task.name} gave {name} = {value} for row {row}", row=row)
    return plain


def _claim_pipes() -> tuple[SimpleQueue[dict[str, Any]], TextIO, TextIO]:
    """Takes the pipes for the protocol; from now on the user's code prints to standard error and reads nothing."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115 - kept open for the watchdog
    os.dup2(nowhere.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read, args=(requests, inbox), daemon=True).start()
    return inbox, replies, nowhere


def _read(requests: TextIO, inbox: SimpleQueue[dict[str, Any]]) -> None:
    for line in requests:
        inbox.put(json.loads(line))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with the processes that the user's code left behind
    os._exit(0)


def _say(outbox: TextIO, message: Mapping[str, Any]) -> None:
    outbox.write(json.dumps(message) + "\n")
    outbox.flush()


if __name__ == "__main__":
    main()
