"""Bytes on one GPU of a run whose models are spread over all of them (`distributed.sharding`), and what passes gather.

A rank keeps a part of every matrix, of its gradient and of its moments. Norms, biases, routers and adapters are whole
in fp32 on every rank. The sampler has a whole copy. In a pass embedding and head are whole, and a block while it
computes and the next one arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from whet.models.sizes.pass_bytes import BF16, FP32
from whet.models.sizes.weight_counts import block_weights, blocks_weights, embedding_weights, head_weights

if TYPE_CHECKING:
    from whet.train.plan.gpus import GPU
    from whet.train.plan.placement import Placement
    from whet.train.plan.workload import Models

PREFETCHED = 50_000_000  # weights that DeepSpeed gathers before their block is reached (`prefetch_bucket_size`)
UPDATE_GATHERS = 2  # of the blocks: forwards and backwards


@dataclass(frozen=True, kw_only=True, slots=True)
class Kinds:
    """Numbers of a model's weights by how ranks hold them."""

    spread: int  # matrices
    whole: int  # norms, biases, routers, adapters


def rank_placement(whole: Placement, m: Models, *, vectors: int, joined: int) -> Placement:
    """What a rank holds of models that would be placed so if each GPU had all of them.

    `vectors`: weights of the policy that are in no matrix; `joined`: bytes of the sampler's own joined copies.
    """
    assert m.spread is not None
    policy, away = _kinds(m, vectors), m.spread.cpu_offload
    learned = _learned(whole, m, policy)
    each = BF16 if m.storage == "frozen" and m.on_gpu else FP32  # of a matrix: frozen ones stay as they are stored
    weights = _held(m, policy, each)
    reference = weights if whole.reference else (0, 0)  # nothing of a second model is shared with the first
    critic = _held(m, _headless(m, policy), each) if m.critic == "separate" else (0, 0)
    critic_head = FP32 * (m.policy.width + 1) if m.critic != "none" else 0
    moments = whole.state // max(1, whole.gradients // FP32)  # bytes of a trained weight
    gradients = _held(m, learned, FP32)
    state = _held(m, learned, moments)
    parts = (weights, gradients, state, reference, critic)
    return replace(
        whole,
        weights=weights[1] + (0 if away else weights[0]),
        joined=0,
        sampler=_copy(m, policy, joined) if m.samples else 0,
        gradients=gradients[1] + (0 if away else gradients[0]),
        state=state[1] + (0 if away else state[0]),
        reference=reference[1] + (0 if away else reference[0]),
        critic=critic[1] + critic_head + (0 if away else critic[0]),
        host=sum(part for part, _ in parts) if away else 0,
        models={**whole.models, "reference": 0, "critic": 0},  # they have no place but their parts
        reading=_gathered(m, learns=False),
        training=_gathered(m, learns=True),
        arriving=FP32 * max(embedding_weights(m.policy), 1) if m.samples else 0,
    )


def exchange_seconds(m: Models, gpu: GPU, *, passes: int, learns: bool) -> float:
    """Of gathering the blocks for so many passes, and of sending their gradients to the ranks that keep them.

    Links between GPUs are taken to be as fast as that to the host. Passes compute meanwhile.
    """
    assert m.spread is not None
    others, matrices = (m.spread.ranks - 1) / m.spread.ranks, blocks_weights(m.policy)
    sent = _gather_bytes(m) * matrices * (UPDATE_GATHERS if learns else 1)
    sent += FP32 * matrices if learns and not m.adapters else 0
    return passes * sent * others / gpu.host_bandwidth


def _kinds(m: Models, vectors: int) -> Kinds:
    c = m.policy
    outside = embedding_weights(c) + head_weights(c)
    if m.spread is not None and m.spread.kind == "zero3" and c.vocab_size % m.spread.ranks:  # whole on every rank
        return Kinds(spread=blocks_weights(c), whole=vectors + m.adapters + outside)
    return Kinds(spread=blocks_weights(c) + outside, whole=vectors + m.adapters)


def _learned(whole: Placement, m: Models, policy: Kinds) -> Kinds:
    """The trained weights, those of a critic included."""
    trained = whole.gradients // FP32
    if m.adapters:
        return Kinds(spread=0, whole=trained)
    spread = policy.spread + (_headless(m, policy).spread if m.critic == "separate" else 0)
    return Kinds(spread=spread, whole=max(0, trained - spread))


def _headless(m: Models, policy: Kinds) -> Kinds:
    """The policy without its head for words, as a critic of its own is."""
    head = head_weights(m.policy)
    if policy.spread > blocks_weights(m.policy):
        return Kinds(spread=policy.spread - head, whole=policy.whole)
    return Kinds(spread=policy.spread, whole=policy.whole - head)


def _held(m: Models, kinds: Kinds, each: int) -> tuple[int, int]:
    """Bytes of a rank's parts, and of what it has whole in fp32 (or in `each`, of moments)."""
    assert m.spread is not None
    return -(-each * kinds.spread // m.spread.ranks), max(each, FP32) * kinds.whole


def _copy(m: Models, policy: Kinds, joined: int) -> int:
    """The sampler's whole copy, matrices in the engine's precision, and the copies that its products read."""
    if not m.on_gpu or m.engine_half == FP32:
        return FP32 * (policy.spread + policy.whole) + joined
    c = m.policy
    matrices = blocks_weights(c) + embedding_weights(c) + head_weights(c)
    return BF16 * matrices + FP32 * (policy.spread + policy.whole - matrices) + (joined if m.adapters else 0)


def _gather_bytes(m: Models) -> int:
    """Of a gathered weight."""
    assert m.spread is not None
    return BF16 if m.on_gpu and m.spread.kind == "fsdp2" else FP32


def _gathered(m: Models, *, learns: bool) -> int:
    """Whole in a pass: embedding and head, a block and the next one, the block's joined copy and its gradients."""
    assert m.spread is not None
    c, each = m.policy, _gather_bytes(m)
    block = block_weights(c)
    ahead = max(block, min(PREFETCHED, blocks_weights(c))) if m.spread.kind == "zero3" else block
    found = each * (embedding_weights(c) + head_weights(c) + block + ahead)
    found += (BF16 if m.on_gpu else FP32) * block if m.is_fused else 0
    if learns and not m.adapters:  # as products give them, and in fp32, in which they are summed
        found += (each + FP32) * block
    return found
