"""One process that holds the environments of several conversations, and is started again when one of them ends it.

An environment that hangs, crashes or breaks the protocol loses its own conversation. The others of its process begin
anew in the next one: they are reset and get the texts that they had, and must answer as they did.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.records import Example
from whet.tasks.grading.process import Child, ChildDied, ChildGarbled, ChildHung, withheld, worker_environment
from whet.tasks.grading.starting import death_of, garbled, started
from whet.tasks.grading.wire import WorkerSetup, pack_example
from whet.tasks.stepping.replies import BadReply, Reply, checked

COMMAND = (sys.executable, "-P", "-m", "whet.tasks.stepping.environment_worker")


@dataclass
class History:
    """What one environment was asked and has answered."""

    example: Example
    texts: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)  # to the reset and to each text
    lost: str = ""  # why it cannot be asked any more

    @property
    def is_live(self) -> bool:
        return not self.lost and bool(self.replies) and not self.replies[-1].done


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A reset, or a step with a text."""

    number: int
    example: Example | None = None
    text: str = ""

    def packed(self) -> dict[str, Any]:
        if self.example is None:
            return {"number": self.number, "text": self.text}
        return {"number": self.number, "example": pack_example(self.example)}


class OneWorker:
    """The environments of a share of the conversations."""

    def __init__(self, setup: WorkerSetup, passed: Sequence[str]) -> None:
        """`passed`: names of variables that look like secrets and that the process gets nevertheless."""
        self._setup, self._limit = setup, setup.time_limit_seconds
        self._variables = worker_environment(os.environ, passed)
        self._withheld = withheld(os.environ, passed)
        self._histories: dict[int, History] = {}
        self._child: Child | None = None
        self._is_stale = False  # whether the process holds environments of earlier conversations

    def begin(self, examples: Mapping[int, Example]) -> dict[int, Reply]:
        """Resets new environments, in place of all earlier ones."""
        self._histories = {number: History(example) for number, example in examples.items()}
        self._is_stale = self._child is not None
        return self._ask([Call(number=number, example=example) for number, example in examples.items()])

    def step(self, texts: Mapping[int, str]) -> dict[int, Reply]:
        return self._ask([Call(number=number, text=text) for number, text in texts.items()])

    def abandon(self) -> None:
        """Ends the calls under way in another thread: their conversations are lost, and the process is killed."""
        for history in self._histories.values():
            history.lost = "the conversation was abandoned"
        child = self._child
        if child is not None:
            child.end()

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _ask(self, calls: Sequence[Call]) -> dict[int, Reply]:
        """The replies by number; every failure of the process costs the conversation that it was busy with."""
        found: dict[int, Reply] = {}
        waiting = list(calls)
        while waiting:
            if self._child is None and any(not self._histories[call.number].lost for call in waiting):
                self._restore()
            lost = [call for call in waiting if self._histories[call.number].lost]
            found |= {call.number: Reply(failure=self._histories[call.number].lost) for call in lost}
            waiting = [call for call in waiting if call not in lost]
            done, problem = self._answered(waiting)
            for call, reply in zip(waiting, done, strict=False):
                found[call.number] = self._noted(call, reply)
            waiting = waiting[len(done) :]
            if problem and waiting:
                self._histories[waiting[0].number].lost = problem
        return found

    def _noted(self, call: Call, reply: Reply) -> Reply:
        history = self._histories[call.number]
        history.lost = reply.failure
        history.replies.append(reply)
        if call.example is None:
            history.texts.append(call.text)
        return reply

    def _answered(self, calls: Sequence[Call]) -> tuple[list[Reply], str]:
        """The replies to the first of these calls, and what ended the process at the next one, if anything did."""
        replies: list[Reply] = []
        if not calls:
            return replies, ""
        assert self._child is not None
        try:
            request = {"forget": self._is_stale, "calls": [call.packed() for call in calls]}
            self._child.send(request, deadline=time.monotonic() + self._limit)
            self._is_stale = False
            for call in calls:
                data = self._child.receive(deadline=time.monotonic() + self._limit)
                replies.append(self._read(data, call.number))
        except ChildHung:
            limit = f"{self._limit:g} s for one answer and was stopped: see reward.time_limit_seconds"
            problem = f"{self._what} took longer than {limit}"
        except ChildDied as death:
            limit_gb = self._setup.memory_limit_gb
            problem = death_of(self._what, death, " ended its process: the worker", limit_gb)
        except ChildGarbled as found:
            problem = garbled(self._what, found)
        except BaseException:  # after an interrupt the next reply would belong to these calls
            self._discard()
            raise
        else:
            return replies, ""
        self._discard()
        return replies, problem

    def _read(self, data: Mapping[str, Any], number: int) -> Reply:
        match data:
            case {"number": int(given), "reply": dict(reply), **rest} if given == number and not rest:
                try:
                    return checked(reply)
                except BadReply as error:
                    return Reply(failure=f"the environment: {error}")
            case {"number": int(given), "failed": str(message), **rest} if given == number and not rest:
                hidden = [name for name in self._withheld if name in message]
                remedy = f"; {hidden[0]} is withheld from it: name it in reward.environment" if hidden else ""
                return Reply(failure=" ".join(message.split()) + remedy)
        raise ChildGarbled(f"an object with the keys {sorted(data)!s:.60}, which is not a reply")

    def _restore(self) -> None:
        """Starts the process, and brings the live environments where they were."""
        while self._child is None:
            self._child, _ = started(COMMAND, self._variables, self._setup, self._what)
            self._is_stale = False
            for number, history in self._histories.items():
                if self._child is not None and history.is_live:  # else one of them ended it: begin again without
                    history.lost = self._replayed(number, history)

    def _replayed(self, number: int, history: History) -> str:
        """Plays an environment anew; why it is lost, if it is."""
        calls = [Call(number=number, example=history.example)]
        calls += [Call(number=number, text=text) for text in history.texts]
        replies, problem = self._answered(calls)
        if problem or replies == history.replies:
            return problem
        return (
            f"{self._what} answered otherwise when its process was started again and it was played anew: its answers "
            "must depend on the example and the texts alone"
        )

    @property
    def _what(self) -> str:
        return f"the environment of task {self._setup.task}"

    def _discard(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
