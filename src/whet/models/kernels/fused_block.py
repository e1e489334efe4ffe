"""A decoder block of packed tokens as one autograd function with a hand-written gradient: bf16 on CUDA, fp32 on a CPU.

It computes what `decoder.Block` does (on CUDA under autocast) for the shapes of `decoder_config.is_served`, with a
tenth of the kernel launches: products with the same input are joined (qkv, gate and up), norm, RoPE and gate are single
kernels, and weights are cast once a pass. Saved for the backward pass: the residual stream before attention and before
the MLP, inputs and output of attention, and the input of the gate; norms and gates are recomputed. With LoRA the
products read W + s·B·A, and only A and B get a gradient: no gradient of a whole matrix is formed. Both passes ask for
the block's matrices when they enter it, so that those of a quantised block exist only then.

Letters: N packed tokens, D width, M width of the MLP, Q = heads · dim, KV = kv_heads · dim. `of_x` is ∂L/∂x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    states: Tensor = trunk.embed_tokens(packing.tokens).float()  # a frozen one may be bf16
    blocks: Any = trunk.layers
    for block, joined in zip(blocks, trunk.joined.by_block(list(trunk.layers), dtype), strict=True):
        if recompute and torch.is_grad_enabled():
            states = checkpoint(block.fused, joined, states, shape, use_reentrant=False)
        else:
            states = block.fused(joined, states, shape)
    return states


def fused_block(block: Any, joined: Callable[[], Joined], states: Tensor, shape: BlockShape) -> Tensor:
    """(N, D) fp32 → (N, D) fp32."""
    norms = (block.input_layernorm.weight, block.post_attention_layernorm.weight)
    head_norms = (None, None)
    if block.self_attn.qk_norm == "head":
        head_norms = (block.self_attn.q_norm.weight, block.self_attn.k_norm.weight)
    layers = block.adapters()
    scale = next((layer.scale for layer in layers if layer is not None), 0.0)
    low_rank = [tensor for one in layers for tensor in ((None, None) if one is None else (one.lora_A, one.lora_B))]
    out: Tensor = _Block.apply(  # type: ignore[no-untyped-call]
        states, joined, shape, scale, *norms, *head_norms, *block.matrices(), *low_rank
    )
    return out


class _Block(torch.autograd.Function):
    """x₁ = x + out · attention(RoPE(qkv · norm(x))), x₂ = x₁ + down · (silu(gate) · up)(norm(x₁)).

    `weights` are the fp32 parameters, passed so that autograd asks for their gradients; products use `joined`. They are
    four norms (of heads: or None), the ten of `Block.matrices`, and A and B of every adapter, whose B·A has the factor
    `scale`.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, joined: Callable[[], Joined], shape: BlockShape, scale: float, *weights: Tensor
    ) -> Tensor:
        kernels, half = shape.ops, joined()
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
                states, scales, raw, queries, keys, values, attended, sums, stream, mlp_scales, both,
                *weights[:4], *weights[14:],
            )  # fmt: skip
            ctx.joined, ctx.shape, ctx.scale, ctx.is_spent = joined, shape, scale, False
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        assert not ctx.is_spent, "a fused block has one backward pass: it overwrites saved tensors with gradients"
        ctx.is_spent = True
        states, scales, raw, queries, keys, values, attended, sums, stream, mlp_scales, both, *rest = ctx.saved_tensors
        norm, mlp_norm, q_norm, k_norm, *low_rank = rest
        weights = ProductGradients(ctx.needs_input_grad[8:18], low_rank, ctx.scale)
        half, shape, grad, kernels = ctx.joined(), ctx.shape, grads[0].contiguous(), ctx.shape.ops
        head_norms = None if q_norm is None else (q_norm, k_norm)
        # For y = x Wᵀ: ∂L/∂x = (∂L/∂y) W and ∂L/∂W = (∂L/∂y)ᵀ x. Backwards through the MLP, then through attention;
        # `grad` (N, D) fp32 is the gradient of the residual stream, `pull` its copy in the dtype of products.
        with full_precision(states.device):
            pull = grad.to(half.out.dtype)
            gated = kernels.gate_back(both, pull @ half.down)  # `both` holds its own gradient from here on
            of_down = weights.of(pull, gated, {9: len(pull.T)})
            grad, pull, normed, of_mlp_norm = kernels.norm_back(stream, mlp_scales, mlp_norm, both @ half.gate_up, grad)
            of_gate_up = weights.of(both, normed, dict.fromkeys((7, 8), both.shape[1] // 2))
            of_out = weights.of(pull, attended.flatten(1), {6: len(pull.T)})
            back = (pull @ half.out).view_as(attended)
            slopes = attend_back(back, queries, keys, values, attended, sums, shape.attention)
            source = queries.new_empty(len(queries), len(half.qkv)) if raw is None else raw
            of_qkv, of_head_norms = kernels.turn_back(source, shape.angles, head_norms, *slopes, shape.eps)
            grad, _, normed, of_norm = kernels.norm_back(states, scales, norm, of_qkv @ half.qkv, grad)
            of_matrices = weights.of(of_qkv, normed, dict(enumerate(half.sizes)))
        biases: Sequence[Tensor | None] = (None, None, None)
        if half.qkv_bias is not None:
            biases = torch.split(of_qkv.sum(dim=0, dtype=torch.float32), half.sizes)
        return (
            grad, None, None, None, of_norm, of_mlp_norm, *(of_head_norms or (None, None)),
            *of_matrices, *biases, *of_out, *of_gate_up, *of_down, *weights.of_low_rank,
        )  # fmt: skip


PRODUCTS = (0, 1, 2, 6, 7, 8, 9)  # the matrices among `Block.matrices`, in the order of `Block.adapters`


class ProductGradients:
    """Gradients of the matrices of a block: of whole ones, where they are trained, or of their adapters.

    For y = (W + s·B·A) x with ∂L/∂y: ∂L/∂W = (∂L/∂y)ᵀ x, ∂L/∂B = s·(∂L/∂y)ᵀ (A x) and ∂L/∂A = s·(Bᵀ ∂L/∂y)ᵀ x.
    """

    def __init__(self, trained: Sequence[bool], low_rank: Sequence[Tensor | None], scale: float) -> None:
        """`trained`: which of `Block.matrices` need a gradient. `low_rank`: A and B of every product, or None."""
        self._trained, self._scale, self._low_rank = trained, scale, low_rank
        self.of_low_rank: list[Tensor | None] = [None] * len(low_rank)

    def of(self, of_outputs: Tensor, inputs: Tensor, rows: Mapping[int, int]) -> Sequence[Tensor | None]:
        """For the product of joined matrices, each with its rows; gradients of adapters are kept in `of_low_rank`."""
        if any(self._trained[number] for number in rows):
            return torch.split(fp32_product(of_outputs.T, inputs), list(rows.values()))
        pieces = torch.split(of_outputs, list(rows.values()), dim=1)
        for number, of_output in zip(rows, pieces, strict=True):
            place = 2 * PRODUCTS.index(number)
            a, b = self._low_rank[place : place + 2] if self._low_rank else (None, None)
            if a is not None and b is not None:
                a, b = a.to(inputs.dtype), b.to(inputs.dtype)
                self.of_low_rank[place] = self._scale * fp32_product((of_output @ b).T, inputs)
                self.of_low_rank[place + 1] = self._scale * fp32_product(of_output.T, inputs @ a.T)
        return [None] * len(rows)
