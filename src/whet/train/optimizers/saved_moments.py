"""The optimizer's moments as checkpoints hold them (`save.optimizer`): exact, in bf16, or in 8 bits.

Matrices alone are rounded: norms, biases, step counts and master weights stay as they are, and so do the moments of
optimizers that keep them in as few bits. The name of a rounded tensor says how: `exp_avg.bf16/NAME`, or
`exp_avg.8bit/NAME` with `exp_avg.scales/NAME`.

8 bits: block-wise quantization (Dettmers et al. 2022, arXiv 2110.02861) on a logarithmic scale. A block of 256 numbers
is divided by its largest magnitude; the codes are powers from 1 down to 10⁻⁷, and to 10⁻¹⁴ for squares, whose root Adam
divides by. So a number is off by at most 6.7 % of itself, small or large: a linear code would round small squares to 0,
and the update divided by their root would explode. Squares below the smallest code are rounded up to it, never to 0;
means below it become 0.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from whet.train.optimizers.state_sizes import BLOCK

MASTER = "master"  # fp32 weights that an optimizer keeps: never rounded
MEANS, SQUARES = ("exp_avg", "momentum"), ("exp_avg_sq",)
IN_BF16, CODES, SCALES = ".bf16", ".8bit", ".scales"
MEAN_DECADES, SQUARE_DECADES = 7, 14
MEAN_CODES, SQUARE_CODES = 127, 255  # of a sign; besides 0
CHUNK = BLOCK << 14  # numbers at a time: bounds the temporaries


def packed(moment: str, tensor: Tensor, how: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one state of one parameter in a checkpoint, by their names."""
    is_moment, is_matrix = moment in MEANS + SQUARES, tensor.dim() >= 2
    if how == "none" and moment != MASTER:
        return
    if how == "bf16" and is_moment and is_matrix and tensor.dtype is torch.float32:
        yield moment + IN_BF16, tensor.to(torch.bfloat16)
    elif how == "8bit" and is_moment and is_matrix:
        codes, scales = quantized(tensor, is_square=moment in SQUARES)
        yield moment + CODES, codes
        yield moment + SCALES, scales
    else:
        yield moment, tensor


def unpacked(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The states of a checkpoint by `MOMENT/PARAMETER`, as the optimizer keeps them."""
    for key, tensor in tensors.items():
        moment, _, name = key.partition("/")
        if moment.endswith(IN_BF16):
            yield f"{moment.removesuffix(IN_BF16)}/{name}", tensor.float()
        elif moment.endswith(CODES):
            moment = moment.removesuffix(CODES)
            yield f"{moment}/{name}", dequantized(tensor, tensors[f"{moment}{SCALES}/{name}"])
        elif not moment.endswith(SCALES):
            yield key, tensor


def is_rounded(tensors: Mapping[str, Tensor]) -> bool:
    """Whether moments of these are not as they were."""
    return any(key.partition("/")[0].endswith((IN_BF16, CODES)) for key in tensors)


def quantized(tensor: Tensor, *, is_square: bool) -> tuple[Tensor, Tensor]:
    """8-bit codes in the shape of the tensor, and the largest magnitude of each block in its dtype."""
    flat = tensor.detach().reshape(-1)
    pieces = [_quantized(piece, is_square=is_square) for piece in torch.split(flat, CHUNK)]
    codes, scales = (torch.cat(some) for some in zip(*pieces, strict=True))
    return codes.view(tensor.shape), scales.to(tensor.dtype)  # one of its own numbers: nothing is lost


def _quantized(flat: Tensor, *, is_square: bool) -> tuple[Tensor, Tensor]:
    blocks = torch.nn.functional.pad(flat.float(), (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    size = blocks.abs()
    scales = size.amax(dim=1)
    share = size / torch.where(scales > 0, scales, 1.0)[:, None]
    decades, most = (SQUARE_DECADES, SQUARE_CODES) if is_square else (MEAN_DECADES, MEAN_CODES)
    level = (share.log10() / decades * (most - 1)).round() + most  # -inf for 0
    if is_square:
        codes = torch.where(share > 0, level.clamp(1, most), 0.0).to(torch.uint8)
    else:
        codes = (level.clamp(0, most) * blocks.sign()).to(torch.int8)
    return codes.view(-1)[: len(flat)], scales


def dequantized(codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers of `quantized`, in the dtype of the scales."""
    is_square = codes.dtype is torch.uint8
    table = torch.tensor(_squares() if is_square else _means(), dtype=torch.float32, device=codes.device)
    found = torch.empty(codes.numel(), dtype=scales.dtype, device=codes.device)
    starts = range(0, codes.numel(), CHUNK)
    for start, piece in zip(starts, torch.split(codes.view(-1), CHUNK), strict=True):
        own = scales[start // BLOCK :][: -(-len(piece) // BLOCK)].float().repeat_interleave(BLOCK)[: len(piece)]
        found[start : start + len(piece)] = table[piece.int() + (0 if is_square else MEAN_CODES)] * own
    return found.view(codes.shape)


def _powers(decades: int, most: int) -> list[float]:
    """The values of the codes 1 … most."""
    return [math.pow(10.0, decades * (code - most) / (most - 1)) for code in range(1, most + 1)]


def _squares() -> list[float]:
    """By code, 0 … 255."""
    return [0.0, *_powers(SQUARE_DECADES, SQUARE_CODES)]


def _means() -> list[float]:
    """By code, −127 … 127."""
    above = _powers(MEAN_DECADES, MEAN_CODES)
    return [*(-value for value in reversed(above)), 0.0, *above]
