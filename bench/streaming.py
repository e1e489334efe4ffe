"""The other way to be asynchronous, for comparison: sequences go on while weights change; the first to end are taken.

As in PipelineRL and verl's fully asynchronous trainer: one queue of prompts for all engines, every sequence on the
engine with the fewest, a group leaves the queue's limit when its last sequence ends, and the trainer takes the groups
that ended first. Weights are exchanged after some steps, during which engines pause. Of a sequence's tokens some are
older than others; long answers arrive later, and in more than one version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, sqrt

from whet.train.simulation.engine_rollout import Speed, decoding
from whet.train.simulation.trainer_step import Draw, Training

STEP_ENDS, SEQUENCE_ENDS = range(2)  # at the same time, new weights first


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """How prompts and weights flow."""

    prompts: int  # of a step of the trainer
    steps: int = 1  # of the trainer between two exchanges of weights
    staleness: float = 1.0  # prompts that may begin ahead, in units of those between two exchanges
    at_a_time: int  # prompts that all engines sample at a time
    pause: float = 0.0  # seconds of an exchange


@dataclass(slots=True)
class _Engine:
    live: list[tuple[float, int, int]] = field(default_factory=list)  # (decode step of its end, prompt, length)
    step: float = 0.0
    cached: float = 0.0
    time: float = 0.0  # of these numbers
    stamp: int = 0  # of its newest event; older ones do not count

    def advance(self, speed: Speed, time: float) -> None:
        """The steps that it has made by then."""
        rows, spent = len(self.live), time - self.time
        self.time = max(self.time, time)
        if not rows or spent <= 0:
            return
        base, each = speed.step(rows)
        half, linear = each * rows / 2, base + each * (self.cached - rows / 2)
        steps = spent / linear if half == 0 else (sqrt(linear * linear + 4 * half * spent) - linear) / (2 * half)
        self.step += steps
        self.cached += rows * steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """When steps ended, and what the parts did until then."""

    ends: tuple[float, ...]
    tokens: tuple[int, ...]  # of every step
    waited: tuple[float, ...]  # by the trainer before it
    staleness: tuple[float, ...]  # exchanges of weights since its sequences began, on average


class Streaming:
    """One simulation; `run` makes it."""

    def __init__(
        self,
        speed: Speed,
        engines: int,
        stream: Stream,
        groups: Callable[[int], list[int]],
        train: Callable[[Draw], Training],
    ) -> None:
        self.speed, self.stream, self.groups, self.train = speed, stream, groups, train
        self.engines = [_Engine() for _ in range(engines)]
        self.events: list[tuple[float, int, int, int]] = []
        self.waiting: deque[tuple[int, int]] = deque()  # (prompt, length) of admitted groups
        self.left: dict[int, int] = {}  # sequences of a group that have not ended
        self.began: dict[int, int] = {}  # exchanges before it
        self.ended: deque[int] = deque()
        self.next_prompt = self.exchanges = 0
        self.free_at = 0.0  # the trainer
        self.is_training = False
        self.ends: list[float] = []
        self.tokens: list[int] = []
        self.waited: list[float] = []
        self.staleness: list[float] = []

    def run(self, steps: int) -> Streamed:
        """Until the trainer has made so many steps."""
        self._admit(0.0)
        while len(self.ends) < steps:
            time, kind, number, stamp = heappop(self.events)
            if kind == STEP_ENDS:
                self._step_ends(time)
            elif stamp == self.engines[number].stamp:
                self._sequence_ends(time, self.engines[number])
                self._plan(number)
            else:
                continue
            self._admit(time)
            self._begin_step(time)
        return Streamed(
            ends=tuple(self.ends),
            tokens=tuple(self.tokens[:steps]),
            waited=tuple(self.waited[:steps]),
            staleness=tuple(self.staleness[:steps]),
        )

    def _admit(self, time: float) -> None:
        """Prompts begin while the limits allow it."""
        stream, changed = self.stream, set()
        between = stream.prompts * stream.steps
        while len(self.left) < stream.at_a_time:
            needed = ceil((self.next_prompt + 1 - (1 + stream.staleness) * between) / between - 1e-9)
            if needed > self.exchanges:
                break
            lengths = self.groups(self.next_prompt)
            self.left[self.next_prompt], self.began[self.next_prompt] = len(lengths), self.exchanges
            for length in lengths:
                changed.add(self._place(time, self.next_prompt, length))
            self.next_prompt += 1
        for number in changed:
            self._plan(number)

    def _place(self, time: float, prompt: int, length: int) -> int:
        number = min(range(len(self.engines)), key=lambda one: (len(self.engines[one].live), one))
        engine = self.engines[number]
        engine.advance(self.speed, time)
        heappush(engine.live, (engine.step + length, prompt, length))
        engine.time += self.speed.admission(1, 1 / self.speed.shared)  # the others wait meanwhile
        return number

    def _plan(self, number: int) -> None:
        """The next end of a sequence of an engine."""
        engine = self.engines[number]
        engine.stamp += 1
        if engine.live:
            steps = max(0.0, engine.live[0][0] - engine.step)
            time = engine.time + decoding(self.speed, len(engine.live), steps, engine.cached)
            heappush(self.events, (time, SEQUENCE_ENDS, number, engine.stamp))

    def _sequence_ends(self, time: float, engine: _Engine) -> None:
        engine.advance(self.speed, time)
        engine.step = max(engine.step, engine.live[0][0])
        while engine.live and engine.live[0][0] <= engine.step + 1e-6:
            _, prompt, length = heappop(engine.live)
            engine.cached = max(0.0, engine.cached - length)
            self.left[prompt] -= 1
            if not self.left[prompt]:
                del self.left[prompt]
                self.ended.append(prompt)

    def _begin_step(self, time: float) -> None:
        if self.is_training or len(self.ended) < self.stream.prompts:
            return
        taken = [self.ended.popleft() for _ in range(self.stream.prompts)]
        draw = [self.groups(prompt) for prompt in taken]
        self.waited.append(max(0.0, time - self.free_at))
        self.tokens.append(sum(map(sum, draw)))
        ages = [self.exchanges - self.began.pop(prompt) for prompt in taken]
        self.staleness.append(sum(ages) / len(ages))
        self.is_training = True
        heappush(self.events, (max(time, self.free_at) + self.train(draw).seconds, STEP_ENDS, 0, 0))

    def _step_ends(self, time: float) -> None:
        """The trainer is free again; after some steps all have new weights."""
        self.is_training, self.free_at = False, time
        if (len(self.ends) + 1) % self.stream.steps == 0:
            self.exchanges += 1
            self.free_at = time + self.stream.pause
            for number, engine in enumerate(self.engines):
                engine.advance(self.speed, time)
                engine.time += self.stream.pause
                self._plan(number)
        self.ends.append(self.free_at)
