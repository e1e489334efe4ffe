"""What a run calls to show its progress."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Progress callbacks."""

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> bool | None:
        """Called after every step; False stops the run after it, as Ctrl-C does."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Entered for every evaluation."""
        ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...
