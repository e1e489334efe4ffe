"""Rounding of trained fp32 weights to bf16 or fp16, without losing small updates.

Training moves most weights by less than half the distance between two bf16 numbers. Rounding to the nearest one would
put these back to where they were stored before, and with them most of what was learned. Stochastic rounding takes the
upper or the lower neighbour with probabilities that make the mean right, so that the updates add up in the sums of a
layer. The random numbers depend on the tensor's name alone: the same weights are always saved as the same bytes.
"""

from hashlib import blake2b

import torch
from torch import Tensor

from whet.errors import RunFailed


def rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight in `dtype` on the CPU; fp32 as it is, other dtypes by stochastic rounding."""
    here = tensor.detach().cpu()
    if dtype == torch.float32 or here.dtype != torch.float32:
        return here.to(dtype)
    nearest = here.to(dtype)
    if dtype == torch.float16 and not bool(nearest.isfinite().all()):
        raise RunFailed(f"{name} has values beyond those of fp16, 65504: save with model.dtype bf16 or fp32")
    # Bits of floating-point numbers of one sign are ordered like their magnitudes.
    step = torch.where(here.abs() > nearest.float().abs(), 1, -1).to(torch.int16)
    other = (nearest.view(torch.int16) + step).view(dtype)
    error, gap = (here - nearest.float()).abs(), (other.float() - nearest.float()).abs()
    seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
    draw = torch.rand(here.shape, generator=torch.Generator().manual_seed(seed))
    takes_other = (draw * gap < error) & other.isfinite()
    return torch.where(takes_other, other, nearest)


LOW_BITS = 16  # of an fp32 number, which bf16 does not have


def stochastic_bf16(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """fp32 in bf16 by stochastic rounding, faster than `rounded` and on any device; overwrites its argument.

    Random low bits are added and the rest is cut off. What bf16 holds exactly stays as it is, and so does NaN: all its
    bits may be set, as on CUDA, and a sum would become −0.
    """
    bits = tensor.view(torch.int32)
    noise = torch.randint(0, 1 << LOW_BITS, bits.shape, generator=generator, dtype=torch.int32, device=bits.device)
    noise.masked_fill_(tensor.isnan(), 0)
    bits.add_(noise).bitwise_and_(-1 << LOW_BITS)
    return tensor.to(torch.bfloat16)
