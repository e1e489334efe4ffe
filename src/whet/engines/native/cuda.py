"""Continuous batching: sequences enter as others finish; the host looks every few tokens.

Each prompt is read once, and its cache is shared by all samples of its group. Sequences keep their own random streams,
so what is drawn does not depend on when a sequence entered; only rounding does. In fp32 that is next to nothing:
prompts are then read one by one and products have a fixed number of rows.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.engines.limits import token_limit
from whet.engines.native.decode import BUCKET, DecodeLoop
from whet.engines.native.slots import slot_bytes
from whet.models.decoder.decoder import Decoder, parameter_count
from whet.models.logprobs import check_logprobs, doubt
from whet.records import Prompt, Sampling
from whet.streams import stream_key

LOOK = 16  # tokens between looks of the host
PREFILL_TOKENS = 32_768  # of prompts read at a time
CAPACITY_STEP = 64  # positions of a cache come in multiples
SPARE_MEMORY = 0.15  # share of the free memory that the cache leaves alone

log = logging.getLogger("whet")


@dataclass(frozen=True)
class Job:
    """One completion to be made."""

    prompt: int
    stream: int
    limit: int


@dataclass(frozen=True)
class Drawn:
    """One completion as it left the device."""

    tokens: list[int]
    logprobs: list[float]


class CudaSampler:
    """The slots and the graphs of one policy; kept between calls as long as they fit, but for the cache's memory."""

    def __init__(
        self, policy: Decoder, stops: Collection[int], *, max_slots: int, ops: Any, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """`ops` is the module of the decode steps: `decode_kernels`, or in tests the same in plain torch."""
        self.policy, self.max_slots, self.dtype, self.ops = policy, max_slots, dtype, ops
        self.device = next(policy.parameters()).device
        self.stops = torch.tensor(sorted(stops), dtype=torch.int64, device=self.device)
        self.timings: defaultdict[str, float] = defaultdict(float)  # seconds of the last call
        self._loop: DecodeLoop | None = None
        self._doubt: Tensor | float = -0.0  # of the head, at the last call
        self._asked = 0  # slots that the loop was made for, of which memory may have allowed fewer

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int) -> list[Drawn]:
        """`count` completions of each prompt, one behind the other."""
        if not prompts:
            return []
        jobs = [
            Job(i, stream_key((*p.stream, j)), token_limit(p, sampling, self.policy.context))
            for i, p in enumerate(prompts)
            for j in range(count)
        ]
        self.timings.clear()
        done: dict[int, Drawn] = {}
        if not self._is_completed(prompts, jobs, sampling, done):
            slots = min(len(jobs), self.max_slots) if self._loop is None else self._loop.slots
            self.max_slots, self._loop = max(1, slots // 2), None
            message = "out of memory while sampling: going on with %d sequences at a time instead of %d"
            log.warning(message, self.max_slots, slots)
            torch.cuda.empty_cache()
            self._complete(prompts, jobs, sampling, done)
        return [done[job] for job in range(len(jobs))]

    def _is_completed(
        self, prompts: Sequence[Prompt], jobs: Sequence[Job], sampling: Sampling, done: dict[int, Drawn]
    ) -> bool:
        """Whether memory was enough; when this returns, nothing of an attempt that failed is held any more."""
        try:
            self._complete(prompts, jobs, sampling, done)
        except torch.cuda.OutOfMemoryError:
            return False
        return True

    def _complete(
        self, prompts: Sequence[Prompt], jobs: Sequence[Job], sampling: Sampling, done: dict[int, Drawn]
    ) -> None:
        """Makes the completions that are not yet done."""
        loop = self._prepared(prompts, jobs)
        loop.set_temperature(sampling.temperature)
        loop.refresh(self.policy)
        self._doubt = doubt(loop.weights.head)
        loop.cache.hold()
        try:
            waiting = [job for job in range(len(jobs)) if job not in done][::-1]
            crew = _Crew(loop.slots)
            while waiting or crew.live:
                with self._timed("prefill"):
                    new = crew.enter(waiting)
                    self._admit(loop, prompts, jobs, new, crew)
                with self._timed("decode"):
                    self._grow(loop, crew)
                with self._timed("harvest"):
                    self._harvest(loop, crew, jobs, done)
        finally:
            loop.cache.release()

    def _prepared(self, prompts: Sequence[Prompt], jobs: Sequence[Job]) -> DecodeLoop:
        longest = max(len(prompts[job.prompt].tokens) + job.limit for job in jobs)
        room = max(job.limit for job in jobs)
        wanted = min(len(jobs), self.max_slots)
        loop = self._loop
        if loop is None or loop.capacity < longest or loop.room < room or self._asked < wanted:
            self._loop = loop = None
            capacity = -(-longest // CAPACITY_STEP) * CAPACITY_STEP
            slots = min(wanted, self._slots_that_fit(capacity, room))
            loop = DecodeLoop(
                self.policy,
                slots=slots,
                capacity=capacity,
                room=room,
                stops=self.stops,
                dtype=self.dtype,
                ops=self.ops,
            )
            self._loop, self._asked = loop, wanted
        return loop

    def _slots_that_fit(self, capacity: int, room: int) -> int:
        if self.device.type != "cuda":
            return self.max_slots
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        c = self.policy.config
        copies = parameter_count(c) * self.dtype.itemsize
        reading = PREFILL_TOKENS * (8 * c.width + self.dtype.itemsize * (4 * c.heads * c.head_dim + 4 * c.mlp_width))
        room_left = int((free - copies - reading) * (1 - SPARE_MEMORY))
        return max(1, room_left // slot_bytes(c, capacity=capacity, room=room, dtype=self.dtype))

    def _admit(
        self, loop: DecodeLoop, prompts: Sequence[Prompt], jobs: Sequence[Job], new: Sequence[int], crew: _Crew
    ) -> None:
        """Reads the prompts of these slots' jobs, each once, and draws their first tokens."""
        groups: dict[int, list[int]] = {}
        for slot in new:
            groups.setdefault(jobs[crew.live[slot]].prompt, []).append(slot)
        for some in self._pieces(groups, prompts):
            leaders = {prompt: groups[prompt][0] for prompt in some}
            states = loop.read([prompts[prompt].tokens for prompt in some], list(leaders.values()))
            mine = [(slot, index) for index, prompt in enumerate(some) for slot in groups[prompt]]
            told = [jobs[crew.live[slot]] for slot, _ in mine]
            for prompt, leader in leaders.items():
                crew.share(leader, groups[prompt], age=len(prompts[prompt].tokens))
            loop.admit(
                self._tensor([slot for slot, _ in mine]),
                states[self._tensor([index for _, index in mine])],
                self._tensor([len(prompts[job.prompt].tokens) for job in told]),
                self._tensor([job.stream for job in told]),
                self._tensor([job.limit for job in told]),
                self._tensor([leaders[job.prompt] for job in told]),
            )

    def _pieces(self, groups: Collection[int], prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Prompts to be read together."""
        budget = PREFILL_TOKENS if self.dtype is torch.bfloat16 else 1
        some: list[int] = []
        tokens = 0
        for prompt in groups:
            size = len(prompts[prompt].tokens)
            if some and tokens + size > budget:
                yield some
                some, tokens = [], 0
            some.append(prompt)
            tokens += size
        if some:
            yield some

    def _grow(self, loop: DecodeLoop, crew: _Crew) -> None:
        """Some tokens more in every live slot, long sequences first: their attention takes longest."""
        slots = sorted(crew.live, key=lambda slot: crew.ages[slot], reverse=True)
        for slot in slots:
            crew.ages[slot] += LOOK
        size = len(slots) if self.dtype is torch.bfloat16 else BUCKET
        for start in range(0, len(slots), size):
            count = loop.activate(slots[start : start + size])
            loop.run(LOOK, count=count)

    def _harvest(self, loop: DecodeLoop, crew: _Crew, jobs: Sequence[Job], done: dict[int, Drawn]) -> None:
        """Takes what has ended off the device; a log-prob that is not finite ends everything.

        NaN stays in a cache, so the newest log-prob of each slot tells; it comes with the lengths, in one transfer.
        """
        rows = loop.rows
        so_far = torch.minimum(rows.steps, rows.ended).clamp(1, loop.room)  # a slot grows on after its end
        is_sound = (rows.logprobs.gather(1, so_far[:, None] - 1)[:, 0] + self._doubt).isfinite()
        ends = torch.where((rows.steps >= rows.ended) | ~is_sound, so_far, 0).tolist()
        gone = [slot for slot in crew.live if ends[slot]]
        if not gone:
            return
        widest = max(ends[slot] for slot in gone)
        at = self._tensor(gone)
        tokens, logprobs = rows.out_tokens[at, :widest].tolist(), (rows.logprobs[at, :widest] + self._doubt).tolist()
        for slot, said, sure in zip(gone, tokens, logprobs, strict=True):
            job, drawn = crew.live[slot], Drawn(said[: ends[slot]], sure[: ends[slot]])
            check_logprobs(drawn.logprobs, self.policy, prompt=jobs[job].prompt)
            done[job] = drawn
            crew.leave(slot)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.device)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.timings[name] += time.perf_counter() - started


class _Crew:
    """Which job sits in which slot. A slot whose cache others look into is free only when they have left too."""

    def __init__(self, slots: int) -> None:
        self.free = list(range(slots))[::-1]
        self.live: dict[int, int] = {}  # slot → job
        self.ages: dict[int, int] = {}  # slot → about how many tokens it has
        self._leaders: dict[int, int] = {}  # slot → the slot that holds its prompt
        self._guests: Counter[int] = Counter()  # leader → live slots that look into it, itself included

    def enter(self, waiting: list[int]) -> list[int]:
        """Gives free slots to the jobs that have waited longest."""
        new = []
        while waiting and self.free:
            slot = self.free.pop()
            self.live[slot] = waiting.pop()
            new.append(slot)
        return new

    def share(self, leader: int, slots: Sequence[int], *, age: int) -> None:
        """These slots, the leader among them, look into the leader's cache of so many tokens."""
        for slot in slots:
            self._leaders[slot], self.ages[slot] = leader, age
            self._guests[leader] += 1

    def leave(self, slot: int) -> None:
        """A slot is done."""
        del self.live[slot]
        leader = self._leaders[slot]
        self._guests[leader] -= 1
        if slot != leader:
            self.free.append(slot)
        if not self._guests[leader]:
            self.free.append(leader)
