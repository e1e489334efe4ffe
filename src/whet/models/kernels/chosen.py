"""Log-probs and entropies of chosen tokens from the states before them, without holding all logits.

The head runs on a chunk of states at a time. Its gradient is written out, d log p(y) = onehot(y) − p and
dH = −p · (log p + H), so the backward pass needs one number of a row besides the logits, which are computed again
unless they are few. Under autocast on CUDA products are of bf16 numbers and logits fp32, as the sampler's are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whet.models.layers.precision import full_precision

CUDA_CHUNK = 2**27  # logits at a time: 512 MiB in fp32
CPU_CHUNK = 2**24
CPU_KEPT = 2**27  # as many are kept for the backward pass instead of computed again
LEAST_ROWS = 512  # of a chunk: each adds a whole gradient of the head


def chosen_logprobs(states: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(N, D) states, (V, D) head, (N,) ids → (N,) fp32 log-probs and entropies at a temperature, with gradients."""
    learns = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    logprobs, entropies = _Chosen.apply(states, weight, targets, temperature, learns)  # type: ignore[no-untyped-call]
    return logprobs, entropies


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, temperature: float, learns: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.half = states.is_cuda and torch.is_autocast_enabled("cuda")
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.dtype, ctx.kept = temperature, states.dtype, []
        keep = learns and not states.is_cuda and len(targets) * len(weight) <= CPU_KEPT
        logprobs, entropies, lse = (torch.empty(len(targets), device=states.device) for _ in range(3))
        with full_precision(states.device):
            x, w = (t.to(torch.bfloat16 if ctx.half else torch.float32) for t in (states, weight))
            for part in _chunks(len(targets), weight):
                logits, into = _product(x[part], w.T), (logprobs[part], entropies[part], lse[part])
                if ctx.half:
                    from whet.models.kernels.chosen_kernels import read  # triton comes with CUDA builds of torch only

                    read(logits, targets[part], temperature, *into)
                else:
                    logs = _read(logits, targets[part], temperature, *into)
                    ctx.kept += [logs] if keep else []
        ctx.save_for_backward(x, w, targets, lse, entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, w, targets, lse, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = grads
        if of_logprobs is None:
            of_logprobs = torch.zeros_like(lse)
        d_states = torch.empty(x.shape, dtype=ctx.dtype, device=x.device) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros(w.shape, device=w.device) if ctx.needs_input_grad[1] and not len(targets) else None
        kept, ctx.kept = ctx.kept, []  # overwritten below: a second pass computes them again
        with full_precision(x.device):
            for index, part in enumerate(_chunks(len(targets), w)):
                slopes = (of_logprobs[part], None if of_entropies is None else of_entropies[part])
                if ctx.half:
                    from whet.models.kernels.chosen_kernels import pull

                    logits = _product(x[part], w.T)
                    d = pull(logits, targets[part], ctx.temperature, lse[part], entropies[part], *slopes)
                else:
                    logs = kept[index] if kept else _product(x[part], w.T).div_(ctx.temperature).sub_(lse[part, None])
                    d = _pull(logs, targets[part], ctx.temperature, entropies[part], *slopes)
                if d_states is not None:
                    d_states[part] = _product(d, w)
                if ctx.needs_input_grad[1]:
                    more = _product(d.T, x[part])
                    d_weight = more if d_weight is None else d_weight.add_(more)
        return d_states, d_weight, None, None, None


def _chunks(rows: int, weight: Tensor) -> Iterator[slice]:
    size = max(LEAST_ROWS, (CUDA_CHUNK if weight.is_cuda else CPU_CHUNK) // len(weight))
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """In fp32, also of bf16 numbers."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.dtype is torch.bfloat16 else a @ b


def _read(
    logits: Tensor, targets: Tensor, temperature: float, logprobs: Tensor, entropies: Tensor, lse: Tensor
) -> Tensor:
    """Fills the (n,) log-probs of the targets, entropies and log-sum-exps; the (n, V) logits become log-probs."""
    logs = logits.div_(temperature)
    lse.copy_(logs.logsumexp(dim=-1))
    logs.sub_(lse[:, None])
    logprobs.copy_(logs.gather(-1, targets[:, None])[:, 0])
    entropies.copy_(-torch.linalg.vecdot(logs, logs.exp()))
    return logs


def _pull(
    logs: Tensor,
    targets: Tensor,
    temperature: float,
    entropies: Tensor,
    of_logprobs: Tensor,
    of_entropies: Tensor | None,
) -> Tensor:
    """(n, V): the gradient in the logits; `logs` may be overwritten."""
    if of_entropies is None:
        d = logs.exp_().mul_(-of_logprobs[:, None])
    else:
        slopes = -of_logprobs[:, None] - of_entropies[:, None] * (logs + entropies[:, None])
        d = logs.exp_().mul_(slopes)
    d.scatter_add_(-1, targets[:, None], of_logprobs[:, None].to(d.dtype))
    return d.div_(temperature)
