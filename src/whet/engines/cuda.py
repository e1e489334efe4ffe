"""Continuous batching on one GPU: sequences enter as others finish; the host looks every few tokens.

Each prompt is read once for its whole group. Sequences keep their own random streams, so what is drawn does not depend
on when a sequence entered; only the rounding of bf16 products does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from whet.batching import pad
from whet.engines.decode import DecodeLoop
from whet.models.decoder import Decoder
from whet.models.precision import autocast
from whet.records import Prompt, Sampling
from whet.streams import stream_key

BUCKET = 32  # graphs are for multiples of so many slots
LOOK = 16  # tokens between looks of the host
PREFILL_TOKENS = 65_536  # of prompts read at a time
SPARE_MEMORY = 0.15  # share of the free memory that the cache leaves alone


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
    """The cache and the graphs of one policy; kept between calls as long as they fit."""

    def __init__(self, policy: Decoder, stops: Collection[int], *, max_slots: int) -> None:
        self.policy, self.max_slots = policy, max_slots
        self.device = next(policy.parameters()).device
        self.stops = torch.tensor(sorted(stops), dtype=torch.int64, device=self.device)
        self._loop: DecodeLoop | None = None
        self._asked = 0  # slots that the loop was made for, of which memory may have allowed fewer

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int) -> list[Drawn]:
        """`count` completions of each prompt, one behind the other."""
        context = self.policy.context
        jobs = [
            Job(i, stream_key((*p.stream, j)), min(sampling.max_tokens, context - len(p.tokens)))
            for i, p in enumerate(prompts)
            for j in range(count)
        ]
        loop = self._prepared(prompts, jobs, sampling)
        loop.set_temperature(sampling.temperature)
        loop.weights.refresh(self.policy)
        done: dict[int, Drawn] = {}
        waiting = list(range(len(jobs)))[::-1]
        live: list[int] = []  # slot → job
        while waiting or live:
            if waiting and len(live) < loop.slots:
                new = [waiting.pop() for _ in range(min(loop.slots - len(live), len(waiting)))]
                self._admit(loop, prompts, jobs, new, first_slot=len(live))
                live += new
            bucket = min(loop.slots, -(-len(live) // BUCKET) * BUCKET)
            loop.run(LOOK, slots=bucket)
            live = self._harvest(loop, live, done)
        return [done[job] for job in range(len(jobs))]

    def _prepared(self, prompts: Sequence[Prompt], jobs: Sequence[Job], sampling: Sampling) -> DecodeLoop:
        longest = max(len(prompts[job.prompt].tokens) + job.limit for job in jobs)
        capacity, room = -(-longest // 64) * 64, sampling.max_tokens
        wanted = min(len(jobs), self.max_slots)
        loop = self._loop
        if loop is None or loop.capacity < capacity or loop.room < room or self._asked < wanted:
            self._loop = loop = None
            slots = min(wanted, self._slots_that_fit(capacity))
            loop = DecodeLoop(self.policy, slots=slots, capacity=capacity, room=room, stops=self.stops)
            self._loop, self._asked = loop, wanted
        return loop

    def _slots_that_fit(self, capacity: int) -> int:
        c = self.policy.config
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        slot = 4 * c.layers * c.kv_heads * capacity * c.head_dim + 64 * c.width + 4 * c.vocab_size
        return max(1, int(free * (1 - SPARE_MEMORY)) // slot)

    def _admit(
        self, loop: DecodeLoop, prompts: Sequence[Prompt], jobs: Sequence[Job], new: Sequence[int], *, first_slot: int
    ) -> None:
        """Reads the prompts of these jobs, each once, and draws their first tokens."""
        owners = list(dict.fromkeys(jobs[job].prompt for job in new))
        start = 0
        while start < len(owners):
            some: list[int] = []
            tokens = 0
            for owner in owners[start:]:
                if some and tokens + len(prompts[owner].tokens) > PREFILL_TOKENS:
                    break
                some.append(owner)
                tokens += len(prompts[owner].tokens)
            start += len(some)
            mine = [(slot, jobs[job]) for slot, job in enumerate(new, first_slot) if jobs[job].prompt in set(some)]
            self._read(loop, [prompts[owner].tokens for owner in some], some, mine)

    def _read(
        self, loop: DecodeLoop, texts: Sequence[Sequence[int]], owners: Sequence[int], mine: Sequence[tuple[int, Job]]
    ) -> None:
        place = {owner: index for index, owner in enumerate(owners)}
        rows = torch.tensor([place[job.prompt] for _, job in mine], device=self.device)
        slots = torch.tensor([slot for slot, _ in mine], device=self.device)
        lengths = torch.tensor([len(text) for text in texts], device=self.device)
        with autocast(self.device):
            states, cache = self.policy.begin(pad(texts, torch.int64).to(self.device), lengths, room=0)
        width = cache.keys[0].shape[2]
        for layer, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True)):
            loop.keys[layer, slots, :, :width] = keys[rows].to(torch.bfloat16)
            loop.values[layer, slots, :, :width] = values[rows].to(torch.bfloat16)
        loop.admit(
            slots,
            states[rows],
            lengths[rows],
            torch.tensor([job.stream for _, job in mine], device=self.device),
            torch.tensor([job.limit for _, job in mine], device=self.device),
        )

    def _harvest(self, loop: DecodeLoop, live: list[int], done: dict[int, Drawn]) -> list[int]:
        """Takes what has ended off the device, and moves the rest together."""
        rows = loop.rows.first(len(live))
        is_done = (rows.steps >= rows.ended).tolist()
        gone = [slot for slot, ended in enumerate(is_done) if ended]
        if not gone:
            return live
        at = torch.tensor(gone, device=self.device)
        lengths = rows.ended[at].tolist()
        widest = max(lengths)
        tokens, logprobs = rows.out_tokens[at, :widest].tolist(), rows.logprobs[at, :widest].tolist()
        for index, slot in enumerate(gone):
            size = lengths[index]
            done[live[slot]] = Drawn(tokens[index][:size], logprobs[index][:size])
        kept = len(live) - len(gone)
        holes = [slot for slot in gone if slot < kept]
        movers = [slot for slot in range(kept, len(live)) if not is_done[slot]]
        if holes:
            loop.move(torch.tensor(movers, device=self.device), torch.tensor(holes, device=self.device))
        loop.rows.positions[kept : len(live)] = 0  # an empty slot in a bucket reads one key, not a finished text
        moved = list(live)
        for hole, mover in zip(holes, movers, strict=True):
            moved[hole] = live[mover]
        return moved[:kept]
