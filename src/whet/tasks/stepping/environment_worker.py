"""The process that runs the environments of a user's task: `python -m whet.tasks.stepping.environment_worker`.

To it:    a `WorkerSetup`, then {"forget": whether the environments so far are over, "calls": […]} with
          {"number": n, "example": {…}} for a reset and {"number": n, "text": "…"} for a step.
From it:  {"ready": true, "wants_samples": false} or {"user_error": sentence} once; then for every call, in order,
          {"number": n, "reply": {…}} or {"number": n, "failed": sentence}.

`grading/serving` has the order of the service, which the worker of rewards shares.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from whet.tasks.grading.reward_functions import alarms_end
from whet.tasks.grading.serving import Service, run
from whet.tasks.grading.wire import unpack_example
from whet.tasks.loading import load_task
from whet.tasks.protocol import Environment, HasEnvironment
from whet.tasks.stepping.replies import BadReply, begun, stepped
from whet.user_code import happened


def main() -> None:
    """Answers calls until standard input ends."""
    run(_serve)


def _serve() -> None:
    service = Service()
    task = service.loaded(partial(load_task, service.setup.task, service.setup.options))
    assert isinstance(task, HasEnvironment), "only a task with environments is given to this process"
    live: dict[int, Environment] = {}
    for request in service.requests(wants_samples=False):
        if request["forget"]:
            live.clear()
        for call in request["calls"]:
            service.begin_call()
            service.send(request["request"], {"number": call["number"], **_answer(task, live, call)})


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
