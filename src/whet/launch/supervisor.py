"""Runs a command until it succeeds: `python -m whet.launch.supervisor JSON`.

Wrong input is not tried again. SIGTERM is passed on to the processes of the run, which save a checkpoint and end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from whet.launch.job import WRONG_INPUT, log_line
from whet.launch.launches import write_record
from whet.launch.process_tree import adopt_orphans, children, end_children

PAUSE_SECONDS = 2.0  # before another attempt: what ended the last one may need a moment to pass
GRACE_SECONDS = 600.0  # to end a step and save a checkpoint
POLL_SECONDS = 0.1


class Supervisor:
    """Owns the processes of an attempt and the file that tells how the run stands."""

    def __init__(self, words: list[str], restarts: int, status: Path) -> None:
        self.words, self.restarts, self.status = words, restarts, status
        self.is_stopped = False
        self._child: subprocess.Popen[bytes] | None = None
        adopt_orphans()
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def run(self) -> int:
        """The exit code of the last attempt."""
        code = 0
        for attempt in range(self.restarts + 1):
            self._write(attempt=attempt)
            code = self._attempt()
            if self.is_stopped or code in (0, WRONG_INPUT) or attempt == self.restarts:
                break
            left = self.restarts - attempt
            log_line(f"ended with exit code {code}; {left} restart{'s' * (left != 1)} left")
            time.sleep(PAUSE_SECONDS)
            if self.is_stopped:
                break
        ended = "finished" if code == 0 else "stopped" if self.is_stopped else f"failed with exit code {code}"
        self._write(attempt=attempt, ended=ended, code=code)
        log_line(f"{ended}")
        return code

    def _attempt(self) -> int:
        self._child = subprocess.Popen(self.words, start_new_session=True)
        if self.is_stopped:  # between two attempts
            self._terminate()
        code = self._wait(self._child)
        # torchrun that is killed leaves its processes behind, and they would write to the same run as the next attempt.
        end_children()
        return code

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        deadline = None
        while (code := child.poll()) is None:
            if self.is_stopped and deadline is None:
                deadline = time.monotonic() + GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                child.kill()
            time.sleep(POLL_SECONDS)
        return code

    def _stop(self, _number: int, _frame: Any) -> None:
        self.is_stopped = True
        self._terminate()

    def _terminate(self) -> None:
        """Asks the ranks to end, and not torchrun above them: it would kill them after half a minute."""
        if self._child is None or self._child.poll() is not None:
            return
        is_torchrun = "torch.distributed.run" in self.words
        ranks = children(self._child.pid) if is_torchrun else []
        for process in ranks or [self._child.pid]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)

    def _write(self, **values: Any) -> None:
        write_record(self.status, {"process": os.getpid(), **values})


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.exit(Supervisor(given["words"], given["restarts"], Path(given["status"])).run())
