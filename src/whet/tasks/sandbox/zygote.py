"""The server that forks the processes of programs. It is isolated first, and what it forks inherits that.

Each job is a socket. A supervisor is forked for it, which forks the process of the tests and that of the program, waits
for the first, ends both and removes what they left. The job itself goes through the socket to the process of the tests,
so this server, whose memory programs inherit, never holds a test.
"""

import gc
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

from whet.tasks.sandbox import judge, kernel, program_process
from whet.tasks.sandbox.isolation import Isolation, Limits
from whet.tasks.sandbox.values import receive, send

PRELOADED = """
    array bisect cmath collections copy dataclasses datetime decimal enum fractions functools heapq itertools json math
    operator random re statistics string typing
"""
GRACE_SECONDS = 2.0  # beyond the deadline that the process of the tests keeps itself
MOST_FILES = 4096


def main() -> None:
    settings = json.loads(sys.argv[1])
    control = socket.socket(fileno=settings["control"])
    limits, isolation = Limits(**settings["limits"]), Isolation(settings["folder"], settings["without"])
    sys.argv[:], sys.orig_argv[:] = [""], []
    sys.path[:] = [place for place in sys.path if place != settings["source"]]
    for name in PRELOADED.split():
        __import__(name)
    os.environ.clear()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors need no waiting for
    isolation.prepare()
    gc.disable()  # a collection in a forked process would copy the memory that it shares
    gc.freeze()
    while True:
        _, received, _, _ = socket.recv_fds(control, 1, 1)
        if not received:
            return
        if os.fork() == 0:
            control.close()
            _last_act(partial(_supervise, socket.socket(fileno=received[0]), isolation, limits))
        os.close(received[0])


def _supervise(job: socket.socket, isolation: Isolation, limits: Limits) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    kernel.die_with_parent()
    kernel.prctl(kernel.SET_SUBREAPER, "subreaper", 1)
    deadline = time.monotonic() + limits.wall_seconds
    here, there = socket.socketpair()
    tests = os.fork()
    if tests == 0:
        there.close()
        _last_act(partial(_judge, job, here, isolation, limits, deadline))
    isolation.own_processes()
    scratch = "" if "root" in isolation.active else tempfile.mkdtemp(dir=isolation.folder)
    program = os.fork()
    if program == 0:
        _last_act(partial(_program, there, isolation, limits, scratch))
    here.close()
    there.close()
    late = not _ends(tests, deadline + GRACE_SECONDS)
    os.kill(tests, signal.SIGKILL)
    os.kill(program, signal.SIGKILL)
    _, status, used = os.wait4(program, 0)
    _end_orphans(isolation)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    ending = {"late": late, "status": os.waitstatus_to_exitcode(status), "cpu": used.ru_utime + used.ru_stime}
    send(job, {**ending, "active": isolation.active, "refused": isolation.refused})


def _judge(job: socket.socket, program: socket.socket, isolation: Isolation, limits: Limits, deadline: float) -> None:
    _keep_only(job.fileno(), program.fileno())
    isolation.confine(limits, is_program=False)
    verdict = judge.judged(receive(job), program, deadline)
    send(job, {**verdict, "active": isolation.active, "refused": isolation.refused})


def _program(tests: socket.socket, isolation: Isolation, limits: Limits, scratch: str) -> None:
    _keep_only(tests.fileno())
    isolation.confine(limits, scratch, is_program=True)
    program_process.serve(tests)


def _keep_only(*kept: int) -> None:
    """Closes all other files; standard input and output become /dev/null, which was opened before the root changed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    first = 3
    for file in sorted(kept):
        os.closerange(first, file)
        first = file + 1
    os.closerange(first, MOST_FILES)


def _ends(process: int, deadline: float) -> bool:
    """Whether the process ends before the deadline; it stays a zombie, so that its number is not given to another."""
    while True:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        signal.sigtimedwait([signal.SIGCHLD], left)


def _end_orphans(isolation: Isolation) -> None:
    """Ends what a program started, without a PID namespace, which ends with its first process."""
    if "processes" in isolation.active:
        return
    own = os.getpid()
    while True:
        try:
            with open(f"/proc/{own}/task/{own}/children") as file:
                children = [int(child) for child in file.read().split()]
        except OSError:
            return
        for child in children:
            os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _last_act(act: Callable[[], None]) -> None:
    """Runs the purpose of a forked process, which never returns from it."""
    try:
        act()
    finally:
        os._exit(0)
