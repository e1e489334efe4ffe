"""Rows of fragments: GAE by the table is that of the textbook over a stream with ends, truncations and a cut end."""

import numpy as np
import pytest
import torch

from whet.algorithms.advantages import gae
from whet.control.fragments import Fragments

T, N, GAMMA, LAM = 60, 3, 0.97, 0.9


def textbook(rewards, values, terminated, truncated, beyond, last):
    """Backwards over time, with the value of what follows: 0 after an end, V(s′) after a truncation."""
    found = np.zeros((T, N))
    for copy in range(N):
        following, running = last[copy], 0.0
        for t in range(T - 1, -1, -1):
            ended = terminated[t, copy] or truncated[t, copy]
            if ended:
                following, running = (0.0 if terminated[t, copy] else beyond[t, copy]), 0.0
            delta = rewards[t, copy] + GAMMA * following - values[t, copy]
            running = delta + GAMMA * LAM * running
            found[t, copy], following = running, values[t, copy]
    return found


def test_gae_of_fragments():
    draw = np.random.default_rng(0)
    rewards, values, beyond = draw.normal(size=(3, T, N))
    terminated, last = draw.random((T, N)) < 0.08, draw.normal(size=N)
    truncated = ~terminated & (draw.random((T, N)) < 0.05)
    ends = terminated | truncated
    ends[-1] = True
    fragments = Fragments.between(torch.from_numpy(ends.T.reshape(-1)))
    follows = np.where(truncated, beyond, 0.0)
    follows[-1] = np.where(terminated[-1], 0.0, np.where(truncated[-1], beyond[-1], last))
    paid = torch.from_numpy((rewards + GAMMA * follows).T.reshape(-1))
    rows = gae(
        fragments.rows(paid),
        fragments.rows(torch.from_numpy(values.T.reshape(-1).copy())),
        fragments.mask,
        gamma=GAMMA,
        lam=LAM,
    )
    found = fragments.flat(rows).view(N, T).T.numpy()
    assert found == pytest.approx(textbook(rewards, values, terminated, truncated, beyond, last))


def test_rows_and_steps():
    fragments = Fragments.between(torch.tensor([0, 1, 1, 0, 0, 1]) > 0)
    assert fragments.starts.tolist() == [0, 2, 3]
    assert fragments.lengths.tolist() == [2, 1, 3]
    assert fragments.last.tolist() == [1, 2, 5]
    steps = torch.arange(6) + 10
    assert fragments.rows(steps).tolist() == [[10, 11, 0], [12, 0, 0], [13, 14, 15]]
    assert torch.equal(fragments.flat(fragments.rows(steps)), steps)
