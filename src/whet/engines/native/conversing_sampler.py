"""Conversations in slots: the KV cache of one is kept between its turns, so that only what is new to it is read.

A turn that ends leaves its sequence in its slot until the environment has answered; then the answer is read behind it
and the next turn begins there. A conversation that would outgrow its slot, or whose next prompt does not begin with
what the slot holds, is read again from its beginning, in the next pass over the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial

import torch

from whet.engines.engine_protocol import token_limit
from whet.engines.native.cuda import Assignment, CudaSampler, SampleJob
from whet.engines.native.decode import DecodeLoop
from whet.engines.native.slots import Drawn
from whet.records import Prompt, Sampling
from whet.streams import stream_key

OBSERVED = 64  # positions that a conversation gets for observations until longer ones were seen
Answer = Callable[[Mapping[int, Drawn]], Mapping[int, Prompt]]  # ended turns → the prompts of next turns


@dataclass(slots=True)
class Exchange:
    """The turns that wait for their answers. With a thread, answers to turns that end while it is busy are asked next.

    An answer is waited for at the next check of the slots after it was asked for, however long it takes: which
    sequences are sampled side by side does not depend on the clock.
    """

    answer: Answer
    thread: ThreadPoolExecutor | None
    _ended: dict[int, Drawn] = field(default_factory=dict)
    _asked: Future[Mapping[int, Prompt]] | None = None
    _waiting: list[int] = field(default_factory=list)  # numbers of the turns that were asked about

    def tell(self, ended: Mapping[int, Drawn]) -> dict[int, Prompt | None]:
        """Takes ended turns; returns the answers that have come since: the next prompt, or None for the end."""
        self._ended |= ended
        if self.thread is None:
            return self._answered(self.answer(self._ended), list(self._ended)) if self._ended else {}
        found = self._collected()
        if self._ended:
            self._waiting, turns, self._ended = list(self._ended), self._ended, {}
            self._asked = self.thread.submit(copy_context().run, self.answer, turns)
        return found

    def all_of(self) -> dict[int, Prompt | None]:
        """The answers to everything that was told."""
        found = self.tell({})
        return found | (self.tell({}) if self.thread is not None else {})

    def _collected(self) -> dict[int, Prompt | None]:
        if self._asked is None:
            return {}
        asked, self._asked = self._asked, None
        return self._answered(asked.result(), self._waiting)

    def _answered(self, going: Mapping[int, Prompt], numbers: Sequence[int]) -> dict[int, Prompt | None]:
        if self.thread is None:
            self._ended = {}
        return {number: going.get(number) for number in numbers}


@dataclass(frozen=True, slots=True)
class _Next:
    """A turn that begins in the slot of the one before."""

    slot: int
    prompt: Prompt
    start: int  # tokens whose keys and values the slot holds
    limit: int


class ConversingSampler(CudaSampler):
    """A sampler that also samples conversations."""

    _observed = OBSERVED

    @torch.no_grad()
    def converse(
        self, prompts: Sequence[Prompt], sampling: Sampling, answer: Answer, *, count: int, overlaps: bool
    ) -> None:
        """`count` conversations of each prompt, numbered prompt by prompt; with fewer slots when memory runs out."""
        self._finished = None
        self.timings.clear()
        opened = {
            place * count + sample: (prompt, stream_key((*prompt.stream, sample)))
            for place, prompt in enumerate(prompts)
            for sample in range(count)
        }
        thread = ThreadPoolExecutor(1, thread_name_prefix="replies") if overlaps else None
        try:
            exchange = Exchange(answer, thread)
            while opened:
                self._with_room(partial(self._converse, opened, sampling, exchange))
        finally:
            if thread is not None:
                thread.shutdown(wait=False)  # after an interrupt an environment may still be answering

    def _converse(self, opened: dict[int, tuple[Prompt, int]], sampling: Sampling, exchange: Exchange) -> None:
        """Samples the conversations in `opened`, where the end leaves those that outgrew their slots."""
        for number, prompt in exchange.all_of().items():  # of an attempt that ran out of memory
            _enter(opened, number, prompt)
        if not opened:
            return
        numbers, asked = list(opened), list({id(prompt): prompt for prompt, _ in opened.values()}.values())
        places = {id(prompt): place for place, prompt in enumerate(asked)}
        jobs = [
            SampleJob(places[id(prompt)], stream, token_limit(prompt, sampling, self.policy.context))
            for prompt, stream in opened.values()
        ]
        sizes = [len(asked[job.prompt].tokens) + job.limit for job in jobs]
        with self._slots(asked, jobs, sampling, spare=self._observed) as loop:
            waiting, assigned = list(range(len(jobs)))[::-1], Assignment(loop.slots)
            held: dict[int, int] = {}  # number → slot, of those that wait for an answer
            texts = {number: opened[number][0].tokens for number in numbers}
            while waiting or assigned.live:
                with self._timed("prefill"):
                    self._admit(loop, asked, jobs, assigned.enter(waiting), assigned)
                speaking = sorted(assigned.live.keys() - held.values())
                if speaking:
                    with self._timed("decode"):
                        self._grow(loop, assigned, speaking)
                with self._timed("harvest"):
                    drawn = self._ended(loop, assigned, speaking, jobs)
                ended = {numbers[assigned.live[slot]]: slot for slot in drawn}
                held |= ended
                for number, slot in ended.items():
                    texts[number] += tuple(drawn[slot].tokens)
                with self._timed("environment"):
                    answers = exchange.tell({number: drawn[slot] for number, slot in ended.items()})
                going = []
                for number, prompt in answers.items():
                    slot = held.pop(number)
                    _enter(opened, number, prompt)
                    following = None if prompt is None else self._following(loop, slot, texts[number], prompt, sampling)
                    if prompt is not None:
                        texts[number] = prompt.tokens
                        grown = len(prompt.tokens) + token_limit(prompt, sampling, self.policy.context)
                        self._observed = max(self._observed, grown - sizes[assigned.live[slot]])
                    if following is None:
                        assigned.leave(slot)
                    else:
                        going.append(following)
                with self._timed("prefill"):
                    self._go_on(loop, assigned, going)

    def _following(
        self, loop: DecodeLoop, slot: int, held: tuple[int, ...], prompt: Prompt, sampling: Sampling
    ) -> _Next | None:
        """The next turn in the slot that holds these tokens; None if it has to be read from its beginning."""
        limit = token_limit(prompt, sampling, self.policy.context)
        if prompt.tokens[: len(held)] != held or len(prompt.tokens) + limit > loop.capacity:
            return None
        return _Next(slot, prompt, len(held) - 1, limit)  # the last sampled token may not have been read yet

    def _go_on(self, loop: DecodeLoop, assigned: Assignment, going: Sequence[_Next]) -> None:
        """Reads what is new to the conversations and draws the first tokens of their next turns."""
        for some in self._pieces({place: len(one.prompt.tokens) for place, one in enumerate(going)}):
            now = [going[place] for place in some]
            slots = [one.slot for one in now]
            states = loop.read_on([one.prompt.tokens[one.start :] for one in now], slots, [one.start for one in now])
            for one in now:
                assigned.ages[one.slot] = len(one.prompt.tokens)
            loop.resume(
                self._tensor(slots),
                states,
                self._tensor([len(one.prompt.tokens) for one in now]),
                self._tensor([stream_key((*one.prompt.stream, 0)) for one in now]),
                self._tensor([one.limit for one in now]),
            )


def _enter(opened: dict[int, tuple[Prompt, int]], number: int, prompt: Prompt | None) -> None:
    if prompt is None:
        del opened[number]
    else:
        opened[number] = prompt, stream_key((*prompt.stream, 0))
