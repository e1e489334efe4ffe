"""What a simulated run comes to: seconds a step, tokens a second, idle GPUs, staleness, the bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from statistics import fmean

from whet.train.simulation.deployment import Deployment, Placed, Split, place
from whet.train.simulation.schedules import Shares, Timeline, drawn, shared_out, simulate, trained_on
from whet.train.simulation.trainer_step import Draw, Training

STEPS = 16  # that are simulated after the first ones
WARM_UP = 2  # first steps that are left out of means, beside those with weights of version 0
LITTLE = 0.1  # idle share that is not worth a word


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """When draws may begin: with the newest weights (0), or with those of up to so many steps before."""

    staleness: float = 0
    colocated: bool = False

    @property
    def name(self) -> str:
        if self.staleness:
            return "asynchronous, " + ("no bound" if self.staleness == inf else f"S = {self.staleness:g}")
        return "synchronous, colocated" if self.colocated else "synchronous, apart"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One schedule on one split."""

    schedule: Schedule
    split: Split
    placed: Placed
    seconds: float  # a step, after the first ones
    mean_seconds: float  # a step, with the first ones
    tokens_per_second: float  # sampled and trained, after the first steps
    rollout: float  # seconds of a draw on the slowest engine
    sampling: float  # the same on average over engines
    training: float  # seconds of a step of the trainer, without waiting for a draw
    trainer_idle: float  # share of the trainer's GPU seconds in which they compute nothing
    rollout_idle: float  # share of the engines' seconds between draws
    slots_idle: float  # share of the engines' slot seconds, while they sample, without a sequence
    staleness: int  # the most, in steps
    bottleneck: str  # a sentence

    @property
    def fits(self) -> bool:
        return self.placed.fits


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A deployment on a split, with the seconds of its parts, each of which is computed once for all schedules."""

    split: Split
    placed: Placed
    shares: Shares
    train: Callable[[int], Training]
    trained: Callable[[int], Draw]


def preparing(deployment: Deployment) -> Callable[[Split], Prepared]:
    """What prepares splits of a deployment; all of them have the same draws."""
    work = deployment.work

    def lengths(number: int, count: int) -> Sequence[int]:
        return deployment.lengths.draw(number, count, deployment.seed)

    sampled = drawn(lengths, round(work.prompts * work.rounds), work.group)

    def trained(number: int) -> Draw:  # what dynamic sampling drops was sampled too
        return sampled(number)[: work.prompts]

    def prepare(split: Split) -> Prepared:
        placed = place(deployment, split)
        return Prepared(
            split=split,
            placed=placed,
            shares=shared_out(placed.speed, placed.engines, placed.slots, sampled),
            train=trained_on(placed.trainer, trained),
            trained=trained,
        )

    return cache(prepare)


def outcome(prepared: Prepared, schedule: Schedule, *, steps: int = STEPS) -> Outcome:
    """The outcome of a schedule on a split, over `steps` steps without checkpoints after those that warm it up."""
    first = _first(schedule)
    timeline = simulate(
        prepared.shares,
        prepared.train,
        replace(prepared.placed.hand_off, every=0),  # how many checkpoints fall into a few steps is chance
        staleness=schedule.staleness,
        steps=first + steps,
    )
    tokens = sum(sum(group) for number in range(first, first + steps) for group in prepared.trained(number + 1))
    return _outcome(schedule, prepared.split, prepared.placed, timeline, tokens)


def _first(schedule: Schedule) -> int:
    """Steps before the ones that are counted: draws that begin at once with the first weights are ahead of them."""
    return WARM_UP + (0 if schedule.staleness == inf else 2 * int(schedule.staleness))


def _outcome(schedule: Schedule, split: Split, placed: Placed, timeline: Timeline, tokens: int) -> Outcome:
    ends, first = timeline.ends, _first(schedule)
    counted = range(first, len(ends))
    window = ends[-1] - ends[first - 1]
    steps = [timeline.steps[one] for one in counted]
    shares = [timeline.shares[one] for one in counted]
    sampled = sum(share.seconds for one in shares for share in one)
    filled = sum(share.filled for one in shares for share in one)
    trained = sum(one.seconds - one.waiting - one.sending for one in steps)
    sampling = sampled / placed.engines
    trainer_idle = 1 - (trained + (sampling if split.colocated else 0.0)) / window
    rollout_idle = trainer_idle if split.colocated else 1 - sampling / window
    rollout = fmean(max(share.seconds for share in one) for one in shares)
    training = fmean(one.seconds for one in steps)
    slots_idle = 1 - filled / (sampled * placed.slots) if sampled else 0.0
    return Outcome(
        schedule=schedule,
        split=split,
        placed=placed,
        seconds=window / len(steps),
        mean_seconds=ends[-1] / len(ends),
        tokens_per_second=tokens / window,
        rollout=rollout,
        sampling=sampling / len(steps),
        training=training,
        trainer_idle=max(0.0, trainer_idle),
        rollout_idle=max(0.0, rollout_idle),
        slots_idle=max(0.0, slots_idle),
        staleness=max(timeline.staleness),
        bottleneck=_bottleneck(schedule, rollout, training, sampling / len(steps), slots_idle),
    )


def _bottleneck(schedule: Schedule, rollout: float, training: float, sampling: float, slots_idle: float) -> str:
    """What a step waits for."""
    longer, which = max((rollout, "rollouts"), (training, "trainer"))
    tail = ""
    if which == "rollouts" and slots_idle > 0.3:
        tail = f", whose long answers leave {slots_idle:.0%} of the slots idle"
    if not schedule.staleness:
        share = longer / (rollout + training)
        take = "take" if which == "rollouts" else "takes"
        order = "take turns on all GPUs" if schedule.colocated else "wait for each other"
        return f"rollouts and trainer {order}; the {which} {take} {share:.0%} of a step{tail}"
    if which == "rollouts" and rollout - sampling > LITTLE * rollout:
        tail += f"; the slowest engine takes {rollout / sampling:.1f} times the mean"
    return f"the {which}{tail}: {longer:.1f} s a step, against {min(rollout, training):.1f} s of the other side"
