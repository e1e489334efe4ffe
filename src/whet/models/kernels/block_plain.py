"""The functions of `block_kernels` in plain torch, in the dtype of their input: the fused block on a CPU.

Formulas of the gradients are in `block_kernels`. Written with few temporaries: on a CPU memory traffic is the cost.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def norm(states: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """states (N, D), added (N, D) or None, weight (D,) → x = states + added, RMSNorm(x) · weight, scales (N,)."""
    total = states if added is None else states + added
    scales = torch.linalg.vecdot(total, total).div_(total.shape[1]).add_(eps).rsqrt_()
    return total, (total * scales[:, None]).mul_(weight), scales


def norm_back(
    states: Tensor, scales: Tensor, weight: Tensor, of_out: Tensor, of_total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """→ ∂L/∂states (N, D) twice (the kernel's second is in bf16), the norm's output recomputed, ∂L/∂weight (D,).

    `of_out` (N, D) is the gradient of the norm's output, `of_total` (N, D) that of the residual stream.
    """
    unit = states * scales[:, None]
    of_weight = torch.linalg.vecdot(of_out, unit, dim=0)
    pull = of_out * weight
    along = torch.linalg.vecdot(pull, unit).div_(states.shape[1])
    grad = torch.addcmul(of_total, pull.addcmul_(unit, along[:, None], value=-1), scales[:, None])
    return grad, grad, unit.mul_(weight), of_weight


def turn(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    shape: tuple[int, int, int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv (N, (heads + 2 · kv_heads) · dim) → queries (N, heads, dim), keys and values (N, kv_heads, dim).

    Queries and keys get RMS norms per head (`norms`, or None) and then RoPE by (N, dim / 2) `angles`.
    """
    heads, kv_heads, dim = shape
    q, k, v = torch.split(qkv.view(len(qkv), -1, dim), [heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        q, k = (F.rms_norm(x, w.shape, w, eps) for x, w in zip((q, k), norms, strict=True))
    return _turned(q, *angles), _turned(k, *angles), v


def turn_back(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    of_queries: Tensor,
    of_keys: Tensor,
    of_values: Tensor,
    eps: float,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """→ ∂L/∂qkv, shaped as qkv, and the (dim,) gradients of the two head norms' weights."""
    cosine, sine = angles
    grads = [_turned(x, cosine, -sine) for x in (of_queries, of_keys)]
    if norms is None:
        return torch.cat([*grads, of_values], dim=1).flatten(1), None
    raw = qkv.view(len(qkv), -1, of_queries.shape[2])
    heads, kv_heads = of_queries.shape[1], of_keys.shape[1]
    pairs = zip(torch.split(raw[:, : heads + kv_heads], [heads, kv_heads], dim=1), grads, norms, strict=True)
    backs = [_head_norm_back(x, grad, weight, eps) for x, grad, weight in pairs]
    return torch.cat([backs[0][0], backs[1][0], of_values], dim=1).flatten(1), (backs[0][1], backs[1][1])


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """RoPE: (N, heads, dim), every pair (i, i + dim / 2) rotated by its token's angle."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    (first, second), (a, b) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    cosine, sine = cosine[:, None], sine[:, None]
    torch.mul(first, cosine, out=a)
    a.addcmul_(second, sine, value=-1)
    torch.mul(second, cosine, out=b)
    b.addcmul_(first, sine)
    return out


def _head_norm_back(x: Tensor, grad: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x and grad (N, heads, dim) → ∂L/∂x (N, heads, dim), ∂L/∂weight (dim,)."""
    scale = x.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    unit = x * scale
    of_weight = (grad * unit).sum(dim=(0, 1))
    pull = grad * weight
    along = (pull * unit).mean(dim=-1, keepdim=True)
    return (pull - unit * along) * scale, of_weight


def gate(both: Tensor) -> Tensor:
    """(N, 2 · M) → (N, M): silu(first half) · second half."""
    first, second = both.chunk(2, dim=1)
    return F.silu(first).mul_(second)


def gate_back(both: Tensor, pull: Tensor) -> Tensor:
    """(N, M): the output of `gate`, recomputed; `both` is overwritten with its gradient. `pull` (N, M) is ∂L/∂output."""
    first, second = both.chunk(2, dim=1)
    share = torch.sigmoid(first)
    opened = first * share
    out = opened * second
    # d silu = share · (1 + first · (1 − share)) = share + opened · (1 − share)
    slope = torch.addcmul(share, opened, 1 - share).mul_(second).mul_(pull)
    second.copy_(opened.mul_(pull))
    first.copy_(slope)
    return out
