"""Numbers of weights of a decoder by what becomes of them: matrices of the blocks, embeddings, head, adapters.

Letters: D width, M width of the MLP, V vocabulary, L layers, Q = heads · dim, KV = kv_heads · dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whet.models.layers.decoder_config import DecoderConfig


@lru_cache(maxsize=256)
def block_products(c: DecoderConfig, layer: int = 0) -> Mapping[str, tuple[int, int]]:
    """(rows, columns) of the matrices of one block, by the names of its layers; routers are not among them."""
    query, shared = c.heads * c.head_dim, c.kv_heads * c.head_dim
    mlp = _mlp_products(c, layer)
    out = {"self_attn.o_proj": (c.width, c.heads * c.value_dim)}
    latent = c.latent
    if latent is None:
        keys = {"self_attn.k_proj": (shared, c.width), "self_attn.v_proj": (shared, c.width)}
        return {"self_attn.q_proj": (query, c.width), **keys, **out, **mlp}
    queries = {"self_attn.q_proj": (query, c.width)}
    if latent.q_rank is not None:
        queries = {"self_attn.q_a_proj": (latent.q_rank, c.width), "self_attn.q_b_proj": (query, latent.q_rank)}
    keys_and_values = {
        "self_attn.kv_a_proj_with_mqa": (latent.cached, c.width),
        "self_attn.kv_b_proj": (c.heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
    }
    return {**queries, **keys_and_values, **out, **mlp}


def _mlp_products(c: DecoderConfig, layer: int) -> dict[str, tuple[int, int]]:
    """Of an MLP, or of every expert in its place."""
    experts, inner, parents = c.experts, c.mlp_width, ["mlp"]
    if experts is not None and c.has_experts(layer):
        inner, parents = experts.expert_width, [f"mlp.experts.{number}" for number in range(experts.count)]
    sides = [*(["gate_proj"] if c.is_gated else []), "up_proj"]
    return {
        f"{parent}.{side}": (c.width, inner) if side == "down_proj" else (inner, c.width)
        for parent in parents
        for side in (*sides, "down_proj")
    }


def layer_names(c: DecoderConfig) -> list[str]:
    """The names of all linear layers that an adapter may be put on, in the order of the model."""
    return [f"model.layers.{layer}.{name}" for layer in range(c.layers) for name in block_products(c, layer)]


def block_weights(c: DecoderConfig) -> int:
    """Weights of the matrices of one block: the largest, where some have experts."""
    return max(_each_block(c))


def blocks_weights(c: DecoderConfig) -> int:
    """Weights of the matrices of all blocks."""
    return sum(_each_block(c))


def active_weights(c: DecoderConfig) -> int:
    """Weights of the matrices of all blocks that a token is multiplied with: of experts, those that read it."""
    whole = blocks_weights(c)
    if c.experts is None:
        return whole
    idle = c.experts.count - c.experts.per_token
    sparse = sum(c.has_experts(layer) for layer in range(c.layers))
    return whole - sparse * idle * (3 if c.is_gated else 2) * c.width * c.experts.expert_width


@lru_cache(maxsize=32)
def _each_block(c: DecoderConfig) -> tuple[int, ...]:
    products = (block_products(c, layer).values() for layer in range(c.layers))
    return tuple(sum(rows * columns for rows, columns in some) for some in products)


FOLDED = 10  # bytes of a weight while its adapter is folded in: the sum in fp32, random bits, the rounded sum


def fold_bytes(c: DecoderConfig) -> int:
    """Temporaries of folding adapters into a block, one matrix after the other."""
    return FOLDED * max(rows * columns for rows, columns in block_products(c).values())


def embedding_weights(c: DecoderConfig) -> int:
    """V · D."""
    return c.vocab_size * c.width


def head_weights(c: DecoderConfig) -> int:
    """Weights of an LM head of its own; 0 if it is the embedding."""
    return 0 if c.tied_head else c.vocab_size * c.width


def layer_shape(c: DecoderConfig, layer: str) -> tuple[int, int]:
    """(rows, columns) of a layer, by a name of `layer_names`."""
    number, name = layer.split(".", 3)[2:]
    return block_products(c, int(number))[name]


def adapter_weights(c: DecoderConfig, rank: int, layers: Sequence[str]) -> int:
    """rank · (rows + columns) of every adapted layer, by the names of `layer_names`."""
    return rank * sum(sum(layer_shape(c, layer)) for layer in layers)
