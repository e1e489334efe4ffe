"""One rollout engine: slots that sequences take in their order and leave at their own length.

Between two such events every decode step has the same sequences and one more cached token of each, so the seconds of
all steps between them are a sum in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from whet.train.plan.durations import (
    ROLLOUT_SECONDS,
    SEQUENCE_SECONDS,
    decode_step_seconds,
    folding_seconds,
    prefill_seconds,
)
from whet.train.plan.workload import Models
from whet.train.simulation.cluster import Cluster, joined

REDUCTIONS = 2  # of a layer, where an engine has several GPUs


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Seconds of an engine's decode steps and prefills."""

    models: Models
    cluster: Cluster
    gpus: int = 1  # of an engine: tensor parallel
    prompt: int  # tokens of a prompt
    shared: int = 1  # sequences whose prompt is read once
    overhead: float = 0.0  # of a decode step, beside what whet's own engine takes
    by_rows: dict[int, tuple[float, float]] = field(default_factory=dict)

    def step(self, rows: int) -> tuple[float, float]:
        """Seconds of a step of so many sequences without completions yet, and of every cached token of them."""
        if rows not in self.by_rows:
            gpu = joined(self.cluster.gpu, self.gpus)
            prompts = rows * self.prompt / min(self.shared, rows)
            base = decode_step_seconds(self.models, gpu, rows, prompts)
            each = decode_step_seconds(self.models, gpu, rows, prompts + 1) - base
            self.by_rows[rows] = base + self._reducing(rows) + self.overhead, each
        return self.by_rows[rows]

    def admission(self, sequences: int, prompts: float) -> float:
        """Seconds that new sequences take beside their decode steps: their prompts, and their texts on the host."""
        gpu = joined(self.cluster.gpu, self.gpus)
        return prefill_seconds(self.models, gpu, prompts * self.prompt) + SEQUENCE_SECONDS * sequences

    @property
    def begin(self) -> float:
        """Seconds of the beginning of a rollout, in which adapters are folded in."""
        return ROLLOUT_SECONDS + folding_seconds(self.models, joined(self.cluster.gpu, self.gpus))

    def _reducing(self, rows: int) -> float:
        """Sums over an engine's GPUs."""
        c = self.models.policy
        return REDUCTIONS * c.layers * self.cluster.reduced(self.models.engine_half * rows * c.width, self.gpus)


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What an engine does of a draw."""

    seconds: float
    tokens: int
    filled: float  # slot-seconds with a sequence in them


def sample_share(speed: Speed, lengths: Sequence[int], slots: int) -> Share:
    """An engine samples these completions, in this order, `slots` at a time."""
    if not lengths:
        return Share(seconds=0.0, tokens=0, filled=0.0)
    live: list[tuple[int, int]] = []  # (decode step of its end, length)
    step, cached, taken = 0, 0, 0
    seconds, filled = 0.0, 0.0
    while taken < len(lengths) or live:
        while taken < len(lengths) and len(live) < slots:
            heappush(live, (step + lengths[taken], lengths[taken]))
            taken += 1
        rows, steps = len(live), live[0][0] - step
        spent = decoding(speed, rows, steps, cached)
        seconds, filled = seconds + spent, filled + rows * spent
        cached, step = cached + rows * steps, step + steps
        while live and live[0][0] == step:
            cached -= heappop(live)[1]
    count = len(lengths)
    beside = speed.begin + speed.admission(count, -(-count // speed.shared))  # while which slots are taken
    return Share(seconds=seconds + beside, tokens=sum(lengths), filled=filled + min(count, slots) * beside)


def decoding(speed: Speed, rows: int, steps: float, cached: float) -> float:
    """Seconds of steps of the same sequences, that begin with so many cached tokens of completions."""
    base, each = speed.step(rows)
    return steps * base + each * (steps * cached + rows * steps * (steps - 1) / 2)
