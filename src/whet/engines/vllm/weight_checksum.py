"""A checksum of weights on which two processes and two devices agree to the last bit. Imports nothing of ours."""

from __future__ import annotations

import torch
from torch import Tensor

# Elements at a time, an int64 each: on a CPU as many as stay in its cache, elsewhere as few kernels as memory allows.
CPU_CHUNK, CHUNK = 1 << 14, 1 << 24
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> str:
    """Type, shape and Σᵢ bitsᵢ · (2i + 1) mod 2⁶⁴, where i counts the elements row by row.

    Integers add up to the same in any order, so it is the same on every device. Each factor is odd, hence invertible:
    a change of any one element always shows. Each place has its own, so exchanged or transposed parts show too.
    """
    flat = tensor.detach().reshape(-1)
    bits = flat.view(INTEGERS[flat.element_size()])
    size = min(CPU_CHUNK if bits.device.type == "cpu" else CHUNK, max(1, len(bits)))
    factors = 2 * torch.arange(size, device=bits.device) + 1
    total = 0
    for start in range(0, len(bits), size):
        piece = bits[start : start + size].to(torch.int64)
        # 2(start + j) + 1 = 2 start + (2j + 1): the same factors do for every piece.
        total += int((piece * factors[: len(piece)]).sum()) + 2 * start * int(piece.sum())
    shape = "×".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape} {total % 2**64:016x}"
