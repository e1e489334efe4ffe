"""Steps as events: when draws begin and end on every engine, when steps do, when weights arrive.

A ticket is (draw, version): draw t is sampled with the weights of version max(0, t - 1 - S), after that many steps;
S + 1 draws are outstanding, draws are trained on in their order, and nothing is dropped. Sequences of a draw go to
engines in turn. An engine has one version at a time: it takes its share of the next draw when it is done with this
one and the version is there. So times are sums and maxima of seconds that do not depend on the schedule, and a larger
S makes no event later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Literal

from whet.train.simulation.engine_rollout import Share, Speed, sample_share
from whet.train.simulation.trainer_step import Draw, Trainer, Training

Kind = Literal["share begins", "share ends", "step begins", "step ends", "weights sent", "checkpoint written"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """What happens; `number` is that of a draw, a step or a version, `engine` -1 for the trainer."""

    time: float
    kind: Kind
    number: int
    engine: int = -1


Shares = Callable[[int], tuple[Share, ...]]  # number of a draw → what every engine does of it


@dataclass(frozen=True, kw_only=True, slots=True)
class HandOff:
    """Seconds of new weights."""

    sent: float = 0.0  # from the trainer, which waits
    taken: float = 0.0  # by an engine between two draws
    checkpoint: float = 0.0  # the trainer writes one
    every: int = 0  # steps between checkpoints; 0: none


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """All events in order, and the seconds of parts."""

    events: tuple[Event, ...]
    steps: tuple[Training, ...]
    shares: tuple[tuple[Share, ...], ...]
    ends: tuple[float, ...]  # of steps, with what follows before the next can begin
    versions: tuple[int, ...]  # that draws were sampled with

    @property
    def staleness(self) -> tuple[int, ...]:
        """Steps between the weights that a draw was sampled with and those that are trained on it."""
        return tuple(number - version for number, version in enumerate(self.versions))


def simulate(
    shares: Shares, train: Callable[[int], Training], hand_off: HandOff, *, staleness: float, steps: int
) -> Timeline:
    """So many steps with a staleness bound, on engines apart from the trainer; 0 is synchronous, inf has no bound."""
    free = [0.0] * len(shares(1))
    there = [0.0]  # when each version is with the engines
    before, events, trained, ends, versions = 0.0, [], [], [], []
    for number in range(1, steps + 1):
        version = 0 if staleness == inf else max(0, number - 1 - int(staleness))
        taken = hand_off.taken if version else 0.0
        for engine, share in enumerate(shares(number)):
            begin = max(free[engine], there[version])
            free[engine] = begin + taken + share.seconds
            events += [
                Event(time=begin, kind="share begins", number=number, engine=engine),
                Event(time=free[engine], kind="share ends", number=number, engine=engine),
            ]
        begin, one = max(before, *free), train(number)
        end = begin + one.seconds
        before = end + hand_off.sent
        there.append(before)
        events += [
            Event(time=begin, kind="step begins", number=number),
            Event(time=end, kind="step ends", number=number),
            Event(time=before, kind="weights sent", number=number),
        ]
        if hand_off.every and number % hand_off.every == 0:
            before += hand_off.checkpoint
            events.append(Event(time=before, kind="checkpoint written", number=number))
        trained.append(one)
        ends.append(before)
        versions.append(version)
    return Timeline(
        events=tuple(sorted(events, key=lambda event: event.time)),
        steps=tuple(trained),
        shares=tuple(shares(number) for number in range(1, steps + 1)),
        ends=tuple(ends),
        versions=tuple(versions),
    )


def shared_out(speed: Speed, engines: int, slots: int, draws: Callable[[int], Draw]) -> Shares:
    """Every draw shared out among engines, the first sequences of all prompts first."""

    def shares(number: int) -> tuple[Share, ...]:
        order = in_turn(draws(number))
        return tuple(sample_share(speed, order[engine::engines], slots) for engine in range(engines))

    return cache(shares)


def in_turn(draw: Draw) -> list[int]:
    """Lengths of the first sequences of all prompts, then of the second ones, …"""
    return [group[place] for place in range(max(map(len, draw))) for group in draw if place < len(group)]


def trained_on(trainer: Trainer, draws: Callable[[int], Draw]) -> Callable[[int], Training]:
    """The seconds of a step by its number, each computed once."""
    return cache(lambda number: trainer.step(draws(number)))


def drawn(lengths: Callable[[int, int], Sequence[int]], prompts: int, group: int) -> Callable[[int], Draw]:
    """Lengths by draw and prompt; `lengths` gives those of a draw in one row."""

    def one(number: int) -> Draw:
        row = lengths(number, prompts * group)
        return [row[first : first + group] for first in range(0, len(row), group)]

    return cache(one)
