"""A run on so many GPUs: what the trainer's GPUs and the rollout engines hold, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from whet.models.sizes.pass_bytes import BF16
from whet.models.sizes.sampling_bytes import capacity_of, slot_bytes, slots_that_fit
from whet.train.plan.largest import largest
from whet.train.plan.peaks import CONTEXT_BYTES, CUDA_SEQUENCES, FRAGMENTED, Choice, chosen, peaks
from whet.train.plan.placement import Placement, all_weights, placement
from whet.train.plan.workload import Models, Work
from whet.train.simulation.cluster import Cluster
from whet.train.simulation.completion_lengths import CompletionLengths
from whet.train.simulation.engine_rollout import Speed
from whet.train.simulation.schedules import HandOff
from whet.train.simulation.trainer_step import Extra, Trainer

DISK = 1e9  # bytes a second of one process that writes a checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """What a step does and on which kind of GPUs, without how many of them do what."""

    models: Models
    work: Work  # of a step, on all GPUs, with the longest sequences: what memory is for
    prompt: int  # tokens of a prompt, on average
    lengths: CompletionLengths
    cluster: Cluster
    engine_gpus: int = 1  # that share every product of an engine
    checkpoint_bytes: int = 0
    checkpoint_every: int = 0  # steps
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """GPUs that train and GPUs that sample; all do both where they are colocated."""

    trainer: int
    rollout: int
    colocated: bool = False

    @property
    def gpus(self) -> int:
        return self.trainer if self.colocated else self.trainer + self.rollout


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A deployment on a split of GPUs."""

    trainer: Trainer
    speed: Speed
    engines: int
    slots: int  # of an engine
    needed: int  # bytes of a trainer's GPU
    engine_needed: int  # bytes of a rollout GPU, with at least one slot
    fits: bool
    hand_off: HandOff


def place(deployment: Deployment, split: Split) -> Placed:
    """The deployment on these GPUs: every GPU has all weights if that fits, else shards of them (FSDP)."""
    found = _place(deployment, split, shards=1)
    if not found.fits and split.trainer > 1:
        found = _place(deployment, split, shards=split.trainer)
    return found


def _place(d: Deployment, split: Split, *, shards: int) -> Placed:
    m = replace(d.models, shards=shards, samples=d.models.samples and split.colocated)
    work = replace(d.work, prompts=-(-d.work.prompts // split.trainer))  # of a GPU
    held, gpu = placement(m), d.cluster.gpu
    choice = chosen(m, work, gpu.memory)
    most = largest(m, work, gpu.memory).micro_batch_tokens if shards > 1 and work.micro_batch_tokens is None else None
    if most is not None and most < choice.micro_batch_tokens:
        choice = replace(choice, micro_batch_tokens=most)
    found = peaks(m, work, choice)
    sampling = ("rollout", "evaluation")
    trained = max(size for name, size in found.moments.items() if split.colocated or name not in sampling)
    needed = int(trained * (1 + FRAGMENTED)) + CONTEXT_BYTES + (found.scratch if split.colocated else 0)
    engines = split.rollout // d.engine_gpus
    slots, engine_needed = _slots(d, engines, held if split.colocated else None)
    if split.colocated and shards == d.engine_gpus == 1:  # the engine samples from the trainer's weights
        slots, engine_needed = max(1, choice.slots), needed
    return Placed(
        trainer=Trainer(
            models=d.models,
            work=replace(d.work, prompt=d.prompt),
            cluster=d.cluster,
            gpus=split.trainer,
            shards=shards,
            micro_batch_tokens=choice.micro_batch_tokens,
            extra=_moves(choice, held, gpu.host_bandwidth),
        ),
        speed=Speed(
            models=d.models, cluster=d.cluster, gpus=d.engine_gpus, prompt=d.prompt, shared=_shared(d.work, engines)
        ),
        engines=engines,
        slots=slots,
        needed=needed,
        engine_needed=engine_needed,
        fits=needed <= gpu.memory and engine_needed <= gpu.memory,
        hand_off=_hand_off(d, split, shards),
    )


def _slots(d: Deployment, engines: int, held: Placement | None) -> tuple[int, int]:
    """Slots of an engine, and the bytes of each of its GPUs with one slot.

    With `held` the engine is on the trainer's GPUs, whose weights and moments stay; activations are not there then.
    """
    m, work, gpus = d.models, d.work, d.engine_gpus
    weights = m.engine_half * all_weights(m.policy)
    capacity = capacity_of(work.prompt + work.completion)
    each = slot_bytes(m.policy, capacity=capacity, room=work.completion, half=m.engine_half)
    beside = 0
    if held is not None:
        beside = gpus * (held.weights + held.joined + held.state)
    taken = int((weights + beside) * (1 + FRAGMENTED))
    free = gpus * (d.cluster.gpu.memory - CONTEXT_BYTES) - taken
    fit = slots_that_fit(
        m.policy,
        max(0, free),
        capacity=capacity,
        room=work.completion,
        prefill=-(-work.prompt // work.group),
        half=m.engine_half,
    )
    share = -(-work.sequences // engines)
    return min(share, work.max_sequences or CUDA_SEQUENCES, fit), CONTEXT_BYTES + (taken + each) // gpus


def _shared(work: Work, engines: int) -> int:
    """Sequences of a group that the same engine samples: they go to engines in turn."""
    share = -(-work.sequences // engines)
    return max(1, share // min(share, work.prompts))


def _moves(choice: Choice, held: Placement, bandwidth: float) -> Extra:
    """Offloaded models on their way to the GPU, and back where they have changed."""
    sizes = {"reference": held.reference, "critic": 2 * held.critic}
    annotate = sum(size for name, size in sizes.items() if name in choice.away)
    update = 2 * held.state if "optimizer" in choice.away else 0
    return Extra(annotate=annotate / bandwidth, update=update / bandwidth)


def _hand_off(d: Deployment, split: Split, shards: int) -> HandOff:
    m, cluster = d.models, d.cluster
    checkpoint = d.checkpoint_bytes / DISK if d.checkpoint_every else 0.0
    size = BF16 * (m.adapters or all_weights(m.policy))
    gathered = cluster.gathered(size, shards)  # also by engines on the same GPUs, which have whole weights
    if split.colocated:
        return HandOff(sent=gathered, checkpoint=checkpoint, every=d.checkpoint_every)
    sent = gathered + cluster.sent(size, split.gpus)
    taken = size / (d.engine_gpus * cluster.gpu.host_bandwidth)
    return HandOff(sent=sent, taken=taken, checkpoint=checkpoint, every=d.checkpoint_every)
