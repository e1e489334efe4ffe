"""The checksum of weights: its value by hand, and what no change can hide from."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.engines.vllm import weights as module
from whet.engines.vllm.weights import checksum


def test_its_value_by_hand():
    # 1.0 is 0x3F800000 = 1065353216, 2.0 is 0x40000000 = 1073741824; the factors are 1 and 3.
    assert checksum(torch.tensor([1.0, 2.0])) == f"float32 2 {1065353216 + 3 * 1073741824:016x}"
    # −1.0 has the sign bit: −1082130432 as an integer, so the sum is taken mod 2⁶⁴.
    assert checksum(torch.tensor([-1.0])) == f"float32 1 {2**64 - 1082130432:016x}"
    assert checksum(torch.tensor([[1.0], [2.0]]).to(torch.bfloat16)) == f"bfloat16 2×1 {0x3F80 + 3 * 0x4000:016x}"


@given(st.integers(0, 2**31 - 1), st.integers(0, 62), st.integers(0, 31))
def test_any_one_bit_shows(seed, place, bit):
    weights = torch.randn(63, generator=torch.Generator().manual_seed(seed))
    other = weights.clone()
    mask = -(2**31) if bit == 31 else 1 << bit
    other.view(torch.int32)[place] ^= mask
    assert checksum(other) != checksum(weights)


@given(st.integers(0, 2**31 - 1), st.integers(0, 11), st.integers(0, 11))
def test_rows_that_changed_places_show(seed, first, second):
    weights = torch.randn(12, 5, generator=torch.Generator().manual_seed(seed))
    other = weights.clone()
    other[first], other[second] = weights[second].clone(), weights[first].clone()
    assert (checksum(other) == checksum(weights)) == (first == second)


def test_layout_in_memory_does_not_matter_but_shape_and_order_do():
    weights = torch.randn(6, 4)
    assert checksum(weights.t().contiguous().t()) == checksum(weights)
    assert checksum(weights.t()) != checksum(weights)
    assert checksum(weights.reshape(4, 6)) != checksum(weights)
    assert checksum(weights.double()) != checksum(weights)


def test_pieces_add_up_to_the_whole(monkeypatch):
    weights = torch.randn(1000)
    whole = checksum(weights)
    monkeypatch.setattr(module, "CPU_CHUNK", 7)
    assert checksum(weights) == whole


def test_pieces_of_a_large_tensor_add_up_to_exact_arithmetic():
    """More elements than one piece, against Python's own integers."""
    weights = torch.randn(40_000, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    bits = weights.view(torch.int16).tolist()
    wanted = sum(value * (2 * place + 1) for place, value in enumerate(bits)) % 2**64
    assert checksum(weights) == f"bfloat16 40000 {wanted:016x}"
