"""Random streams: uniform, independent, and the same on every machine."""

import torch

from whet.streams import name_number, stream_key, uniform


def splitmix64(key: int, position: int) -> float:
    """The published generator in unbounded Python integers: state = key + (position + 1) · γ."""
    mask = 2**64 - 1
    z = (key + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    return (z >> 11) * 2.0**-53


def test_equals_splitmix64():
    keys = [0, 1, -1, 2**63 - 1, -(2**63), stream_key((3, 1, 4))]
    positions = [0, 1, 2, 1000, 12345]
    for key in keys:
        drawn = uniform(torch.full((5,), key), torch.tensor(positions)).tolist()
        assert drawn == [splitmix64(key % 2**64, p) for p in positions]


def test_known_value_of_the_generator():
    # SplitMix64 seeded with 0 begins with 0xE220A8397B1DCDAF.
    first = uniform(torch.tensor([0]), torch.tensor([0]))
    assert int(float(first) * 2**53) == 0xE220A8397B1DCDAF >> 11


def test_uniform_and_uncorrelated_between_neighbours():
    keys = torch.tensor([stream_key((0, step, index)) for step in range(40) for index in range(100)])
    draws = torch.stack([uniform(keys, torch.full_like(keys, p)) for p in range(20)])
    assert abs(float(draws.mean()) - 0.5) < 0.005
    assert abs(float(draws.var()) - 1 / 12) < 0.002
    columns = draws - draws.mean()
    for other in (columns.roll(1, 0), columns.roll(1, 1)):  # next position, next stream
        assert abs(float((columns * other).mean() * 12)) < 0.02


def test_names_do_not_collide():
    assert len({name_number(f"example-{i}") for i in range(10_000)}) == 10_000
    assert stream_key((1, 23)) != stream_key((12, 3))
