"""NF4 in NumPy, written from the paper (Dettmers et al. 2023, §3 and appendix E): no code of bitsandbytes."""

from statistics import NormalDist

import numpy as np
import pytest
import torch

BLOCK = 64
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install 'whet[qlora]'")


def quantiles():
    """16 quantiles of N(0, 1), scaled to [−1, 1]: eight above 0, 0 itself, seven below.

    The outermost probability is the mean of 1 − 1/32 and 1 − 1/30.
    """
    last = 1 - (1 / 32 + 1 / 30) / 2
    above = [NormalDist().inv_cdf(p) for p in np.linspace(last, 0.5, 9)[:-1]]
    below = [-NormalDist().inv_cdf(p) for p in np.linspace(last, 0.5, 8)[:-1]]
    values = np.array(sorted([*above, 0.0, *below]))
    return values / np.abs(values).max()


def rounded_to_nf4(weight):
    """What a matrix is after quantisation, block by block of its numbers in the order of rows, in fp64."""
    table, flat = quantiles(), weight.detach().double().cpu().numpy().ravel()
    found = np.zeros_like(flat)
    for start in range(0, len(flat), BLOCK):
        block = flat[start : start + BLOCK]
        most = np.abs(block).max()
        if most:
            nearest = np.abs(block[:, None] / most - table[None]).argmin(axis=1)
            found[start : start + BLOCK] = table[nearest] * most
    return torch.from_numpy(found.reshape(weight.shape))
