"""Attention over packings on CUDA: the flash kernels on roots and branches, against padded rows in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from whet.models.layers import layer_attention
from whet.models.layers.layer_attention import PackedAttention, Scores
from whet.models.layers.packing import Packing, pack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
EVERYTHING = Scores()  # neither a window nor a cap
HEADS = [(6, 2, 16), (4, 4, 32), (9, 3, 64), (16, 1, 128), (2, 2, 256), (4, 2, 80), (6, 3, 96)]
PACKINGS: dict[str, list[list[tuple[int, int]]]] = {  # groups of (prompt, completion) tokens
    **{
        f"{size} a group": [[(5 + size, 1 + 7 * i) for i in range(size)], [(1, 40)] * size] for size in (1, 2, 3, 8, 16)
    },
    "long": [[(257, 300), (257, 1), (257, 131)], [(64, 64), (64, 65)]],
    "empty branches": [[(9, 1), (9, 1)], [(3, 1)], [(4, 6), (4, 1)]],
    "left out": [[(9, 0), (9, 4)], [(6, 0), (6, 0)], [(2, 8)]],
}


def packed_rows(groups: list[list[tuple[int, int]]], *, shared: bool) -> Packing:
    """Rows of a group have the same prompt."""
    flat = [(group, *sizes) for group, members in enumerate(groups) for sizes in members]
    width = max(prompt + completion for _, prompt, completion in flat)
    tokens = torch.zeros(len(flat), width, dtype=torch.int64)
    columns = torch.arange(width)
    mask = torch.stack([(columns >= prompt) & (columns < prompt + completion) for _, prompt, completion in flat])
    numbers = torch.tensor([group for group, _, _ in flat])
    return pack(tokens.to(CUDA), mask.to(CUDA), numbers.to(CUDA) if shared else None)


def attended(
    packing: Packing, tensors: tuple[Tensor, Tensor, Tensor], pull: Tensor, scores: Scores = EVERYTHING
) -> tuple[Tensor, ...]:
    """What each query attended to, and the gradients in queries, keys and values."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = PackedAttention(packing, scores)(leaves[0], leaves[1], leaves[2])
    return (out.detach(), *torch.autograd.grad(out, leaves, pull.to(out.dtype)))


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("groups", PACKINGS.values(), ids=PACKINGS)
def test_flash_branches_attend_as_padded_rows_in_fp32(
    groups: list[list[tuple[int, int]]], shared: bool, heads: tuple[int, int, int]
) -> None:
    packing = packed_rows(groups, shared=shared)
    count, kv_count, width = heads
    generator = torch.Generator().manual_seed(5)
    size = len(packing.tokens)
    sizes = ((1, count, size, width), (1, kv_count, size, width), (1, kv_count, size, width), (1, count, size, width))
    q, k, v, pull = (torch.randn(s, generator=generator).to(CUDA, torch.bfloat16) for s in sizes)
    found = attended(packing, (2 * q, k, v), pull)
    wanted = attended(packing, (2 * q.float(), k.float(), v.float()), pull.float())
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype is torch.bfloat16
        assert float((one.float() - two).norm() / two.norm()) < 0.02


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("window", [1, 4, 33, 200])
@pytest.mark.parametrize("groups", PACKINGS.values(), ids=PACKINGS)
def test_flash_windows_are_those_of_padded_rows_in_fp32(
    groups: list[list[tuple[int, int]]], window: int, heads: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    packing, scores = packed_rows(groups, shared=True), Scores(window=window)
    (count, kv_count, width), size = heads, len(packing.tokens)
    generator = torch.Generator().manual_seed(5)
    sizes = ((1, count, size, width), (1, kv_count, size, width), (1, kv_count, size, width), (1, count, size, width))
    q, k, v, pull = (torch.randn(s, generator=generator).to(CUDA, torch.bfloat16) for s in sizes)
    wanted = attended(packing, (2 * q.float(), k.float(), v.float()), pull.float(), scores)
    monkeypatch.setattr(layer_attention, "padded_attention", None)
    found = attended(packing, (2 * q, k, v), pull, scores)
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype is torch.bfloat16
        assert float((one.float() - two).norm()) <= 0.02 * float(two.norm()) + 1e-3


@pytest.mark.parametrize("groups", PACKINGS.values(), ids=PACKINGS)
def test_values_narrower_than_keys_are_padded_for_the_flash_kernels(
    groups: list[list[tuple[int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    packing = packed_rows(groups, shared=True)
    generator = torch.Generator().manual_seed(5)
    sizes = [(1, 6, len(packing.tokens), width) for width in (96, 96, 64, 64)]
    q, k, v, pull = (torch.randn(size, generator=generator).to(CUDA, torch.bfloat16) for size in sizes)
    wanted = attended(packing, (2 * q.float(), k.float(), v.float()), pull.float())
    monkeypatch.setattr(layer_attention, "padded_attention", None)
    found = attended(packing, (2 * q, k, v), pull)
    for one, two in zip(found, wanted, strict=True):
        assert one.shape == two.shape
        assert float((one.float() - two).norm() / two.norm()) < 0.02


def test_branches_that_do_not_see_their_roots_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = packed_rows(PACKINGS["3 a group"], shared=True)
    q, k, v, pull = (torch.randn(1, 4, len(packing.tokens), 32, device=CUDA, dtype=torch.bfloat16) for _ in range(4))
    wanted = attended(packing, (q.float(), k.float(), v.float()), pull.float())
    monkeypatch.setattr("whet.models.layers.join_kernel.join", lambda *given: None)
    found = attended(packing, (q, k, v), pull)
    assert float((found[0].float() - wanted[0]).norm() / wanted[0].norm()) > 0.1


def test_what_the_flash_kernels_do_not_take_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> Any:
        raise AssertionError("not for the flash kernels")

    monkeypatch.setattr(layer_attention, "ragged_attention", refused)
    packing = packed_rows(PACKINGS["3 a group"], shared=True)
    for width, dtype in ((12, torch.bfloat16), (32, torch.float32), (264, torch.bfloat16)):
        q, k, v, pull = (torch.randn(1, 2, len(packing.tokens), width, device=CUDA, dtype=dtype) for _ in range(4))
        assert all(bool(x.isfinite().all()) for x in attended(packing, (q, k, v), pull))
