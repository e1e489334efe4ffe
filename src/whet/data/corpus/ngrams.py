"""n-gram language models by counting: the baselines that a trained model has to beat, in bits and in accuracy."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramResult:
    """How well an n-gram model predicts held-out tokens."""

    order: int  # 1: unigram, 2: bigram, 3: trigram
    loss: float  # nats a token
    accuracy: float  # share of tokens that are the likeliest ones


def ngram_baseline(training: np.ndarray, held_out: np.ndarray, *, order: int, vocab_size: int) -> NgramResult:
    """p(t | context) = (count(context, t) + 1) / (Σ count + V), Laplace-smoothed; contexts of order − 1 tokens.

    Of equally frequent tokens the one with the lower id is predicted; after an unseen context that is id 0.
    """
    keys, tokens = _contexts(training, order, vocab_size)
    pairs, pair_counts = np.unique(keys * vocab_size + tokens, return_counts=True)
    contexts, totals = np.unique(keys, return_counts=True)
    asked, wanted = _contexts(held_out, order, vocab_size)
    seen = _looked_up(pairs, pair_counts, asked * vocab_size + wanted)
    of_context = _looked_up(contexts, totals, asked)
    loss = -np.log((seen + 1) / (of_context + vocab_size)).mean()
    # The most frequent pair of each context: pairs are sorted by context, then token.
    owner = pairs // vocab_size
    order_by = np.lexsort((pairs % vocab_size, -pair_counts, owner))
    firsts = order_by[np.r_[True, owner[order_by][1:] != owner[order_by][:-1]]]
    likeliest = _looked_up(owner[firsts], pairs[firsts] % vocab_size, asked)
    return NgramResult(order=order, loss=float(loss), accuracy=float((likeliest == wanted).mean()))


def _contexts(ids: np.ndarray, order: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """For every token that has a whole context: the context as one number, and the token."""
    ids = np.asarray(ids, dtype=np.int64)
    keys = np.zeros(max(0, len(ids) - order + 1), dtype=np.int64)
    for place in range(order - 1):
        keys = keys * vocab_size + ids[place : place + len(keys)]
    return keys, ids[order - 1 :]


def _looked_up(known: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The value of each key; 0 of an unknown one."""
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return np.where(known[places] == asked, values[places], 0)
