"""A process that has imported everything and forks `whet` commands: starting Python with torch takes seconds.

It imports and computes nothing, so that a fork is as good as a fresh process; only reports are not drawn. One JSON
request a line on stdin, one JSON reply a line on stdout.
"""

import json
import os
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

import pytest
import torch._dynamo  # the first optimizer imports it

import whet.cli.commands.train
import whet.distributed.fsdp2
import whet.train.start
from tests.contracts.command import blank_report
from tests.contracts.hooks import HOOKS
from tests.metrics.guard import guard
from whet.cli.app import main


def start(arguments: list[str], log: str, environment: dict[str, str], hooks: dict[str, str]) -> int:
    child = os.fork()
    return child or run(arguments, log, environment, hooks)


def run(arguments: list[str], log: str, environment: dict[str, str], hooks: dict[str, str]) -> NoReturn:
    """The command, in the child; its output goes to the file `log`."""
    code = 70
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(environment)
        whet.train.start.write_report = blank_report
        guard(pytest.MonkeyPatch())
        for name, value in hooks.items():
            HOOKS[name](value)
        sys.argv = ["whet", *arguments]
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        code = 71
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float) -> int:
    """How the child ended: its exit code, or minus the signal; it is killed when it takes longer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"a command took longer than {seconds:g} s")


def serve() -> None:
    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            reply = {"start": start, "wait": wait}[request.pop("do")](**request)
        except TimeoutError as error:
            reply = str(error)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    assert all(
        (whet.cli.commands.train, whet.distributed.fsdp2, whet.train.start, torch._dynamo)
    )  # imported for the forks
    serve()
