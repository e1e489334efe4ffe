"""Bytes of a forward and a backward pass over packed tokens, as `fused_block` and `logprobs` allocate them.

Every function is bytes per token unless it says otherwise. `half` is the size of a number in a product: 2 on a GPU, 4
on a CPU. Letters: D width, M width of the MLP, V vocabulary, L layers, Q = heads · dim, KV = kv_heads · dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from whet.models.sizes.weight_counts import block_weights, embedding_weights

if TYPE_CHECKING:
    from whet.models.layers.decoder_config import DecoderConfig

FP32, BF16 = 4, 2  # bytes
CUDA_CHUNK, CPU_CHUNK, LEAST_ROWS = 2**27, 2**24, 512  # of `logprobs`: logits of a chunk, rows of a chunk at least
FEW, MANY = 4096, 32_768  # tokens of a pass: enough for a CPU, and for any GPU
ACTIVATIONS = 0.2  # share of a GPU's memory for saved activations, where it is left open
GRADIENT_COPIES = 3  # of the head in its backward pass: the sum, the newest chunk's, and the one before it


def joined_width(c: DecoderConfig) -> int:
    """Q + 2 · KV: queries, keys and values of a token."""
    return (c.heads + 2 * c.kv_heads) * c.head_dim


def saved_in_block(c: DecoderConfig, half: int = BF16, *, is_fused: bool = True) -> int:
    """Kept by one block for its backward pass.

    Fused: the stream before attention and before the MLP in fp32, queries, keys, values and the output of attention,
    the raw qkv where heads are normed, log-sum-exps, and the two inputs of the gate. Plain blocks under autocast keep
    more: both norms' outputs, what enters and leaves each product, and what enters rotary positions. Norms of
    heads, and those after attention and MLP, keep their inputs in fp32 too; experts keep copies of their tokens.
    """
    queries, gates = c.heads * c.head_dim, 2 if c.is_gated else 1
    attention = half * (joined_width(c) + c.heads * c.value_dim) + FP32 * c.heads
    if is_fused:
        raw = half * joined_width(c) if c.qk_norm == "head" else 0
        return 2 * FP32 * c.width + raw + attention + gates * half * c.active_mlp_width + 2 * FP32
    rotated = half * (queries + c.kv_heads * c.head_dim) if c.positions == "rope" else 0
    normed = 2 * half * c.width + (2 * (FP32 + half) * c.width if c.norm_place == "both" else 0)
    normed += FP32 * (queries + c.kv_heads * c.head_dim) if c.qk_norm != "none" else 0
    routed = 0 if c.experts is None else c.experts.per_token * (FP32 + 2 * half) * c.width
    inner = (gates + 2) * half * c.active_mlp_width
    return 2 * FP32 * c.width + normed + rotated + attention + inner + routed


def saved_by_model(c: DecoderConfig) -> int:
    """Kept by all blocks and the final norm."""
    return c.layers * saved_in_block(c) + 2 * FP32 * c.width


def usual_tokens(c: DecoderConfig, memory: float) -> int:
    """Tokens of a pass (not bytes) whose activations take a share of the memory of a GPU: more are not faster."""
    return min(MANY, max(FEW, int(ACTIVATIONS * memory / saved_by_model(c))))


def backward_in_block(c: DecoderConfig, half: int = BF16) -> int:
    """The most temporaries of a block's backward pass, beside what it saved; the gradient of the stream included.

    The function keeps its local tensors until it returns, so they add up: the gradient of the stream before and after
    the MLP, its copy in the dtype of products, the recomputed norm and gate. The largest moments are the gradient of
    the gate, of attention (flash keeps fp32 sums of the queries' gradient, and keys' and values' for every query head)
    and of the first norm.
    """
    stream, narrow, gate, query = FP32 * c.width, half * c.width, half * c.active_mlp_width, half * c.heads * c.head_dim
    qkv = half * joined_width(c)
    at_gate = stream + narrow + 2 * gate
    after_mlp = 2 * stream + 2 * narrow + gate  # both gradients of the stream, its copy, the norm's output, the gate's
    expanded = 2 * query if c.heads != c.kv_heads else 0
    at_attention = after_mlp + query + qkv + FP32 * c.heads * c.head_dim + expanded
    sources = qkv if c.qk_norm == "head" else 2 * qkv  # without head norms the raw qkv is a new tensor
    at_norm = after_mlp + query + qkv + sources + stream + 3 * narrow
    return max(at_gate, at_attention, at_norm)


def forward_in_block(c: DecoderConfig, half: int = BF16) -> int:
    """Live at the end of a block's forward pass: what it would save, and its last products."""
    raw = 0 if c.qk_norm == "head" else half * joined_width(c)
    return saved_in_block(c, half) + raw + half * (2 * c.width + c.active_mlp_width) + FP32 * c.width


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadPass:
    """Bytes (in all, not per token) of the head over the trained tokens of a micro-batch."""

    saved: int  # inputs and a copy of the weights in the dtype of products
    forward: int  # logits of two chunks: the newest and, until it is released, the one before
    backward: int  # logits and their gradient, the gradients of the states and of the head


def head_pass(
    c: DecoderConfig, trained: int, *, half: int = BF16, copies_weight: bool, learns_weight: bool, on_gpu: bool = True
) -> HeadPass:
    """`copies_weight`: the head is stored wider than products read it; `learns_weight`: it gets a gradient."""
    rows = max(LEAST_ROWS, (CUDA_CHUNK if on_gpu else CPU_CHUNK) // c.vocab_size)
    chunks, first = -(-trained // rows), min(rows, trained)
    logits = first * c.vocab_size
    copy = half * embedding_weights(c) if copies_weight else 0
    of_head = FP32 * embedding_weights(c) * min(chunks, GRADIENT_COPIES) if learns_weight else 0
    # In the loop the logits of a chunk are made while the gradient of the chunk before is still there.
    of_logits = FP32 * logits + half * logits * min(chunks, 2)
    return HeadPass(
        saved=half * trained * c.width + copy,
        forward=FP32 * logits * min(chunks, 2),
        backward=of_logits + FP32 * trained * c.width + of_head,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPass:
    """The tensors of one model's pass with gradients, in bytes beside weights and accumulated gradients."""

    saved: int  # by the forward pass, until the backward pass
    backward: int  # the most of its temporaries


def training_pass(  # noqa: PLR0913
    c: DecoderConfig,
    tokens: int,
    trained: int,
    *,
    half: int = BF16,
    is_fused: bool = True,
    recompute: bool = False,
    learns_matrices: bool = True,
    has_head: bool = True,
    copies_head: bool = True,
    on_gpu: bool = True,
) -> TrainingPass:
    """A forward and backward pass over packed tokens, of which the head reads the trained ones.

    The peak is where the backward pass begins, in the head or in the last block: everything is still saved there.
    `recompute` (gradient checkpointing) keeps only the stream before each block, and one block at a time.
    """
    block = tokens * saved_in_block(c, half, is_fused=is_fused)
    stream = tokens * FP32 * c.width
    saved = c.layers * (stream if recompute else block) + stream  # the last block's output, which the norm keeps
    of_block = tokens * backward_in_block(c, half) + (FP32 * block_weights(c) if learns_matrices else 0)
    of_block += block if recompute else 0
    if not has_head:
        return TrainingPass(saved=saved + trained * FP32 * c.width, backward=of_block)
    head = head_pass(c, trained, half=half, copies_weight=copies_head, learns_weight=learns_matrices, on_gpu=on_gpu)
    # A tied head's gradient waits for the embedding's while the blocks go backwards.
    waiting = FP32 * embedding_weights(c) if learns_matrices and c.tied_head else 0
    return TrainingPass(saved=saved + head.saved, backward=max(head.backward, of_block + waiting - head.saved))


def reading_pass(
    c: DecoderConfig,
    tokens: int,
    trained: int,
    *,
    half: int = BF16,
    has_head: bool = True,
    copies_head: bool = True,
    on_gpu: bool = True,
) -> int:
    """Bytes of a pass without gradients: one block at a time, then the head."""
    of_block = tokens * (forward_in_block(c, half) + FP32 * c.width)
    states = (tokens + trained) * FP32 * c.width
    if not has_head:
        return max(of_block, states)
    head = head_pass(c, trained, half=half, copies_weight=copies_head, learns_weight=False, on_gpu=on_gpu)
    return max(of_block, states + head.saved + head.forward)
