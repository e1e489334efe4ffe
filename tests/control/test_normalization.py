"""Running statistics against those of all rows at once, and of returns against a loop."""

import numpy as np
import pytest
import torch

from whet.control.normalization import Normalizer, RewardScale, RunningMoments, discounted


def test_merged_moments_are_those_of_all_rows():
    rows = np.random.default_rng(0).normal(1e4, [1e-2, 5.0, 300.0], (500, 3))
    moments = RunningMoments(3)
    for part in np.split(rows, [1, 7, 100, 101]):
        moments.add(torch.from_numpy(part))
    assert moments.count.item() == 500
    assert moments.mean.numpy() == pytest.approx(rows.mean(axis=0), rel=1e-12)
    assert moments.variance.numpy() == pytest.approx(rows.var(axis=0), rel=1e-6)


def test_normalised_rows_have_no_mean_and_unit_deviation_and_are_clipped():
    rows = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 0.1]) + 5
    normalizer = Normalizer(2, clip=2.5)
    assert torch.equal(normalizer(rows[:5] - 5), (rows[:5] - 5).clamp(-2.5, 2.5))  # before the first rows
    normalizer.moments.add(rows)
    found = normalizer(rows)
    assert found.abs().max() == 2.5
    assert found.mean(dim=0).tolist() == pytest.approx([0, 0], abs=0.02)
    assert found.std(dim=0).tolist() == pytest.approx([1, 1], abs=0.03)


def test_discounted_returns_begin_anew_with_an_episode():
    rewards, ended = np.random.default_rng(1).normal(size=(40, 3)), np.random.default_rng(2).random((40, 3)) < 0.2
    expected, running = np.empty_like(rewards), np.array([0.5, 0.0, -2.0])
    for t, copy in np.ndindex(rewards.shape):
        expected[t, copy] = running[copy] = rewards[t, copy] + 0.9 * running[copy]
        running[copy] *= not ended[t, copy]
    found, last = discounted(
        torch.from_numpy(rewards), torch.from_numpy(ended), torch.tensor([0.5, 0.0, -2.0]).double(), gamma=0.9
    )
    assert found.numpy() == pytest.approx(expected)
    assert last.numpy() == pytest.approx(running)


def test_rewards_keep_their_sign():
    scale = RewardScale(clip=10.0)
    scale.moments.add(torch.tensor([[0.0], [8.0]]).double())  # deviation 4
    assert scale(torch.tensor([2.0, -1.0, 400.0])).tolist() == pytest.approx([0.5, -0.25, 10.0])
