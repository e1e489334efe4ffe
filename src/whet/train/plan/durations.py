"""Seconds of each moment of a step: bytes over bandwidth and products over arithmetic, at measured shares of both.

The shares were fitted to steps on one H200 (docs/planning.md says which), and are taken to be the same on other GPUs.
Letters: D width, M width of the MLP, V vocabulary, L layers, Q = heads · dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from whet.models.sizes.pass_bytes import BF16, FP32, saved_in_block
from whet.models.sizes.sampling_bytes import cached_per_token
from whet.models.sizes.weight_counts import active_weights, block_products, blocks_weights, embedding_weights
from whet.train.plan.gpus import GPU
from whet.train.plan.peaks import Choice
from whet.train.plan.placement import Placement, stream_bytes
from whet.train.plan.spread_placement import exchange_seconds
from whet.train.plan.workload import Models, Work, micro_batch

if TYPE_CHECKING:
    from whet.models.layers.decoder_config import DecoderConfig

READING = 0.66  # share of the bandwidth at which weights are read in a decode step
CACHE_READING = 0.74  # share of the bandwidth at which attention reads the KV cache
DECODING = 0.65  # share of the arithmetic of a decode step's products with many rows
LAYER_SECONDS = 24e-6  # of a layer of a decode step that no formula has: launches, norms, rotary positions
STEP_SECONDS = 280e-6  # of a decode step: drawing, and the host's look every few steps
ARITHMETIC = 0.785  # share of the arithmetic that large products of a training pass reach
SLOW_WIDTH = 475  # width at which products reach half of that share
PASSES_OVER_SAVED = 8.2  # reads and writes of what a block saves, by its norms, gates and rotations and their gradients
STREAMING = 0.6  # share of the bandwidth of elementwise kernels
LAUNCHING = 2.8e-3  # of a layer of a micro-batch on the host, which bounds small ones: launches of its kernels
FORWARD_LAUNCHING = 1.2e-3  # the same of a pass without gradients
ADAPTER_LAUNCHING = 1.2e-3  # the same of its adapters
ADAPTER_READS = 3.2  # of what enters and leaves an adapted product, by the gradients of its adapter
PASS_SECONDS = 14e-3  # of a micro-batch, while the GPU waits: packing, the loss, its value
SEQUENCE_SECONDS = 2.8e-4  # of a sequence on the host: text, score, record
ROLLOUT_SECONDS = 0.05  # of a rollout before its first token, beside reading the prompts
STEP_HOST_SECONDS = 0.05  # of a step on the host
ADAM_BYTES = 30  # of a weight in the optimizer step: weight, gradient and moments read, all but the gradient written
FOLD_BYTES = 40  # of a weight of the blocks when adapters are folded in
UNPACK_BYTES = 230  # of a weight of the blocks when it is dequantised and its adapter folded in, a matrix at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    """Seconds of a step by moment, and of one evaluation."""

    moments: dict[str, float]
    evaluation: float

    @property
    def step(self) -> float:
        return sum(self.moments.values())


def durations(m: Models, work: Work, choice: Choice, held: Placement, gpu: GPU, gpus: int = 1) -> Duration:
    """The seconds of a step under these choices."""
    moments: dict[str, float] = {}
    if work.loop == "online":
        lengths = (choice.slots, work.prompt, work.completion)
        rollout = rollout_seconds(m, gpu, work.sequences, *lengths, work.group)
        rollout += rollout_seconds(m, gpu, work.prompts, *lengths, 1) if work.greedy else 0.0
        moments["rollout"] = work.rounds * rollout
        scoring = max(1, m.reward_apart) * _scoring(m, work, gpu)
        moments["score"] = STEP_HOST_SECONDS + scoring + _moved("reward", held, choice, gpu)
        moments["annotate"] = (
            0.5 * STEP_HOST_SECONDS
            + _annotating(m, work, choice, gpu)
            + _moved("reference", held, choice, gpu)
            + _moved("critic", held, choice, gpu, both_ways=True)
        )
    moments["update"] = _updating(m, work, choice, held, gpu) + _moved("optimizer", held, choice, gpu, both_ways=True)
    if m.spread is not None:
        _exchange(moments, m, work, choice, gpu)
    elif gpus > 1:  # gradients are summed over the links between GPUs, taken to be as fast as that to the host
        moments["update"] += work.updates * 2 * held.gradients * (gpus - 1) / gpus / gpu.host_bandwidth
    evaluation = 0.0
    if work.eval_prompts:
        sequences = work.eval_prompts * work.eval_samples
        evaluation = rollout_seconds(
            m, gpu, sequences, choice.eval_slots, work.prompt, work.eval_completion, work.eval_samples
        )
    return Duration(moments=moments, evaluation=evaluation)


def _exchange(moments: dict[str, float], m: Models, work: Work, choice: Choice, gpu: GPU) -> None:
    """Adds what passes wait for weights and gradients of other ranks, beyond the time that they compute."""
    passes = work.updates * micro_batch(work, choice.micro_batch_tokens).count
    moments["update"] = max(moments["update"], exchange_seconds(m, gpu, passes=passes, learns=True))
    readers = sum((work.reads_old, m.reference != "none", m.critic == "separate")) if work.loop == "online" else 0
    if readers:
        each = exchange_seconds(m, gpu, passes=passes, learns=False)
        moments["annotate"] = max(moments["annotate"], readers * each / work.epochs)


def rollout_seconds(m: Models, gpu: GPU, sequences: int, slots: int, prompt: int, completion: int, group: int) -> float:
    """All sequences to their full length, `slots` at a time; prompts of a group are read once."""
    rounds, last = divmod(sequences, max(1, slots))
    seconds = completion * decode_seconds(m, gpu, slots, prompt, completion, group) * rounds
    if last:
        seconds += completion * decode_seconds(m, gpu, last, prompt, completion, group)
    prompts = -(-sequences // group)
    reading = prefill_seconds(m, gpu, prompts * prompt)
    return seconds + reading + folding_seconds(m, gpu) + ROLLOUT_SECONDS + SEQUENCE_SECONDS * sequences


def decode_seconds(m: Models, gpu: GPU, rows: int, prompt: int, completion: int, group: int) -> float:
    """One decode step half-way through the completions; a group's prompt is read from memory once."""
    return decode_step_seconds(m, gpu, rows, rows * completion / 2 + rows * prompt / min(group, rows))


def decode_step_seconds(m: Models, gpu: GPU, rows: int, cached: float) -> float:
    """One decode step of so many sequences, whose attention reads so many cached tokens in all."""
    c, half = m.policy, m.engine_half
    weights, active = (count(c) + embedding_weights(c) for count in (blocks_weights, active_weights))
    read = min(weights, rows * active)  # few rows do not reach all experts
    products = max(half * read / (gpu.bandwidth * READING), 2 * active * rows / (gpu.flops * DECODING))
    attention = cached * cached_per_token(c, half) / (gpu.bandwidth * CACHE_READING)
    logits = 3 * FP32 * rows * c.vocab_size / (gpu.bandwidth * STREAMING)
    host = 0.0 if m.is_fused else 0.4e-3 * c.layers  # without CUDA graphs every kernel waits for the host
    return products + attention + logits + LAYER_SECONDS * c.layers + STEP_SECONDS + host


def prefill_seconds(m: Models, gpu: GPU, tokens: float) -> float:
    """Prompts of so many tokens."""
    return 2 * active_weights(m.policy) * tokens / (gpu.flops * _share(m.policy.width))


def _share(width: int) -> float:
    """Share of the arithmetic that products of a model of this width reach: narrow ones waste the tiles' edges."""
    return ARITHMETIC * width / (width + SLOW_WIDTH)


def pass_seconds(
    c: DecoderConfig,
    gpu: GPU,
    tokens: float,
    trained: float,
    context: float,
    *,
    products: float,
    head_products: float,
    is_fused: bool = True,
) -> float:
    """A pass over packed tokens: `products` counts the forward pass's products, 1 for it alone, 3 with gradients."""
    width = c.heads * c.head_dim
    flop = products * tokens * (2 * active_weights(c) + 2 * c.layers * width * context)
    flop += head_products * 2 * trained * embedding_weights(c)
    traffic = tokens * c.layers * saved_in_block(c) * PASSES_OVER_SAVED * products / 3
    traffic += trained * c.vocab_size * (2 * FP32 + BF16) * head_products
    slower = 1.0 if is_fused else 1.6  # plain blocks read and write every intermediate
    return slower * (flop / (gpu.flops * _share(c.width)) + traffic / (gpu.bandwidth * STREAMING))


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """What the passes over some sequences compute."""

    tokens: float  # packed
    trained: float  # of them read by the head
    context: float  # tokens that a token attends to, on average
    passes: int


def _updating(m: Models, work: Work, choice: Choice, held: Placement, gpu: GPU) -> float:
    """All optimizer steps of a step: passes with gradients, and what the optimizer reads and writes."""
    count = micro_batch(work, choice.micro_batch_tokens).count
    computed = update_seconds(m, _packed_work(work, count * work.updates), gpu, work.epochs)
    return computed + work.updates * optimizer_seconds(m, held.gradients, gpu)


def update_seconds(m: Models, packed: Packed, gpu: GPU, epochs: int = 1) -> float:
    """Passes with gradients, each over all sequences in every epoch."""
    c, passes = m.policy, packed.passes
    frozen = bool(m.adapters)
    one = partial(
        pass_seconds,
        *(c, gpu, packed.tokens, packed.trained, packed.context),
        products=(2 if frozen else 3) + (1 if m.recompute else 0),
        is_fused=m.is_fused,
    )
    models = 2 if m.critic == "separate" else 1
    computed = epochs * one(head_products=(3 if frozen else 4) if m.has_head else 0)
    computed += epochs * one(head_products=0) * (models - 1)
    if frozen:
        computed += epochs * models * packed.tokens * _adapter_seconds(c, gpu)
    fillings = 2 if m.storage == "nf4" else 1  # by the forward and by the backward pass
    computed += passes * models * fillings * _refreshing(m, gpu)
    launched = passes * models * c.layers * (LAUNCHING + (ADAPTER_LAUNCHING if frozen else 0.0))
    return max(computed, launched) + passes * PASS_SECONDS


def optimizer_seconds(m: Models, gradients: float, gpu: GPU) -> float:
    """One optimizer step over weights with so many bytes of gradients."""
    learned = gradients / FP32
    refolding = 0.0 if m.storage == "nf4" else folding_seconds(m, gpu)
    seconds = ADAM_BYTES * learned / (gpu.bandwidth * STREAMING) + refolding
    if m.storage == "streamed":  # in and out at once
        seconds += stream_bytes(m) * learned / gpu.host_bandwidth
    return seconds


def _annotating(m: Models, work: Work, choice: Choice, gpu: GPU) -> float:
    passes = micro_batch(work, choice.micro_batch_tokens).count * work.updates // work.epochs
    return annotate_seconds(m, _packed_work(work, passes), gpu, reads_old=work.reads_old)


def annotate_seconds(m: Models, packed: Packed, gpu: GPU, *, reads_old: bool) -> float:
    """Passes before the update: of the policy, the reference and the critic."""
    # Processes that share the reference's own GPU wait for each other there; what they overlap with is not counted.
    references = max(1, m.reference_apart) if m.reference != "none" else 0
    heads = (int(reads_old), 1), (references, 1), (int(m.critic == "separate"), 0)
    passes = packed.passes
    launched = passes * m.policy.layers * FORWARD_LAUNCHING
    found = 0.0
    for times, head in heads:
        if times:
            computed = passes * _refreshing(m, gpu) + pass_seconds(
                m.policy,
                *(gpu, packed.tokens, packed.trained, packed.context),
                products=1,
                head_products=head,
                is_fused=m.is_fused,
            )
            found += times * (max(computed, launched) + passes * PASS_SECONDS)
    if m.reference == "shared" and m.storage != "nf4":  # the adapters are folded out and in again
        found += 2 * folding_seconds(m, gpu)
    return found


def _adapter_seconds(c: DecoderConfig, gpu: GPU) -> float:
    """The gradients of a token's adapters: what enters and leaves every product is read again."""
    numbers = c.layers * sum(rows + columns for rows, columns in block_products(c).values())
    return ADAPTER_READS * BF16 * numbers / (gpu.bandwidth * STREAMING)


def _scoring(m: Models, work: Work, gpu: GPU) -> float:
    return score_seconds(m, _packed_work(work, 1), gpu)


def score_seconds(m: Models, packed: Packed, gpu: GPU) -> float:
    """A pass of the reward model, if there is one."""
    if m.reward is None:
        return 0.0
    return pass_seconds(m.reward, gpu, packed.tokens, 0, packed.context, products=1, head_products=0)


def _packed_work(work: Work, passes: int) -> Packed:
    tokens, trained = _packed(work)
    return Packed(tokens=tokens, trained=trained, context=work.prompt + work.completion / 2, passes=passes)


def _packed(work: Work) -> tuple[int, int]:
    """Packed tokens of all sequences of a step, and how many of them the head reads."""
    shared = work.group if work.padding_free else 1
    prompts = -(-work.sequences // shared)
    return prompts * work.prompt + work.sequences * (work.completion - 1), work.sequences * work.completion


def _refreshing(m: Models, gpu: GPU) -> float:
    """The joined copies are filled at every pass; of frozen weights only when adapters have changed."""
    if m.storage == "nf4":
        return UNPACK_BYTES * blocks_weights(m.policy) / (gpu.bandwidth * STREAMING)
    if m.storage != "fp32":
        return 0.0
    return (FP32 + BF16) * blocks_weights(m.policy) / (gpu.bandwidth * STREAMING)


def folding_seconds(m: Models, gpu: GPU) -> float:
    return FOLD_BYTES * blocks_weights(m.policy) / (gpu.bandwidth * STREAMING) if m.adapters else 0.0


def _moved(name: str, held: Placement, choice: Choice, gpu: GPU, *, both_ways: bool = False) -> float:
    """Seconds to bring an offloaded model to the GPU, and back where it has changed."""
    if name not in choice.away:
        return 0.0
    size = {"reward": held.reward, "reference": held.reference, "critic": held.critic, "optimizer": held.state}[name]
    return (2 if both_ways else 1) * size / gpu.host_bandwidth
