"""Conversations by an engine: in rounds, unless it has a method `converse` of its own that keeps KV caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from whet.engines.engine_protocol import Engine
from whet.records import Completion, Prompt, Sampling

# Ended turns by the numbers of their conversations → the prompts of the next turns; one that is missing is over.
Reply = Callable[[Mapping[int, Completion]], Mapping[int, Prompt]]


@runtime_checkable
class Converses(Protocol):
    """An engine that keeps the KV cache of a conversation between its turns."""

    def converse(
        self, prompts: Sequence[Prompt], sampling: Sampling, reply: Reply, *, count: int, overlaps: bool
    ) -> None:
        """Samples `count` conversations of each prompt, numbered prompt by prompt, until none is left.

        The turns are those of `in_rounds`, except for rounding. With `overlaps` replies may take long: others go on
        being sampled meanwhile, and `reply` is called in another thread.
        """
        ...


def converse(
    engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, reply: Reply, *, count: int, overlaps: bool
) -> None:
    """Samples conversations the engine's own way, or in rounds."""
    if isinstance(engine, Converses):
        engine.converse(prompts, sampling, reply, count=count, overlaps=overlaps)
    else:
        in_rounds(engine, prompts, sampling, reply, count=count)


def in_rounds(engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, reply: Reply, *, count: int) -> None:
    """All conversations turn by turn; every turn reads its conversation from the beginning."""
    groups = engine.generate(prompts, sampling, count=count)
    going = reply(dict(enumerate(one for group in groups for one in group)))
    while going:
        answers = engine.generate(list(going.values()), sampling, count=1)
        going = reply({number: one for number, (one,) in zip(going, answers, strict=True)})
