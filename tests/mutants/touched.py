"""Which lines of some files were run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any


class Touched:
    """Lines by file, from now until `stop`."""

    def __init__(self, files: Iterable[str]) -> None:
        self.lines: dict[str, set[int]] = {file: set() for file in files}
        self._local = {file: self._tracer(lines) for file, lines in self.lines.items()}

    def start(self) -> None:
        """Forgets what was run before."""
        for lines in self.lines.values():
            lines.clear()
        threading.settrace(self._called)
        sys.settrace(self._called)

    def stop(self) -> dict[str, list[int]]:
        """What was run, without the files of which nothing was."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        return {file: sorted(lines) for file, lines in self.lines.items() if lines}

    def _called(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return self._local.get(frame.f_code.co_filename)

    @staticmethod
    def _tracer(lines: set[int]) -> Callable[..., Any]:
        def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return trace

        return trace
