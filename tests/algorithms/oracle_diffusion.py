"""Masked diffusion in plain NumPy by enumeration: conditionals as a table, the bound, and the joint they generate."""

from itertools import combinations, permutations, product
from math import factorial

import numpy as np

Conditionals = dict[
    tuple[int | None, ...], np.ndarray
]  # text with None for masked tokens → (length, size) probabilities


def random_conditionals(length: int, size: int, seed: int) -> Conditionals:
    """Any distribution for every masked token of every partly masked text: no joint need have them all."""
    rng = np.random.default_rng(seed)
    texts = product([None, *range(size)], repeat=length)
    return {text: rng.dirichlet(np.ones(size), size=length) for text in texts}


def joint_conditionals(joint: np.ndarray) -> Conditionals:
    """Those of a joint distribution, one axis per token."""
    length, size = joint.ndim, joint.shape[0]
    found: Conditionals = {}
    for text in product([None, *range(size)], repeat=length):
        left = joint[tuple(slice(None) if token is None else slice(token, token + 1) for token in text)]
        rows = np.zeros((length, size))
        for place in (place for place, token in enumerate(text) if token is None):
            marginal = left.sum(axis=tuple(axis for axis in range(length) if axis != place))
            rows[place] = marginal / marginal.sum()
        found[text] = rows
    return found


def masked_nll(q: Conditionals, text: tuple[int, ...], hidden: tuple[int, ...]) -> float:
    """Σ over the hidden tokens of −log q(token | the others)."""
    shown = tuple(None if place in hidden else token for place, token in enumerate(text))
    return float(-sum(np.log(q[shown][place, text[place]]) for place in hidden))


def bound(q: Conditionals, text: tuple[int, ...]) -> float:
    """∫₀¹ (1/t) Σ_M t^|M| (1 − t)^(L − |M|) · nll(M) dt, in nats; the integral is (k − 1)! (L − k)! / L!."""
    length = len(text)
    return sum(
        factorial(k - 1) * factorial(length - k) / factorial(length) * masked_nll(q, text, hidden)
        for k in range(1, length + 1)
        for hidden in combinations(range(length), k)
    )


def bound_from(q: Conditionals, text: tuple[int, ...], first: float) -> float:
    """The same from a share `first` of masked tokens on, by Gauss-Legendre, which is exact for these polynomials."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    length, total = len(text), 0.0
    for node, weight in zip(first + (1 - first) * (nodes + 1) / 2, weights * (1 - first) / 2, strict=True):
        for k in range(1, length + 1):
            for hidden in combinations(range(length), k):
                total += weight * node ** (k - 1) * (1 - node) ** (length - k) * masked_nll(q, text, hidden)
    return total


def over_orders(q: Conditionals, text: tuple[int, ...]) -> list[float]:
    """−log of the probability that a text is revealed token by token, in every order."""
    found = []
    for order in permutations(range(len(text))):
        shown: list[int | None] = [None] * len(text)
        total = 0.0
        for place in order:
            total -= np.log(q[tuple(shown)][place, text[place]])
            shown[place] = text[place]
        found.append(float(total))
    return found


def log_likelihood(q: Conditionals, text: tuple[int, ...]) -> float:
    """log p of the process that reveals tokens one by one in a random order."""
    return float(np.log(np.mean(np.exp(-np.array(over_orders(q, text))))))
