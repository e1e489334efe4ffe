"""Step seconds that verl's authors published for 32 to 128 GPUs, beside the simulator's (docs/scaling.md).

Source: verl, docs/advance/fully_async.md at commit 2147009, "Experiments": Qwen2.5-Math-7B, DAPO, 512 prompts × 16
completions of up to 28 K tokens a step, H20 GPUs, vLLM and FSDP2. Its scripts (recipe/fully_async_policy/exp) have 16
minibatches of 32 prompts a step, engines of 4 GPUs, sequence parallelism over 4, shards of 2 GPUs, gradient
checkpointing; its rollouter samples 16 prompts at a time on each engine.

The source has no lengths, no network, and no speed of engine and trainer. FITTED are the three numbers that the three
parts of one published point (synchronous, 64 GPUs: gen, old_log_prob, update_actor) determine, with the trainer's
seconds that do not depend on lengths taken to be equal in the last two; everything else is predicted.
`python -m bench.published_clusters` fits them again, also with other assumptions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from bench.command import run_command
from bench.streaming import Stream, Streamed, Streaming
from whet.models.decoder.known_shapes import require_shape
from whet.train.plan.gpus import GIBI, GPU
from whet.train.plan.workload import Models, Work
from whet.train.simulation.cluster import Cluster
from whet.train.simulation.completion_lengths import CompletionLengths, log_normal
from whet.train.simulation.engine_rollout import Speed
from whet.train.simulation.schedules import HandOff, Timeline, drawn, shared_out, simulate, trained_on
from whet.train.simulation.trainer_step import Extra, Trainer

# 96 GB, 4.0 TB/s, 148 TFLOP/s in bf16, NVLink of 450 GB/s each way: its data sheet; the network is an assumption.
H20 = GPU(name="h20", memory=int(95.6 * GIBI), bandwidth=4.0e12, flops=148e12, host_bandwidth=50e9, price=1.0)
CLUSTER = Cluster(gpu=H20, link=450e9, network=50e9)
PROMPTS, GROUP, PROMPT, LONGEST, MINIBATCHES = 512, 16, 150, 28 * 1024, 16
ENGINE_GPUS, RANK_GPUS, SHARDS, SLOTS, PROMPTS_OF_ENGINE = 4, 4, 2, 1024, 16
MICRO_BATCH = 2 * 30 * 1024 * RANK_GPUS  # tokens: ppo_max_token_len_per_gpu, of all GPUs of a rank
LOCAL_STEPS, PAUSE = 4, 2.0  # of the trainer between two exchanges of weights; seconds of one, an assumption
SIGMA = 1.0  # of the log-normal lengths, an assumption
STEPS = 3
EXCHANGES, FIRST = 4, 2  # that are simulated asynchronously, and first ones that are not counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What the source does not say."""

    median: float  # tokens of a completion
    decode_overhead: float  # seconds of a decode step beside what whet's own engine takes
    constant: float  # seconds of the trainer's two parts each, whatever the lengths
    sigma: float = SIGMA
    is_offloading: bool = False  # the constant is that of synchronous runs, which offload, and not of optimizer steps

    def extra(self, *, synchronous: bool) -> Extra:
        annotate = self.constant if synchronous else 0.0
        if self.is_offloading:
            return Extra(annotate=annotate, update=annotate)
        return Extra(annotate=annotate, optimizer_step=self.constant / MINIBATCHES)


FITTED = Fitted(median=351.1, decode_overhead=0.00432, constant=55.5)
FIT_TO = {"gen": 150.72, "old_log_prob": 70.26, "update_actor": 133.41}  # synchronous, 64 GPUs
HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A published configuration: seconds a step over the whole run, and over its first 200 steps."""

    kind: str
    gpus: int  # of each side, where there are two
    staleness: float | None  # None: synchronous, colocated
    whole: float  # the column `step`
    hours: float  # the column `total time 200 step`
    fitted: bool = False

    @property
    def first(self) -> float:
        return self.hours * HOUR / 200


POINTS = (
    Point(kind="synchronous", gpus=32, staleness=None, whole=790.10, hours=27 + 43 / 60),
    Point(kind="synchronous", gpus=64, staleness=None, whole=365.28, hours=20 + 45 / 60, fitted=True),
    Point(kind="synchronous", gpus=128, staleness=None, whole=356.30, hours=17 + 56 / 60),
    Point(kind="fully asynchronous", gpus=16, staleness=0.5, whole=294.77, hours=16 + 21 / 60),
    Point(kind="fully asynchronous", gpus=32, staleness=0.5, whole=189.26, hours=10 + 14 / 60),
    Point(kind="fully asynchronous", gpus=64, staleness=0.5, whole=150.63, hours=6 + 46 / 60),
    Point(kind="streamed, no staleness", gpus=64, staleness=0.0, whole=231.34, hours=9 + 41 / 60),
    Point(kind="fully asynchronous, threshold 0.1", gpus=64, staleness=0.1, whole=171.30, hours=8 + 37 / 60),
    Point(kind="fully asynchronous, threshold 0.3", gpus=64, staleness=0.3, whole=146.11, hours=6 + 49 / 60),
)


def predicted(point: Point, fitted: Fitted = FITTED) -> float:
    """The simulator's seconds of a step."""
    if point.staleness is None:
        return synchronous(point.gpus, fitted).ends[-1] / STEPS
    ends = asynchronous(point.gpus, point.staleness, fitted).ends
    return (ends[-1] - ends[FIRST * LOCAL_STEPS - 1]) / EXCHANGES


def synchronous(gpus: int, fitted: Fitted) -> Timeline:
    """Colocated steps on so many GPUs."""
    draws = drawn(_lengths(fitted).draw, PROMPTS, GROUP)
    trainer = _trainer(gpus, fitted.extra(synchronous=True))
    shares = shared_out(_speed(fitted), gpus // ENGINE_GPUS, SLOTS, draws)
    return simulate(shares, trained_on(trainer, draws), HandOff(), staleness=0, steps=STEPS)


def asynchronous(gpus: int, staleness: float, fitted: Fitted) -> Streamed:
    """As many GPUs on each side; a step is 512 prompts, in four local steps."""
    whole = _trainer(gpus, fitted.extra(synchronous=False))
    work = replace(whole.work, prompts=PROMPTS // LOCAL_STEPS, updates=MINIBATCHES // LOCAL_STEPS, reads_old=False)
    trainer = replace(whole, work=work)
    engines = gpus // ENGINE_GPUS
    stream = Stream(
        prompts=PROMPTS // LOCAL_STEPS,
        steps=LOCAL_STEPS,
        staleness=staleness,
        at_a_time=PROMPTS_OF_ENGINE * engines,
        pause=PAUSE,
    )
    lengths = _lengths(fitted)
    groups = cache(lambda prompt: lengths.draw(prompt, GROUP))
    return Streaming(_speed(fitted), engines, stream, groups, trainer.step).run((FIRST + EXCHANGES) * LOCAL_STEPS)


def parts(timeline: Timeline) -> Mapping[str, float]:
    """Mean seconds of a synchronous step's parts, by the names of the source."""
    return {
        "gen": fmean(max(share.seconds for share in one) for one in timeline.shares),
        "old_log_prob": fmean(one.annotate for one in timeline.steps),
        "update_actor": fmean(one.update for one in timeline.steps),
    }


def fit(start: Fitted = FITTED, rounds: int = 12) -> Fitted:
    """The numbers with which the parts of the point at 64 GPUs are the published ones."""
    found = start
    goal = FIT_TO
    for _ in range(rounds):
        now, free = (parts(synchronous(64, one)) for one in (found, replace(found, decode_overhead=0.0)))
        steps = (now["gen"] - free["gen"]) / found.decode_overhead
        found = replace(
            found,
            median=found.median
            * (goal["update_actor"] - goal["old_log_prob"])
            / (now["update_actor"] - now["old_log_prob"]),
            decode_overhead=max(1e-4, (goal["gen"] - free["gen"]) / steps),
            constant=found.constant + goal["old_log_prob"] - now["old_log_prob"],
        )
    return found


def _lengths(fitted: Fitted) -> CompletionLengths:
    return log_normal(fitted.median, fitted.sigma, LONGEST)


def _models() -> Models:
    return Models(policy=require_shape("qwen2.5-7b")[1], recompute=True)


def _speed(fitted: Fitted) -> Speed:
    return Speed(models=_models(), cluster=CLUSTER, gpus=ENGINE_GPUS, prompt=PROMPT, overhead=fitted.decode_overhead)


def _trainer(gpus: int, extra: Extra) -> Trainer:
    return Trainer(
        models=_models(),
        work=Work(
            loop="online",
            prompts=PROMPTS,
            group=GROUP,
            prompt=PROMPT,
            completion=LONGEST,
            updates=MINIBATCHES,
            reads_old=True,
            padding_free=False,
        ),
        cluster=CLUSTER,
        gpus=gpus,
        shards=SHARDS,
        rank=RANK_GPUS,
        micro_batch_tokens=MICRO_BATCH,
        extra=extra,
    )


def main(_: Sequence[str]) -> None:
    """Fits and predicts, also with other assumptions."""
    for start in (FITTED, *(replace(FITTED, sigma=sigma) for sigma in (0.8, 1.2)), replace(FITTED, is_offloading=True)):
        found = fit(start)
        print(found, dict(parts(synchronous(64, found))), sep="\n")
        for point in POINTS:
            seconds = predicted(point, found)
            errors = f"{seconds / point.whole - 1:+.0%} of the whole run, {seconds / point.first - 1:+.0%} of 200 steps"
            print(
                f"  {point.kind} {point.gpus}: {seconds:.0f}; published {point.whole:.0f}, {point.first:.0f}: {errors}"
            )


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
