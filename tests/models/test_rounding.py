"""Weights that are saved in bf16 or fp16: on average what they were in fp32, and the same bytes every time."""

import math

import pytest
import torch

from whet.errors import RunFailed
from whet.models.storage.rounding import rounded

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_value_becomes_one_of_its_neighbours_and_is_right_on_average(dtype: torch.dtype) -> None:
    for value in (1.001, -1.001, 0.3, -3.14159, 1e-3, 255.3):
        many = rounded("w", torch.full((200_000,), value), dtype).double()
        low, high = many.unique().tolist()
        exact = float(torch.tensor(value))
        assert low < exact < high
        assert high - low <= 2 ** (
            1 + math.floor(math.log2(abs(value))) - {torch.bfloat16: 8, torch.float16: 11}[dtype]
        )
        deviation = (high - low) / 2 / math.sqrt(len(many))
        assert abs(float(many.mean()) - exact) < 5 * deviation


@pytest.mark.parametrize("dtype", HALVES)
def test_stored_values_stay_and_the_bytes_are_the_same_every_time(dtype: torch.dtype) -> None:
    stored = torch.randn(5_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    odd = torch.tensor([0.0, -0.0, 1.0, torch.finfo(dtype).max, torch.finfo(dtype).tiny]).to(dtype)
    for given in (stored, odd):
        assert torch.equal(rounded("w", given.float(), dtype).view(torch.int16), given.view(torch.int16))
    weights = torch.randn(5_000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(rounded("w", weights, dtype), rounded("w", weights, dtype))
    assert not torch.equal(rounded("w", weights, dtype), rounded("v", weights, dtype))
    assert rounded("w", weights, torch.float32) is not None
    assert torch.equal(rounded("w", weights, torch.float32), weights)


def test_an_update_below_the_precision_of_bf16_survives_in_sums() -> None:
    stored = torch.randn(400_000, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    update = 1e-4 * stored.abs()  # a fortieth of the distance to the next bf16 number, or less
    trained = stored + update
    assert torch.equal(trained.bfloat16().float(), stored)  # the nearest number is the old one
    kept = (rounded("w", trained, torch.bfloat16).float() - stored).sum() / update.sum()
    assert abs(float(kept) - 1) < 0.05


def test_zero_and_the_smallest_numbers_keep_their_sign_and_the_largest_stay_finite() -> None:
    tiny = torch.tensor([1e-45, -1e-45] * 1000)
    found = rounded("w", tiny, torch.bfloat16).float()
    assert set(found.sign().tolist()) <= {0.0, 1.0, -1.0}
    assert bool((found[::2] >= 0).all())
    assert bool((found[1::2] <= 0).all())
    largest = torch.full((1000,), 65500.0)
    assert bool(rounded("w", largest, torch.float16).isfinite().all())
    with pytest.raises(RunFailed, match="beyond those of fp16"):
        rounded("w", torch.tensor([70000.0]), torch.float16)
