"""This machine: a detached supervisor (`supervisor`) that starts the run again after a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from whet.errors import RunFailed
from whet.launch import shell
from whet.launch.job import Job, last_words
from whet.launch.process_tree import ending_in
from whet.launch.tool import Launch, Tool

STATUS = ".status"  # the file of the supervisor: its process, its attempts, how it ended


def words(job: Job) -> list[str]:
    """The command of one attempt. torchrun restarts nothing: an attempt ends when one process does."""
    if job.is_alone:
        return [sys.executable, "-m", "whet", *job.train]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.processes}"]
    return [*torchrun, "-m", "whet", *job.train]


def render(job: Job) -> str:
    """The attempt as a shell script, to be read; the supervisor needs no shell."""
    return "\n".join(["#!/bin/sh", *shell.exports(job), shell.quoted(words(job))]) + "\n"


def log_path(job: Job) -> str:
    return f"{job.run}.log"


def start(job: Job, launch: Launch, status: Path) -> int:
    """Starts the supervisor in a session of its own, which no closing terminal ends; returns its process."""
    try:
        Path(job.runs).mkdir(parents=True, exist_ok=True)
        with Path(launch.log).open("ab") as log:
            status.unlink(missing_ok=True)
            given = json.dumps({"words": words(job), "restarts": job.restarts, "status": str(status)})
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "whet.launch.supervisor", given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **job.environment, "PYTHONUNBUFFERED": "1"},
            )
    except OSError as error:
        raise RunFailed(f"cannot start {job.name}: {error.strerror}; choose another folder with --runs") from error
    return supervisor.pid


def status_of(launch: Launch) -> dict[str, Any]:
    """What the supervisor wrote last."""
    try:
        found = json.loads(Path(launch.file).with_suffix(STATUS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def state(launch: Launch) -> str:
    """How the run stands: `running`, `finished`, `stopped`, `failed …`, or `lost` if the machine went down.

    A run whose supervisor was killed goes on, and is not restarted.
    """
    found = status_of(launch)
    if ended := found.get("ended"):
        return str(ended)
    is_supervised = is_alive(launch)
    if not is_supervised and not _left(launch):
        return "lost"
    if launch.stopped:
        return "stopping"
    if not is_supervised:
        return "running, without its supervisor"
    again = found.get("attempt", 0)
    return f"running, restarted {again} time{'s' * (again != 1)}" if again else "running"


def is_alive(launch: Launch) -> bool:
    """Whether the supervisor runs, and not another process that was given its number later."""
    try:
        command = Path(f"/proc/{launch.id}/cmdline").read_bytes()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
        return _answers(int(launch.id))  # not Linux
    except OSError:
        return False
    return b"whet.launch.supervisor" in command and f"/{launch.name}{STATUS}".encode() in command


def is_over(launch: Launch) -> bool:
    """Whether neither the supervisor nor a process of the run is left."""
    return not is_alive(launch) and not _left(launch)


def _left(launch: Launch) -> list[int]:
    """The processes of a run, ranks rather than the torchrun that started them; none where there is no /proc."""
    found = {process: _command(process) for process in ending_in(last_words(launch.run))}
    ranks = [process for process, command in found.items() if b"torch.distributed.run" not in command]
    return ranks or list(found)


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _answers(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def stop(launch: Launch) -> None:
    """Asks the supervisor to end the run, which saves a checkpoint; the run itself if the supervisor was killed."""
    for process in [int(launch.id)] if is_alive(launch) else _left(launch):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def _logs(launch: Launch, *, follow: bool) -> list[str]:
    ends = [f"--pid={launch.id}"] if sys.platform == "linux" else []  # other systems have no such option
    return ["tail", "-n", "+1", *(["-F", *ends] if follow else []), "--", launch.log]


LOCAL = Tool(
    name="local",
    program=sys.executable,
    install="",
    ending=".sh",
    render=render,
    submit=lambda job, _file: words(job),
    identify=lambda _printed, job: job.name,
    logs=_logs,
    stop=lambda _launch: [],
    state=lambda _launch: [],
    log=log_path,
)
