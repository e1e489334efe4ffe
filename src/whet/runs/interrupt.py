"""Ctrl-C as a request: the first one lets the step end, the second one quits."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, SIGINT and SIGTERM set `requested`; outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.requested = False
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
        # Not sys.stderr: the signal may have come in the middle of a write to it, which cannot be entered twice.
        with suppress(OSError):
            os.write(2, f"\n{name}: stopping after this step; once more quits at once\n".encode())
