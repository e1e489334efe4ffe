"""A decoder block of packed tokens as one autograd function with a hand-written gradient: bf16 on CUDA, fp32 on a CPU.

It computes what `decoder.Block` does (on CUDA under autocast) for the shapes of `decoder_config.is_served`, with a
tenth of the kernel launches: products with the same input are joined (qkv, gate and up), norm, RoPE and gate are single
kernels, and weights are cast once a pass. Saved for the backward pass: the residual stream before attention and before
the MLP, inputs and output of attention, and the input of the gate; norms and gates are recomputed.

Letters: N packed tokens, D width, M width of the MLP, Q = heads · dim, KV = kv_heads · dim. `of_x` is ∂L/∂x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whet.models.kernels import block_plain
from whet.models.layers.attention import Padded, Ragged, attend, attend_back, rotary_angles
from whet.models.layers.decoder_config import fp32_product, full_precision
from whet.models.layers.packing import Packing

if TYPE_CHECKING:
    from whet.models.decoder.decoder import Trunk
    from whet.models.decoder.joined_weights import Joined


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockShape:
    """Everything that all blocks of a pass share."""

    heads: tuple[int, int, int]  # heads, kv_heads, dim
    eps: float
    angles: tuple[Tensor, Tensor]  # (N, dim / 2) cosine and sine
    attention: Ragged | Padded
    ops: Any  # `block_kernels` on CUDA, `block_plain` on a CPU


def fused_trunk(trunk: Trunk, packing: Packing, *, recompute: bool) -> Tensor:
    """→ (N, D), before the final norm: as `Trunk.forward`. `recompute` is gradient checkpointing per block."""
    c, device = trunk.config, packing.tokens.device
    cosine, sine = (x[0].contiguous() for x in rotary_angles(c, packing.positions))
    ops: Any = block_plain
    if device.type == "cuda":
        from whet.models.kernels import block_kernels  # imports Triton, which only CUDA builds of torch have

        ops, dtype = block_kernels, torch.bfloat16
        attention: Ragged | Padded = Ragged.of(packing, device)
    else:
        dtype, attention = torch.float32, Padded.of(packing, device, group=c.heads // c.kv_heads)
    shape = BlockShape(
        heads=(c.heads, c.kv_heads, c.head_dim),
        eps=c.norm_eps,
        angles=(cosine, sine),
        attention=attention,
        ops=ops,
    )
    states: Tensor = trunk.embed_tokens(packing.tokens)
    for block, half in zip(trunk.layers, trunk.joined.refreshed(list(trunk.layers), dtype), strict=True):
        if recompute and torch.is_grad_enabled():
            states = checkpoint(fused_block, block, half, states, shape, use_reentrant=False)
        else:
            states = fused_block(block, half, states, shape)
    return states


def fused_block(block: Any, half: Joined, states: Tensor, shape: BlockShape) -> Tensor:
    """(N, D) fp32 → (N, D) fp32."""
    norms = (block.input_layernorm.weight, block.post_attention_layernorm.weight)
    head_norms = (None, None)
    if block.self_attn.qk_norm == "head":
        head_norms = (block.self_attn.q_norm.weight, block.self_attn.k_norm.weight)
    out: Tensor = _Block.apply(states, half, shape, *norms, *head_norms, *block.matrices())  # type: ignore[no-untyped-call]
    return out


class _Block(torch.autograd.Function):
    """x₁ = x + out · attention(RoPE(qkv · norm(x))), x₂ = x₁ + down · (silu(gate) · up)(norm(x₁)).

    `weights` are the fp32 parameters, passed so that autograd asks for their gradients; products use `half`.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, half: Joined, shape: BlockShape, *weights: Tensor) -> Tensor:
        kernels = shape.ops
        norm, mlp_norm, q_norm, k_norm = weights[:4]
        head_norms = None if q_norm is None else (q_norm, k_norm)
        with full_precision(states.device):
            _, normed, scales = kernels.norm(states, None, norm, shape.eps)  # normed (N, D), scales (N,)
            qkv = F.linear(normed, half.qkv, half.qkv_bias)  # (N, Q + 2 · KV)
            queries, keys, values = kernels.turn(qkv, shape.angles, head_norms, shape.heads, shape.eps)
            attended, sums = attend(queries, keys, values, shape.attention)  # (N, heads, dim), log-sum-exps
            stream, normed, mlp_scales = kernels.norm(states, attended.flatten(1) @ half.out.T, mlp_norm, shape.eps)
            both = normed @ half.gate_up.T  # (N, 2 · M)
            out: Tensor = stream + kernels.gate(both) @ half.down.T
        if any(ctx.needs_input_grad):
            raw = qkv if head_norms is not None else None
            ctx.save_for_backward(
                states, scales, raw, queries, keys, values, attended, sums, stream, mlp_scales, both, *weights[:4]
            )
            ctx.half, ctx.shape, ctx.is_spent = half, shape, False
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        assert not ctx.is_spent, "a fused block has one backward pass: it overwrites saved tensors with gradients"
        ctx.is_spent = True
        states, scales, raw, queries, keys, values, attended, sums, stream, mlp_scales, both, *norms = ctx.saved_tensors
        norm, mlp_norm, q_norm, k_norm = norms
        half, shape, grad, kernels = ctx.half, ctx.shape, grads[0].contiguous(), ctx.shape.ops
        head_norms = None if q_norm is None else (q_norm, k_norm)
        # For y = x Wᵀ: ∂L/∂x = (∂L/∂y) W and ∂L/∂W = (∂L/∂y)ᵀ x. Backwards through the MLP, then through attention;
        # `grad` (N, D) fp32 is the gradient of the residual stream, `pull` its copy in the dtype of products.
        with full_precision(states.device):
            pull = grad.to(half.out.dtype)
            gated = kernels.gate_back(both, pull @ half.down)  # `both` holds its own gradient from here on
            of_down = fp32_product(pull.T, gated)
            grad, pull, normed, of_mlp_norm = kernels.norm_back(stream, mlp_scales, mlp_norm, both @ half.gate_up, grad)
            of_gate_up = fp32_product(both.T, normed)
            of_out = fp32_product(pull.T, attended.flatten(1))
            back = (pull @ half.out).view_as(attended)
            slopes = attend_back(back, queries, keys, values, attended, sums, shape.attention)
            source = queries.new_empty(len(queries), len(half.qkv)) if raw is None else raw
            of_qkv, of_head_norms = kernels.turn_back(source, shape.angles, head_norms, *slopes, shape.eps)
            grad, _, normed, of_norm = kernels.norm_back(states, scales, norm, of_qkv @ half.qkv, grad)
            of_matrix = fp32_product(of_qkv.T, normed)
        biases: Sequence[Tensor | None] = (None, None, None)
        if half.qkv_bias is not None:
            biases = torch.split(of_qkv.sum(dim=0, dtype=torch.float32), half.sizes)
        return (
            grad, None, None, of_norm, of_mlp_norm, *(of_head_norms or (None, None)),
            *torch.split(of_matrix, half.sizes), *biases, of_out, *of_gate_up.chunk(2), of_down,
        )  # fmt: skip
