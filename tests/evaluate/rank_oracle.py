"""Spearman's rank correlation as the correlation of ranks that are counted one by one."""

from collections.abc import Sequence

import numpy as np


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    ranks = []
    for values in (np.array(first), np.array(second)):
        ranks.append([(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values])
    return float(np.corrcoef(*ranks)[0, 1])
