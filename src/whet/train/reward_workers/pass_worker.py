"""The trainer's side of a reward worker: a process with a copy of the model. `pass_process` has the protocol."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from whet.errors import RunFailed, UserError, escaped
from whet.models.reward.scoring import ScoredText
from whet.tasks.grading.elastic import Cancelled
from whet.tasks.grading.process import Child, ChildDied, ChildGarbled, ChildHung
from whet.tasks.grading.starting import MEMORY_SIGNALS
from whet.tasks.grading.wire import OUT_OF_MEMORY
from whet.train.reward_workers.loaded import Agreed, Loaded

COMMAND = (
    *(sys.executable, "-P", "-m"),  # -P: no file here shadows a library
    "whet.train.reward_workers.pass_process",
)
LOAD_SECONDS = 600.0  # the least that a worker is given to import torch and read a model from a cold disk
SHOWN_BYTES = 1000  # of the last output


class WorkerLost(Exception):
    """The worker was killed, crashed, or does not answer; another one may do better. The message names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PassSetup:
    """What a worker loads, and where; plain JSON values."""

    directory: str
    device: str
    threads: int  # of the CPU


class PassWorker:
    """A child process that makes passes; started when it is first needed, and again after it was lost."""

    def __init__(self, setup: PassSetup, agreed: Agreed, *, limit_seconds: float) -> None:
        """`limit_seconds`: for a pass."""
        self._setup, self._agreed, self._limit = setup, agreed, limit_seconds
        self._child: Child | None = None
        self._printed = bytearray()
        self._is_cancelled = False

    @property
    def is_loaded(self) -> bool:
        return self._child is not None

    def start(self) -> None:
        if self._is_cancelled:
            raise Cancelled
        if self._child is not None:
            return
        del self._printed[:]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._setup.threads)}
        self._child = Child(COMMAND, environment, printed=self._print)
        if self._is_cancelled:  # meanwhile
            self._child.end()
        reply = self._asked(asdict(self._setup), max(LOAD_SECONDS, self._limit), "loads the reward model")
        loaded = self._told(lambda: Loaded(**reply["loaded"]))
        self._agreed.accept(loaded, self._who)

    def read(self, texts: Sequence[ScoredText]) -> list[float]:
        """The numbers of a pass; WorkerLost if another worker may do it, else the error for the user."""
        self.start()
        rows = [[text.tokens, text.prompt, text.places] for text in texts]
        longest = max(len(text.tokens) for text in texts)
        doing = f"read {len(texts)} texts of up to {longest} tokens"
        reply = self._asked({"texts": rows}, self._limit, doing)
        numbers: list[float] = self._told(lambda: _numbers(reply["scores"], sum(len(text.places) for text in texts)))
        return numbers

    def cancel(self) -> None:
        self._is_cancelled = True
        child = self._child
        if child is not None:
            child.end()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    @property
    def _who(self) -> str:
        process = "" if self._child is None else f" (process {self._child.pid}, {self._setup.device})"
        return f"reward worker{process}"

    def _asked(self, message: Mapping[str, Any], seconds: float, doing: str) -> dict[str, Any]:
        assert self._child is not None
        deadline = time.monotonic() + seconds
        try:
            self._child.send(message, deadline=deadline)
            reply = self._child.receive(deadline=deadline)
        except ChildHung:
            raise self._lost(f"did not answer within {seconds:g} s (reward.model.pass_seconds)") from None
        except ChildDied as death:
            hint = " (if memory was short: the machine's)" if death.code in MEMORY_SIGNALS else ""
            how = "ran out of memory" if death.code == OUT_OF_MEMORY else f"{death}{hint}"
            raise self._lost(how) from None
        except ChildGarbled as found:
            raise self._lost(f"answered {found}") from None
        except BaseException:  # after an interrupt the next reply would belong to this pass
            self.close()
            raise
        if "failed" in reply:
            raise self._failed(str(reply.get("kind")), escaped(str(reply["failed"])), doing)
        return reply

    def _failed(self, kind: str, sentence: str, doing: str) -> Exception:
        who = self._who
        self.close()
        if kind == "memory":
            return RunFailed(
                f"{who} ran out of memory while it {doing} ({sentence}): use fewer workers (reward.model.workers, or "
                "the file reward_workers of the run), or a smaller reward model"
            )
        return UserError(sentence) if kind == "user" else RunFailed(f"{who}: {sentence}")

    def _told(self, read: Callable[[], Any]) -> Any:
        """What a reply says, if it has the shape of one."""
        try:
            return read()
        except (KeyError, TypeError, ValueError) as error:
            raise self._lost(f"gave an answer that is none ({type(error).__name__})") from None

    def _lost(self, how: str) -> Exception:
        """Ends the process; the error to raise."""
        who = self._who
        self.close()
        if self._is_cancelled:
            return Cancelled()
        said = escaped(" ".join(self._printed[-SHOWN_BYTES:].decode(errors="replace").split()))
        return WorkerLost(f"{who} {how}{f'; its last output: {said}' if said else ''}")

    def _print(self, text: bytes) -> None:
        self._printed += text
        del self._printed[: -2 * SHOWN_BYTES]


def _numbers(scores: object, count: int) -> list[float]:
    if not isinstance(scores, list) or len(scores) != count:
        raise ValueError
    if any(type(score) is not float for score in scores):
        raise TypeError
    return scores
