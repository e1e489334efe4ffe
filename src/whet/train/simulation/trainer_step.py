"""What the trainer's GPUs do with a draw: score, annotate, update, and what they send each other for it.

Every rank has its own sequences, and all wait for the one with the most tokens: after the annotation and in every
optimizer step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd

from whet.models.sizes.pass_bytes import BF16
from whet.models.sizes.weight_counts import blocks_weights
from whet.train.plan.durations import (
    STEP_HOST_SECONDS,
    Packed,
    annotate_seconds,
    optimizer_seconds,
    score_seconds,
    update_seconds,
)
from whet.train.plan.placement import placement
from whet.train.plan.workload import Models, Work, micro_batch
from whet.train.simulation.cluster import Cluster, joined

BY_PASS = 2  # all-gathers of the weights in a pass with gradients: forward and backward
Draw = Sequence[Sequence[int]]  # tokens of every completion, by prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """Seconds beside the passes: models that are brought to the GPU and back, or what another trainer takes."""

    annotate: float = 0.0
    update: float = 0.0
    optimizer_step: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Seconds of a step on the trainer's GPUs."""

    score: float
    annotate: float
    update: float
    waiting: float  # of a GPU on average, for the rank with the most tokens
    sending: float  # of the update: weights and gradients between GPUs, as far as they are waited for

    @property
    def seconds(self) -> float:
        return self.score + self.annotate + self.update


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """The GPUs that train."""

    models: Models
    work: Work  # of a step, on all GPUs
    cluster: Cluster
    gpus: int
    shards: int = 1  # GPUs among which weights, gradients and moments are divided (FSDP); 1: each has all
    rank: int = 1  # GPUs that share the sequences of a rank
    micro_batch_tokens: int
    extra: Extra = Extra()

    @property
    def ranks(self) -> int:
        return max(1, self.gpus // self.rank)

    def step(self, draw: Draw) -> Training:
        """One step on a draw."""
        update = waited = sending = 0.0
        steps, passes = self.work.updates // self.work.epochs, 0
        for number in range(steps):
            part = draw[number * len(draw) // steps : (number + 1) * len(draw) // steps]
            one, waits, sends, count = self._optimizer_step(part)
            update, waited, sending, passes = update + one, waited + waits, sending + sends, passes + count
        whole = [replace(one, passes=passes) for one in self._by_rank(draw)]
        score = STEP_HOST_SECONDS + self._slowest(self._scored(one) for one in whole)[0]
        annotated, before = self._slowest(self._annotated(one) for one in whole)
        annotate = 0.5 * STEP_HOST_SECONDS + annotated + self.extra.annotate
        epochs = self.work.epochs
        return Training(
            score=score,
            annotate=annotate,
            update=epochs * update + self.extra.update,
            waiting=before + waited * epochs,
            sending=sending * epochs,
        )

    def _optimizer_step(self, part: Draw) -> tuple[float, float, float, int]:
        """Seconds of an optimizer step, those of waiting for the slowest rank and for other GPUs, and its passes."""
        m, gpu = self.models, joined(self.cluster.gpu, self.rank)
        packed = self._by_rank(part)
        passes = max((one.passes for one in packed), default=1)  # a rank with fewer makes empty ones
        computed, waits = self._slowest(update_seconds(m, replace(one, passes=passes), gpu) for one in packed)
        held, shards = placement(m), min(self.shards, self.gpus)
        gathers = BY_PASS * self.cluster.gathered(BF16 * blocks_weights(m.policy), shards)
        if shards > 1:  # while products are computed; every pass leaves its gradients with their owners
            gathers += self.cluster.gathered(held.gradients, shards)
        sends = max(0.0, passes * gathers - computed)
        replicas = self.gpus // shards
        if replicas > 1:
            sends += self._summed(held.gradients / shards, replicas, shards)
        own = optimizer_seconds(m, held.gradients / shards, self.cluster.gpu)
        return computed + sends + own + self.extra.optimizer_step, waits, sends, passes

    def _summed(self, size: float, replicas: int, shards: int) -> float:
        """Gradients are summed over GPUs with the same shard; the shards of a node share its network."""
        cluster, node = self.cluster, self.cluster.node
        if self.gpus > node and 1 < shards <= node:
            cluster = replace(cluster, link=cluster.link / shards, network=cluster.network / shards)
        return cluster.reduced(size, replicas * min(shards, node))

    def _scored(self, packed: Packed) -> float:
        return score_seconds(self.models, packed, joined(self.cluster.gpu, self.rank))

    def _annotated(self, packed: Packed) -> float:
        gpu = joined(self.cluster.gpu, self.rank)
        return annotate_seconds(self.models, packed, gpu, reads_old=self.work.reads_old)

    def _slowest(self, seconds: Iterable[float]) -> tuple[float, float]:
        """The seconds of the slowest rank, and how long the others wait for it on average."""
        each = [*seconds]
        most = max(each, default=0.0)
        return most, most - sum(each) / max(1, self.ranks)

    def _by_rank(self, draw: Draw) -> list[Packed]:
        """Sequences go to ranks in turn, the first ones of all prompts first; ranks without any are left out."""
        prompts, ranks = len(draw), self.ranks
        counts, sums, squares = ([0] * ranks for _ in range(3))
        for number, group in enumerate(draw):
            for place, length in enumerate(group):
                rank = (place * prompts + number) % ranks
                counts[rank] += 1
                sums[rank] += length
                squares[rank] += length * length
        own = max(1, prompts // gcd(prompts, ranks))  # prompts of a rank, at most
        return [self._packed(*one, own) for one in zip(counts, sums, squares, strict=True) if one[0]]

    def _packed(self, count: int, total: int, squares: int, prompts: int) -> Packed:
        work = self.work
        read = min(count, prompts) if work.padding_free else count
        group = -(-count // read)
        rows = replace(work, prompts=read, group=group, completion=max(1, round(total / count)), updates=1, epochs=1)
        return Packed(
            tokens=read * work.prompt + total - count,
            trained=total,
            context=work.prompt + squares / (2 * total),
            passes=micro_batch(rows, self.micro_batch_tokens).count,
        )
