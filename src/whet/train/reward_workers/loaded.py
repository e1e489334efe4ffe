"""What a reward worker says of the model that it loaded. All workers of a run have to load the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from whet.errors import RunFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A reward model in a worker; plain JSON values."""

    settings: Mapping[str, Any]  # of `RewardSettings`
    context: int
    pass_tokens: int  # the most tokens of a pass on the worker's device
    fingerprint: str  # of the weights
    size: int  # bytes of the weights

    def packed(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Agreed:
    """The model of the first worker that loaded one; called by the threads of all workers."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._lock = directory, Lock()
        self._first: Loaded | None = None

    @property
    def first(self) -> Loaded:
        assert self._first is not None, "a worker is started first"
        return self._first

    def accept(self, loaded: Loaded, who: str) -> None:
        """RunFailed for another model than that of the first worker."""
        with self._lock:
            self._first = self._first or loaded
            if loaded != self._first:
                raise RunFailed(
                    f"{who} loaded another model from {self._directory} than the workers before: its files were "
                    "changed while the run went on; bring them back and resume the run, or start a new one"
                )
