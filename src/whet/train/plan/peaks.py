"""Peak memory of each moment of a step: the most that torch's allocator holds at once (`max_memory_allocated`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from whet.models.sizes.pass_bytes import BF16, FEW, FP32, reading_pass, training_pass, usual_tokens
from whet.models.sizes.sampling_bytes import (
    BUCKET,
    PREFILL_TOKENS,
    SPARE_SLOTS,
    cache_bytes,
    capacity_of,
    prefill_bytes,
    row_bytes,
    slot_bytes,
    slots_that_fit,
)
from whet.models.sizes.weight_counts import block_weights, blocks_weights, embedding_weights, fold_bytes
from whet.train.plan.placement import Placement, placement, step_temporaries
from whet.train.plan.workload import Models, Work, micro_batch
from whet.train.setup.offload_choice import to_offload

# Beside what is allocated: CUDA's context and the kernels' code, and blocks of the allocator that are free but of the
# wrong size. A share of the peak, because every large tensor may leave a gap.
CONTEXT_BYTES = 700 * 2**20
FRAGMENTED = 0.05
PLAIN_SEQUENCES, CUDA_SEQUENCES = 256, 1024  # default of engine.max_sequences
SCORED_TOKENS = 32_768  # of a pass of a reward model on a GPU
BATCH_BYTES = 70  # of a token of the batch: ids, masks, log-probs of three models, advantages, weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the run chooses by itself where the recipe leaves it open."""

    micro_batch_tokens: int
    slots: int  # sequences sampled at a time
    eval_slots: int
    away: frozenset[str]  # what is offloaded


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """Bytes by moment, and the parts that they consist of."""

    moments: Mapping[str, int]
    placement: Placement
    choice: Choice
    scratch: int  # held by captured graphs between rollouts: reserved, not allocated

    @property
    def peak(self) -> int:
        return max(self.moments.values())

    @property
    def needed(self) -> int:
        """Memory of a GPU on which it runs."""
        return int(self.peak * (1 + FRAGMENTED)) + CONTEXT_BYTES + self.scratch

    def fits(self, memory: float) -> bool:
        return self.needed <= memory


def peaks(m: Models, work: Work, choice: Choice) -> Peaks:
    """The peak of every moment under these choices."""
    held = placement(m)
    at = {"online": _online, "offline": _offline}[work.loop](m, work, choice, held)
    rows = -(-max(choice.slots, choice.eval_slots) // BUCKET) * BUCKET
    scratch = rows * row_bytes(m.policy, m.engine_half) if m.on_gpu and m.is_fused else 0
    return Peaks(moments=at, placement=held, choice=choice, scratch=scratch)


def _online(m: Models, work: Work, choice: Choice, held: Placement) -> dict[str, int]:
    batch = work.sequences * (work.prompt + work.completion) * BATCH_BYTES
    resident, away = held.resident, choice.away
    others = [name for name in ("reference", "critic", "reward") if getattr(held, name)]
    reading = [
        _reading(m, work, choice, has_head=has_head)
        for needed, has_head in ((work.reads_old or _reads_reference(m), True), (m.critic == "separate", False))
        if needed
    ]
    found = {
        "rollout": resident(away)
        + max(held.arriving, _sampling(m, choice.slots, work.prompt, work.completion, work.group)),
        "score": resident(away, ("reward",)) + (_scoring(m, work) if "reward" in others else 0),
        "annotate": resident(away, ("reference", "critic"))
        + batch
        + max(reading, default=0)
        + (held.reading if reading else 0),
        "update": resident(away, ("critic", "optimizer")) + batch + update_bytes(m, work, choice, held),
    }
    if work.eval_prompts:
        found["evaluation"] = resident(away) + max(
            held.arriving, _sampling(m, choice.eval_slots, work.prompt, work.eval_completion, work.eval_samples)
        )
    return found


def reads_before(m: Models, work: Work) -> bool:
    """Whether policy, reference or critic read the rollouts before the update."""
    return work.reads_old or _reads_reference(m) or m.critic == "separate"


def _offline(m: Models, work: Work, choice: Choice, held: Placement) -> dict[str, int]:
    batch = work.sequences * (work.prompt + work.completion) * BATCH_BYTES
    found = {"update": held.resident() + batch + update_bytes(m, work, choice, held)}
    if work.eval_prompts:  # gradients stay until the next step
        found["evaluation"] = (
            held.resident()
            + held.gradients
            + max(
                held.arriving,
                _sampling(m, choice.eval_slots, work.prompt, work.eval_completion, work.eval_samples),
            )
        )
    return found


def _reads_reference(m: Models) -> bool:
    """Whether the reference reads on the trainer's GPU."""
    return m.reference != "none" and not m.reference_apart


def apart_bytes(m: Models, work: Work, choice: Choice) -> dict[str, int]:
    """Model with a GPU of its own → bytes that it needs there, of all processes that share the GPU."""
    held = placement(m).apart
    passes = {"reference": _reading(m, work, choice, has_head=True), "reward": _scoring(m, work) if m.reward else 0}
    shared = {"reference": m.reference_apart, "reward": m.reward_apart}
    return {name: shared[name] * int((size + passes[name]) * (1 + FRAGMENTED)) for name, size in held.items()}


def update_bytes(m: Models, work: Work, choice: Choice, held: Placement) -> int:
    """Gradients, and the largest of: a backward pass, the end of one, the optimizer step."""
    c, half = m.policy, BF16 if m.on_gpu else FP32
    micro = micro_batch(work, choice.micro_batch_tokens)
    learns = not m.adapters
    wide = m.storage == "fp32" and m.on_gpu  # the head is stored in fp32 and read in bf16
    pass_of = partial(
        training_pass,
        *(c, micro.tokens, micro.trained),
        half=half,
        is_fused=m.is_fused,
        recompute=m.recompute,
        learns_matrices=learns,
        on_gpu=m.on_gpu,
    )
    one = pass_of(has_head=m.has_head, copies_head=wide)
    saved, temporaries = one.saved, one.backward
    if m.critic == "separate":  # its pass is saved beside the policy's, and goes backwards by itself
        other = pass_of(has_head=False)
        saved, temporaries = saved + other.saved, max(one.backward, other.backward)
    # Autocast keeps its copies of plain blocks' weights until the backward pass.
    if not m.is_fused and m.on_gpu and m.storage != "nf4":
        saved += BF16 * blocks_weights(c)
    if m.storage == "nf4":  # a block at a time in bf16, of policy and critic; it is made before the rest of its pass
        copies = 2 if m.critic == "separate" else 1
        temporaries = copies * BF16 * block_weights(c) + max(temporaries, fold_bytes(c))
    # With one pass, gradients appear while activations go; with several, they are all there when a pass begins.
    going_back = saved + temporaries + held.training + (held.gradients if micro.count > 1 else 0)
    tied = (2 if c.tied_head else 1) * FP32 * embedding_weights(c) if learns else 0
    last_block = (saved // (c.layers + 1)) + tied
    return max(going_back, held.gradients + last_block, held.gradients + step_temporaries(m))


def _reading(m: Models, work: Work, choice: Choice, *, has_head: bool) -> int:
    """A pass without gradients over a micro-batch."""
    micro = micro_batch(work, choice.micro_batch_tokens)
    half = BF16 if m.on_gpu else FP32
    wide = m.storage == "fp32" and m.on_gpu
    found = reading_pass(
        m.policy, micro.tokens, micro.trained, half=half, has_head=has_head, copies_head=wide, on_gpu=m.on_gpu
    )
    return found + (BF16 * block_weights(m.policy) if m.storage == "nf4" else 0)


def _scoring(m: Models, work: Work) -> int:
    """A pass of the reward model."""
    assert m.reward is not None
    whole = work.prompts * work.prompt + work.sequences * work.completion
    return reading_pass(m.reward, min(SCORED_TOKENS, whole), work.sequences, has_head=False, on_gpu=m.on_gpu)


def _sampling(m: Models, slots: int, prompt: int, completion: int, group: int) -> int:
    """KV cache, and the larger of a prefill pass and a decode step; a bf16 copy of blocks that are in four bits."""
    c, half = m.policy, m.engine_half if m.on_gpu else FP32
    unpacked = _unpacked(m)
    if not (m.on_gpu and m.is_fused):
        return unpacked + slots * slot_bytes(c, capacity=prompt + completion, room=completion, half=half)
    capacity = capacity_of(prompt + completion)
    prefill = prefill_bytes(c, min(PREFILL_TOKENS, max(prompt, -(-slots // group) * prompt)), half)
    rows = -(-slots // BUCKET) * BUCKET * row_bytes(c, half)
    counters = (slots + SPARE_SLOTS) * 2 * FP32 * completion
    return unpacked + cache_bytes(c, slots, capacity, half) + counters + max(prefill, rows)


def _unpacked(m: Models) -> int:
    """The bf16 copy of all blocks that a quantised policy samples from; plain blocks dequantise at every token."""
    return BF16 * blocks_weights(m.policy) if m.storage == "nf4" and m.is_fused else 0


def offloaded(m: Models, work: Work, memory: float) -> frozenset[str]:
    """What the run offloads, as `build_offloading` decides it from the sizes of its models."""
    if not (m.on_gpu and work.offload):
        return frozenset()
    held = placement(m)
    sizes = {name: size for name, size in held.models.items() if size}
    if m.storage != "streamed" and m.spread is None:
        sizes["optimizer"] = held.state
    copies = _unpacked(m) or held.weights
    resident = held.weights + copies + held.gradients
    if m.spread is not None:  # as `build_offloading` counts parts of everything, and the engine's copy in bf16
        whole = placement(replace(m, spread=None))
        resident = (whole.weights + whole.gradients + whole.state) // m.spread.ranks + whole.weights // 2
    return to_offload(work.offload, sizes, resident=resident, memory=memory)


def chosen(m: Models, work: Work, memory: float) -> Choice:
    """What the run chooses on a GPU with so much memory (`tokens_that_fit`, `slots_that_fit`)."""
    away = offloaded(m, work, memory)
    if not m.on_gpu:
        memory = inf
    held = placement(m)
    rollout = Rollout(prompt=work.prompt, completion=work.completion, sequences=work.sequences, group=work.group)
    evaluation = Rollout(
        prompt=work.prompt,
        completion=work.eval_completion,
        sequences=work.eval_prompts * work.eval_samples,
        group=work.eval_samples,
    )
    taken = held.resident(away) + _unpacked(m)
    slots = _slots(m, work.max_sequences, memory, taken, rollout)
    gradients = held.gradients if work.loop == "offline" else 0
    eval_slots = _slots(m, work.max_sequences, memory - gradients, taken, evaluation)
    if work.loop == "offline":
        slots = 0
    tokens = work.micro_batch_tokens
    if tokens is None:
        tokens = usual_tokens(m.policy, memory) if m.on_gpu else FEW
    return Choice(micro_batch_tokens=tokens, slots=slots, eval_slots=eval_slots, away=away)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Sequences that are sampled, in numbers and tokens."""

    prompt: int
    completion: int
    sequences: int
    group: int


def _slots(m: Models, limit: int | None, memory: float, taken: int, rollout: Rollout) -> int:
    """Slots of a rollout: as many as there are sequences, as the recipe allows, and as fit beside `taken` bytes."""
    if not rollout.sequences:
        return 0
    if not (m.on_gpu and m.is_fused):
        return min(rollout.sequences, limit or PLAIN_SEQUENCES)
    free = memory - CONTEXT_BYTES - taken * (1 + FRAGMENTED)
    fit = slots_that_fit(
        m.policy,
        max(0, int(free)),
        capacity=capacity_of(rollout.prompt + rollout.completion),
        room=rollout.completion,
        prefill=-(-rollout.prompt // rollout.group),
        half=m.engine_half,
    )
    return min(rollout.sequences, limit or CUDA_SEQUENCES, fit)
