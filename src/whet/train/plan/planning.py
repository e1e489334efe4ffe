"""The plan of a config on a GPU: memory and seconds of every moment, and what it comes to over the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whet.train.plan.durations import Duration, durations
from whet.train.plan.gpus import GPU
from whet.train.plan.peaks import CONTEXT_BYTES, Peaks, apart_bytes, chosen, peaks
from whet.train.plan.workload import Models, Work

HOUR = 3600
NOWHERE: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run takes on `gpus` GPUs of a kind, each of which holds all weights, and on those of other models."""

    gpu: GPU
    gpus: int
    models: Models
    work: Work  # of one GPU, with the longest sequences: what memory is planned for
    usual: Work  # of one GPU, with sequences of average length: what seconds are planned for
    peaks: Peaks
    apart: Mapping[str, int]  # GPU of other models → bytes that are needed there
    seconds: Duration
    steps: int
    evaluations: int

    @property
    def fits(self) -> bool:
        return self.peaks.fits(self.gpu.memory) and all(size <= self.gpu.memory for size in self.apart.values())

    @property
    def tokens_a_step(self) -> int:
        """Trained tokens of a step, on all GPUs; online, if every completion is as long as it may be."""
        return self.gpus * self.usual.sequences * self.usual.completion

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_a_step / self.seconds.step

    @property
    def hours(self) -> float:
        """The whole run, without loading the models and writing checkpoints."""
        return (self.steps * self.seconds.step + self.evaluations * self.seconds.evaluation) / HOUR

    @property
    def dollars(self) -> float:
        return self.hours * (self.gpus + len(self.apart)) * self.gpu.price


def make_plan(
    models: Models,
    work: Work,
    gpu: GPU,
    *,
    usual: Work | None = None,
    gpus: int = 1,
    steps: int = 1,
    evaluations: int = 0,
    places: Mapping[str, Sequence[str]] = NOWHERE,
) -> Plan:
    """The plan of this work, which is that of one of the GPUs; `usual` is the same with average lengths.

    `places`: model → its own GPUs.
    """
    choice = chosen(models, work, gpu.memory)
    found, usual = peaks(models, work, choice), usual or work
    apart: dict[str, int] = {}
    for name, size in apart_bytes(models, work, choice).items():
        for device in places[name]:
            apart[device] = apart.get(device, CONTEXT_BYTES) + size
    return Plan(
        gpu=gpu,
        gpus=gpus,
        models=models,
        work=work,
        usual=usual,
        peaks=found,
        apart=apart,
        seconds=durations(models, usual, choice, found.placement, gpu, gpus),
        steps=steps,
        evaluations=evaluations,
    )
