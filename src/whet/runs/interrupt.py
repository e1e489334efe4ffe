"""Graceful Ctrl-C and SIGTERM: the first one stops where the run can go on from, the second one at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The first signal, in a block that can be abandoned."""


class Interrupt:
    """While entered, SIGINT and SIGTERM set `requested`; no effect outside the main thread.

    While `abandons` is set, in work without lasting effects that may take minutes, they also raise `Stopped`.
    """

    def __init__(self) -> None:
        self.requested = False
        self.abandons = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.requested:
            raise KeyboardInterrupt(f"second signal ({name})")
        self.requested = True
        # Not sys.stderr: the signal may have interrupted a write to it, which is not reentrant.
        with suppress(OSError):
            when = "" if self.abandons else " after this step"
            os.write(2, f"\n{name}: stopping{when}; once more quits at once\n".encode())
        if self.abandons:
            raise Stopped(name)
