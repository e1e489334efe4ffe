"""Bytes on the GPU that stay through a step: weights, copies of them, gradients, optimizer state, other models.

Bytes per weight are in the tables; a change of how something is stored is a change of a table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from whet.models.sizes.pass_bytes import BF16, FP32
from whet.models.sizes.weight_counts import block_weights, blocks_weights, embedding_weights, head_weights
from whet.train.optimizers.state_sizes import STATE_BYTES
from whet.train.plan.spread_placement import rank_placement
from whet.train.plan.workload import Models

if TYPE_CHECKING:
    from whet.models.layers.decoder_config import DecoderConfig

STEP_CHUNK = 2**24  # weights that an optimizer with bf16 or streamed weights or moments updates at a time
STEP_COPIES = 6  # fp32 temporaries of such a chunk
# Bytes of a matrix weight as it is stored, and of the joined copy that products read (0: they read the stored one).
STORED_BYTES = {"fp32": FP32, "bf16": BF16, "streamed": BF16, "frozen": BF16, "nf4": 0.5 + FP32 / 64}
JOINED_BYTES = {"fp32": BF16, "bf16": 0, "streamed": 0, "frozen": BF16, "nf4": 0}
STREAM_LANES = 3  # sets of a chunk's buffers on the GPU during the optimizer step (`StreamedAdamW`)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Bytes by owner; `state` and the others are on the GPU only where they are not offloaded."""

    weights: int  # as stored
    joined: int  # copies that products read
    sampler: int  # the sampler's copy of the head
    gradients: int  # of policy and critic, during the update
    state: int  # of the optimizers
    reference: int  # weights and joined copies
    critic: int  # weights and joined copies
    reward: int
    apart: Mapping[str, int]  # of reference and reward model on GPUs of their own, which are not counted above
    host: int  # bytes in host memory for streaming; offloaded models come on top
    models: Mapping[str, int]  # of reference, critic and reward model, without joined copies
    # Of models that are spread: what is whole in a pass without gradients, in one with them, and while weights arrive
    # at the sampler.
    reading: int = 0
    training: int = 0
    arriving: int = 0

    def resident(self, away: Collection[str] = (), here: Collection[str] = ()) -> int:
        """On the GPU while the models `here` are in use and those `away` are otherwise offloaded."""
        parts = {"reference": self.reference, "critic": self.critic, "reward": self.reward, "optimizer": self.state}
        others = sum(size for name, size in parts.items() if name not in away or name in here)
        return self.weights + self.joined + self.sampler + others


def placement(m: Models) -> Placement:
    """Where the bytes of a run's models are."""
    c = m.policy
    matrices, rest = blocks_weights(c) + embedding_weights(c) + head_weights(c), _vectors(c)
    in_blocks = blocks_weights(c)
    outside = matrices - in_blocks
    stored = STORED_BYTES[m.storage] if m.on_gpu or m.storage == "nf4" else FP32
    of_outside = max(BF16, stored) if m.on_gpu else FP32  # embeddings and head are never in four bits
    weights = int(stored * in_blocks) + int(of_outside * outside) + FP32 * rest
    weights += FP32 * m.adapters
    trained = m.adapters or all_weights(c)
    critic, critic_trained = _critic(m)
    learns = trained + critic_trained
    state = _state(m, trained) + _state(m, critic_trained)
    copies_head = m.storage == "fp32" and m.on_gpu and m.is_fused
    reward = 0 if m.reward is None else _reward(m.reward, m)
    apart = {"reference": _reference(m) if m.reference_apart else 0, "reward": reward if m.reward_apart else 0}
    found = Placement(
        weights=weights,
        joined=_joined(m),
        sampler=m.engine_half * embedding_weights(c) if copies_head and m.samples else 0,
        gradients=FP32 * learns,
        state=0 if m.storage == "streamed" else state,
        reference=0 if m.reference_apart else _reference(m),
        critic=critic,
        reward=0 if m.reward_apart else reward,
        apart={name: size for name, size in apart.items() if size},
        host=FP32 * learns + state if m.storage == "streamed" else 0,
        models={
            "reference": _stored(c, m) if m.reference == "copy" and not (m.adapters or m.reference_apart) else 0,
            "critic": _stored(c, m) if m.critic == "separate" and not m.adapters else 0,
            "reward": 0 if m.reward is None or m.reward_adapter or m.reward_apart else _stored(m.reward, m),
        },
    )
    if m.spread is not None:
        copies = _joined(m) if m.adapters or not m.on_gpu else 0
        return rank_placement(found, m, vectors=rest, joined=copies)
    return found if m.shards == 1 else _sharded(found, m)


def _sharded(held: Placement, m: Models) -> Placement:
    """Of the policy what one of the GPUs holds that share it, and what is gathered for a pass.

    Embedding and head are gathered for the whole of it, blocks one by one: one is computed while the next arrives and
    the gradients of the last are sent.
    """
    c = m.policy
    gathered = BF16 * (embedding_weights(c) + head_weights(c)) + (2 * BF16 + FP32) * block_weights(c)
    parts = {name: getattr(held, name) // m.shards for name in ("weights", "gradients", "state", "host")}
    return replace(held, **parts, joined=held.joined // m.shards + gathered)


def stream_bytes(m: Models) -> int:
    """Of a weight that is streamed from host memory: its fp32 master weight and its moments."""
    return FP32 + STATE_BYTES[m.optimizer]


def step_temporaries(m: Models) -> int:
    """Temporaries of the optimizer step, beside gradients and state."""
    chunk = min(STEP_CHUNK, m.adapters or max(block_weights(m.policy), 1))
    copies = STEP_COPIES * FP32 * chunk
    if m.storage == "streamed":
        return STREAM_LANES * stream_bytes(m) * chunk + copies
    if m.optimizer == "adamw_bf16" or m.storage == "bf16":
        return copies
    if m.optimizer in ("lion", "muon"):
        return 3 * FP32 * embedding_weights(m.policy) if not m.adapters else 0
    return 0


def all_weights(c: DecoderConfig) -> int:
    """All parameters."""
    return blocks_weights(c) + embedding_weights(c) + head_weights(c) + _vectors(c)


def _vectors(c: DecoderConfig) -> int:
    """Norms, biases and learned positions: what is no matrix of a block, an embedding or a head."""
    from whet.models.layers.decoder_config import parameter_count

    return parameter_count(c) - blocks_weights(c) - embedding_weights(c) - head_weights(c)


def _joined(m: Models) -> int:
    """Joined copies of the policy's blocks, and A and B as they were folded in last."""
    if not m.is_fused:
        return 0
    each = JOINED_BYTES[m.storage] if m.on_gpu else _cpu_joined(m.policy)
    return int(each * blocks_weights(m.policy)) + FP32 * m.adapters


def _cpu_joined(c: DecoderConfig) -> int:
    """On a CPU qkv and gate-up are copies in fp32, about two thirds of a block."""
    joined = (c.heads + 2 * c.kv_heads) * c.head_dim * c.width + 2 * c.mlp_width * c.width
    return round(FP32 * joined / block_weights(c))


def _state(m: Models, trained: int) -> int:
    """Optimizer state of so many trained weights."""
    if m.optimizer == "muon":  # one moment for hidden matrices, which a critic's head alone has none of
        hidden = m.adapters or blocks_weights(m.policy) + _routers(m.policy)
        return FP32 * (2 * trained - (hidden if trained >= hidden else 0))
    return STATE_BYTES[m.optimizer] * trained


def _critic(m: Models) -> tuple[int, int]:
    """Bytes of a critic's weights with joined copies, and the number of its trained weights."""
    head = m.policy.width + 1
    if m.critic == "none":
        return 0, 0
    if m.critic == "shared":
        return FP32 * head, head
    if m.adapters:
        return _other_adapters(m), m.adapters + head
    trained = all_weights(m.policy) - head_weights(m.policy) + head
    return _frozen_model(m.policy, m) + FP32 * head, trained


def _reference(m: Models) -> int:
    """A reference that moves, with its joined copies; one that stays needs none beside adapters."""
    if m.reference != "copy":
        return 0
    return _other_adapters(m) if m.adapters else _frozen_model(m.policy, m)


def _other_adapters(m: Models) -> int:
    """Adapters of its own on the same frozen weights, folded into a joined copy of its own."""
    return FP32 * m.adapters + _joined(m)


def _routers(c: DecoderConfig) -> int:
    """Weights of the routers of all layers with experts."""
    if c.experts is None:
        return 0
    return sum(c.has_experts(layer) for layer in range(c.layers)) * c.experts.count * c.width


def _reward(c: DecoderConfig, m: Models) -> int:
    """The reward model; one on the policy's frozen weights has adapters, and folds them into one block at a time."""
    if m.reward_adapter:
        return m.reward_adapter + (BF16 if m.on_gpu else FP32) * (block_weights(c) if m.is_fused else 0)
    return _frozen_model(c, m) + FP32 * c.width  # with its head


def _frozen_model(c: DecoderConfig, m: Models) -> int:
    """A second model with its joined copies."""
    has_copies = m.on_gpu and m.is_fused and m.storage not in ("bf16", "streamed")
    return _stored(c, m) + (BF16 * blocks_weights(c) if has_copies else 0)


def _stored(c: DecoderConfig, m: Models) -> int:
    """A second model's weights: in fp32, or in bf16 where the policy's are bf16."""
    if m.storage in ("bf16", "streamed"):
        return BF16 * (all_weights(c) - _vectors(c)) + FP32 * _vectors(c)
    return FP32 * all_weights(c)
