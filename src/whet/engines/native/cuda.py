"""Continuous batching on CUDA: waiting sequences take the slots of finished ones; the host checks every LOOK tokens.

Each prompt is prefilled once, and all samples of its group share its KV cache. Every sequence has its own random
stream, so its tokens do not depend on when it entered, except through rounding. In fp32 that is next to nothing:
prompts are prefilled one by one and products have a fixed number of rows.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.engines.engine_protocol import token_limit
from whet.engines.native.decode import DecodeLoop
from whet.engines.native.slots import Drawn, Finished, say_fewer
from whet.models.decoder.decoder import Decoder
from whet.models.logprobs import check_logprobs, doubt
from whet.models.memory_errors import NoRoomToSample, shortage
from whet.models.sizes.sampling_bytes import BUCKET, PREFILL_TOKENS, capacity_of, slots_that_fit
from whet.records import Prompt, Sampling
from whet.streams import stream_key

LOOK = 16  # decode steps between two checks by the host, each of which waits for the device


@dataclass(frozen=True)
class SampleJob:
    """One completion to sample: the index of its prompt, the key of its random stream, its token limit."""

    prompt: int
    stream: int
    limit: int


class CudaSampler:
    """Slots and CUDA graphs of one policy, kept between calls while they are large enough; the KV cache is freed."""

    def __init__(
        self, policy: Decoder, stops: Collection[int], *, max_slots: int, ops: Any, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """`ops` is the module of the decode steps: `decode_kernels`, or in tests the same in plain torch."""
        self.policy, self.max_slots, self.dtype, self.ops = policy, max_slots, dtype, ops
        self.device = next(policy.parameters()).device
        self._stop_ids = frozenset(stops)
        self.stops = torch.tensor(sorted(stops), dtype=torch.int64, device=self.device)
        self.timings: defaultdict[str, float] = defaultdict(float)  # seconds of the last call
        self._loop: DecodeLoop | None = None
        self._doubt: Tensor | float = -0.0  # NaN if the head has a non-finite weight (`logprobs.doubt`)
        self._asked = 0  # slots requested of the loop; memory may have allowed fewer
        self._tried = 0  # slots of the newest attempt
        self._finished: Finished | None = None  # who hears of the completions of the call under way

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int, finished: Finished | None = None
    ) -> list[Drawn]:
        """`count` completions of each prompt, prompt by prompt; with half of the slots whenever memory runs out.

        What was finished before is kept. The rest begins again with its own random numbers. A policy that cannot be
        sampled in one slot raises `NoRoomToSample`.
        """
        self._finished = finished
        if not prompts:
            return []
        jobs = [
            SampleJob(i, stream_key((*p.stream, j)), token_limit(p, sampling, self.policy.context))
            for i, p in enumerate(prompts)
            for j in range(count)
        ]
        self.timings.clear()
        done: dict[int, Drawn] = {}
        self._with_room(lambda: self._complete(prompts, jobs, sampling, done))
        return [done[job] for job in range(len(jobs))]

    def _with_room(self, attempt: Callable[[], None]) -> None:
        """Repeats an attempt with half of the slots while memory runs out."""
        first = 0  # slots of the first attempt
        while short := shortage(attempt):
            first = first or self._tried
            self._loop = None
            torch.cuda.empty_cache()
            if self._tried == 1:
                raise NoRoomToSample(short)
            self.max_slots = self._tried // 2
        if first:
            say_fewer(self.max_slots, first)

    def _complete(
        self, prompts: Sequence[Prompt], jobs: Sequence[SampleJob], sampling: Sampling, done: dict[int, Drawn]
    ) -> None:
        """Samples the completions that are not in `done` yet."""
        with self._slots(prompts, jobs, sampling) as loop:
            waiting = [job for job in range(len(jobs)) if job not in done][::-1]
            assigned = Assignment(loop.slots)
            while waiting or assigned.live:
                with self._timed("prefill"):
                    new = assigned.enter(waiting)
                    self._admit(loop, prompts, jobs, new, assigned)
                with self._timed("decode"):
                    self._grow(loop, assigned, assigned.live)
                with self._timed("harvest"):
                    self._harvest(loop, assigned, jobs, done)

    @contextmanager
    def _slots(
        self, prompts: Sequence[Prompt], jobs: Sequence[SampleJob], sampling: Sampling, *, spare: int = 0
    ) -> Iterator[DecodeLoop]:
        """Slots for these jobs with the weights as they are now; `spare`: positions besides prompt and completion."""
        self._tried = min(len(jobs), self.max_slots)
        loop = self._prepared(prompts, jobs, spare)
        self._tried = loop.slots
        loop.set_temperature(sampling.temperature)
        loop.refresh(self.policy)
        self._doubt = doubt(loop.weights.head)
        loop.cache.hold()
        try:
            yield loop
        finally:
            loop.cache.release()
            loop.release(self.policy)

    def _prepared(self, prompts: Sequence[Prompt], jobs: Sequence[SampleJob], spare: int) -> DecodeLoop:
        longest = min(self.policy.context, spare + max(len(prompts[job.prompt].tokens) + job.limit for job in jobs))
        room = max(job.limit for job in jobs)
        wanted = min(len(jobs), self.max_slots)
        loop = self._loop
        if loop is None or loop.capacity < longest or loop.room < room or self._asked < wanted:
            self._loop = loop = None
            capacity = capacity_of(longest)
            read = sum(len(prompts[number].tokens) for number in {job.prompt for job in jobs})
            fit = self._slots_that_fit(capacity=capacity, room=room, prefill=-(-read // len(jobs)))
            slots = self._tried = min(wanted, fit)
            loop = DecodeLoop(
                self.policy, slots=slots, capacity=capacity, room=room, stops=self.stops, dtype=self.dtype, ops=self.ops
            )
            self._loop, self._asked = loop, wanted
        return loop

    def _slots_that_fit(self, *, capacity: int, room: int, prefill: int) -> int:
        if self.device.type != "cuda":
            return self.max_slots
        c, half = self.policy.config, self.dtype.itemsize
        self.policy.model.joined.refreshed(list(self.policy.model.layers), self.dtype)  # before the rest is shared out
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        free -= c.vocab_size * c.width * half  # a copy of the head
        return slots_that_fit(c, max(0, free), capacity=capacity, room=room, prefill=prefill, half=half)

    def _admit(
        self,
        loop: DecodeLoop,
        prompts: Sequence[Prompt],
        jobs: Sequence[SampleJob],
        new: Sequence[int],
        assigned: Assignment,
    ) -> None:
        """Prefills the prompts of newly filled slots, each once per group, and draws their first tokens."""
        groups: dict[int, list[int]] = {}
        for slot in new:
            groups.setdefault(jobs[assigned.live[slot]].prompt, []).append(slot)
        for some in self._pieces({prompt: len(prompts[prompt].tokens) for prompt in groups}):
            leaders = {prompt: groups[prompt][0] for prompt in some}
            states = loop.read([prompts[prompt].tokens for prompt in some], list(leaders.values()))
            mine = [(slot, index) for index, prompt in enumerate(some) for slot in groups[prompt]]
            new_jobs = [jobs[assigned.live[slot]] for slot, _ in mine]
            for prompt, leader in leaders.items():
                assigned.share(leader, groups[prompt], age=len(prompts[prompt].tokens))
            loop.admit(
                self._tensor([slot for slot, _ in mine]),
                states[self._tensor([index for _, index in mine])],
                self._tensor([len(prompts[job.prompt].tokens) for job in new_jobs]),
                self._tensor([job.stream for job in new_jobs]),
                self._tensor([job.limit for job in new_jobs]),
                self._tensor([leaders[job.prompt] for job in new_jobs]),
            )

    def _pieces(self, sizes: Mapping[int, int]) -> Iterator[list[int]]:
        """What is read in one pass, of texts of these sizes: up to PREFILL_TOKENS, in fp32 one at a time."""
        budget = PREFILL_TOKENS if self.dtype is torch.bfloat16 else 1
        some: list[int] = []
        tokens = 0
        for text, size in sizes.items():
            if some and tokens + size > budget:
                yield some
                some, tokens = [], 0
            some.append(text)
            tokens += size
        if some:
            yield some

    def _grow(self, loop: DecodeLoop, assigned: Assignment, some: Collection[int]) -> None:
        """LOOK decode steps of these slots, long sequences first: their attention takes longest."""
        slots = sorted(some, key=lambda slot: assigned.ages[slot], reverse=True)
        for slot in slots:
            assigned.ages[slot] += LOOK
        size = len(slots) if self.dtype is torch.bfloat16 else BUCKET
        for start in range(0, len(slots), size):
            count = loop.activate(slots[start : start + size])
            loop.run(LOOK, count=count)

    def _harvest(
        self, loop: DecodeLoop, assigned: Assignment, jobs: Sequence[SampleJob], done: dict[int, Drawn]
    ) -> None:
        """Takes finished completions and frees their slots."""
        for slot, drawn in self._ended(loop, assigned, list(assigned.live), jobs).items():
            job = assigned.live[slot]
            done[job] = drawn
            assigned.leave(slot)
            if self._finished is not None:
                self._finished.add(0, {job: drawn})

    def _ended(
        self, loop: DecodeLoop, assigned: Assignment, some: Sequence[int], jobs: Sequence[SampleJob]
    ) -> dict[int, Drawn]:
        """Copies the completions of these slots that have ended to the host; a non-finite log-prob raises RunFailed.

        NaN persists in a KV cache, so the newest log-prob of a slot shows it; it travels with the lengths.
        """
        rows = loop.rows
        so_far = torch.minimum(rows.steps, rows.ended).clamp(1, loop.room)  # a slot goes on sampling after its end
        is_sound = (rows.logprobs.gather(1, so_far[:, None] - 1)[:, 0] + self._doubt).isfinite()
        ends = torch.where((rows.steps >= rows.ended) | ~is_sound, so_far, 0).tolist()
        gone = [slot for slot in some if ends[slot]]
        if not gone:
            return {}
        widest = max(ends[slot] for slot in gone)
        at = self._tensor(gone)
        tokens, logprobs = rows.out_tokens[at, :widest].tolist(), (rows.logprobs[at, :widest] + self._doubt).tolist()
        found = {}
        for slot, all_ids, all_values in zip(gone, tokens, logprobs, strict=True):
            ids, values = all_ids[: ends[slot]], all_values[: ends[slot]]
            check_logprobs(values, self.policy, prompt=jobs[assigned.live[slot]].prompt)
            found[slot] = Drawn(ids, values, ids[-1] in self._stop_ids)
        return found

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self.device)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.timings[name] += time.perf_counter() - started


class Assignment:
    """The assignment of jobs to slots. A slot whose prompt other slots share is free only when they finished too."""

    def __init__(self, slots: int) -> None:
        self.free = list(range(slots))[::-1]
        self.live: dict[int, int] = {}  # slot → job
        self.ages: dict[int, int] = {}  # slot → its approximate number of tokens
        self._leaders: dict[int, int] = {}  # slot → the slot whose cache holds its prompt
        self._guests: Counter[int] = Counter()  # leader → live slots that read its cache, itself included

    def enter(self, waiting: list[int]) -> list[int]:
        """Assigns free slots to the jobs that have waited longest; returns these slots."""
        new = []
        while waiting and self.free:
            slot = self.free.pop()
            self.live[slot] = waiting.pop()
            new.append(slot)
        return new

    def share(self, leader: int, slots: Sequence[int], *, age: int) -> None:
        """These slots, the leader among them, read their prompt of `age` tokens from the leader's cache."""
        for slot in slots:
            self._leaders[slot], self.ages[slot] = leader, age
            self._guests[leader] += 1

    def leave(self, slot: int) -> None:
        """Frees the slot of a finished job, and its leader after the last of the group."""
        del self.live[slot]
        leader = self._leaders[slot]
        self._guests[leader] -= 1
        if slot != leader:
            self.free.append(slot)
        if not self._guests[leader]:
            self.free.append(leader)
