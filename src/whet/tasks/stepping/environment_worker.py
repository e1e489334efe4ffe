"""The process that runs the environments of a user's task: `python -m whet.tasks.stepping.environment_worker`.

To it:    a `WorkerSetup`, then {"forget": whether the environments so far are over, "calls": […]} with
          {"number": n, "example": {…}} for a reset and {"number": n, "text": "…"} for a step.
From it:  {"ready": true, "wants_samples": false} or {"user_error": sentence} once; then for every call, in order,
          {"number": n, "reply": {…}} or {"number": n, "failed": sentence}.

As in the worker of rewards the user's code runs in the main thread, and a watchdog ends the process if a call takes too
long and no parent is left to do so.
"""

import faulthandler
import os
import sys
from collections.abc import Mapping
from typing import Any

from whet.errors import UserError
from whet.tasks.grading.reward_functions import alarms_end
from whet.tasks.grading.wire import OUT_OF_MEMORY, unpack_example, unpack_setup
from whet.tasks.grading.worker import GRACE_SECONDS, claim_pipes, limit_memory
from whet.tasks.loading import load_task
from whet.tasks.protocol import Environment, HasEnvironment
from whet.tasks.stepping.replies import BadReply, begun, stepped
from whet.user_code import happened


def main() -> None:
    """Answers calls until standard input ends."""
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
            task = load_task(setup.task, setup.options)
    except UserError as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from None
        outbox.send(0, {"user_error": str(error)})
        os._exit(0)  # a normal exit would wait for the reading thread
    assert isinstance(task, HasEnvironment), "only a task with environments is given to this process"
    outbox.send(0, {"ready": True, "wants_samples": False})
    live: dict[int, Environment] = {}
    while True:
        faulthandler.cancel_dump_traceback_later()
        request = inbox.get()
        if request["forget"]:
            live.clear()
        for call in request["calls"]:
            faulthandler.dump_traceback_later(setup.time_limit_seconds + GRACE_SECONDS, exit=True, file=nowhere)
            outbox.send(request["request"], {"number": call["number"], **_answer(task, live, call)})


def _answer(task: HasEnvironment, live: dict[int, Environment], call: Mapping[str, Any]) -> dict[str, Any]:
    number, method = call["number"], "step" if "text" in call else "reset"
    try:
        with alarms_end():
            if method == "step":
                return {"reply": stepped(live[number], call["text"])}
            live[number] = task.environment()
            return {"reply": begun(live[number], unpack_example(call["example"]))}
    except MemoryError:
        raise
    except BadReply as error:
        return {"failed": f"the environment: {error}"}
    except BaseException as error:  # noqa: BLE001 - SystemExit too would end the other environments
        return {"failed": f"the environment's {method} {happened(error)}"}


if __name__ == "__main__":
    main()
