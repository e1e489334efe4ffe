"""The distribution that tokens are drawn from, against its definition in plain NumPy and against transformers' own.

Trainer and sampler share `log_distribution`, so comparing one with the other would show no mistake in it.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from whet.engines.native.native_engine import draw
from whet.models.logprobs import log_distribution
from whet.records import Sampling
from whet.streams import stream_key, uniform

VOCABULARY = 12
TEMPERATURES = (1.0, 0.5, 1.7)
TOP_K = (0, 1, 3, 5, VOCABULARY, 99)
TOP_P = (1.0, 0.9, 0.5, 1e-6)
MIN_P = (0.0, 0.05, 0.4, 1.0)
COMBINATIONS = list(itertools.product(TEMPERATURES, TOP_K, TOP_P, MIN_P))


def logits():
    """Rows in which the cuts bite differently: random, steep, flat with ties, one forbidden token."""
    rows = np.random.default_rng(7).normal(size=(4, VOCABULARY)) * 2
    rows[1] *= 3
    rows[2] = np.round(rows[2])
    rows[3, 4] = -math.inf
    return rows.astype(np.float32)


def defined(row, temperature, top_k, top_p, min_p):
    """Softmax; the k likeliest (all that tie with the last of them), then the smallest set of at least mass p *of what
    is left*, then what is at least min_p times as likely as the likeliest; renormalised after every cut."""
    weights = [math.exp((float(x) - float(row.max())) / temperature) for x in row]
    left = {token: weight for token, weight in enumerate(weights) if weight > 0}
    if top_k:
        last = sorted(left.values(), reverse=True)[min(top_k, len(left)) - 1]
        left = {token: weight for token, weight in left.items() if weight >= last}
    if top_p < 1:
        total, reached, nucleus = sum(left.values()), 0.0, {}
        for token in sorted(left, key=lambda token: -left[token]):  # of equals the first
            if reached >= top_p:
                break
            nucleus[token] = left[token]
            reached += left[token] / total
        left = nucleus
    likeliest = max(left.values())
    left = {token: weight for token, weight in left.items() if weight >= min_p * likeliest * (1 - 1e-6)}
    total = sum(left.values())
    return np.array([left.get(token, 0.0) / total for token in range(VOCABULARY)])


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_every_combination_is_what_it_is_defined_as(temperature):
    rows = logits()
    for top_k, top_p, min_p in itertools.product(TOP_K, TOP_P, MIN_P):
        sampling = Sampling(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        found = log_distribution(torch.from_numpy(rows), sampling).double().exp().numpy()
        expected = np.stack([defined(row, temperature, top_k, top_p, min_p) for row in rows])
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=str(sampling))


def test_every_combination_is_what_transformers_makes_of_it():
    scores = torch.from_numpy(np.delete(logits(), 2, axis=0))  # of ties transformers keeps another
    for temperature, top_k, top_p, min_p in COMBINATIONS:
        if min_p == 1:  # rounding decides about the likeliest itself
            continue
        processed = scores / temperature
        warpers = [TopKLogitsWarper(top_k)] if top_k else []
        warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        warpers += [MinPLogitsWarper(min_p)] if min_p else []
        for warper in warpers:
            processed = warper(None, processed)
        sampling = Sampling(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        found = log_distribution(scores, sampling).exp()
        torch.testing.assert_close(found, processed.softmax(dim=-1), atol=1e-6, rtol=1e-5, msg=str(sampling))


def test_by_hand():
    # 0.4, 0.3, 0.2, 0.1. The three likeliest are 4/9, 3/9, 2/9 of what is left, so the first two hold 7/9 > 0.75 of it:
    # the third goes. Of the whole they hold only 0.7, and it would have stayed.
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    both = Sampling(max_tokens=1, top_k=3, top_p=0.75)
    assert log_distribution(scores, both).exp()[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    alone = Sampling(max_tokens=1, top_p=0.75)
    assert log_distribution(scores, alone).exp()[0].tolist() == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    least = Sampling(max_tokens=1, min_p=0.6)
    assert log_distribution(scores, least).exp()[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_the_draw_inverts_the_defined_distribution():
    # The token is the first whose cumulative probability exceeds the random number, and its log-prob is as defined.
    rows, wrong = logits(), []
    draws = 16
    keys = torch.tensor([stream_key((3, index)) for index in range(draws)])
    numbers = uniform(keys, torch.zeros_like(keys)).numpy()
    for combination, row in itertools.product(COMBINATIONS, rows):
        temperature, top_k, top_p, min_p = combination
        sampling = Sampling(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        repeated = torch.from_numpy(row).expand(draws, -1)
        chosen, logprobs = draw(repeated, sampling, keys, torch.zeros_like(keys))
        probabilities = defined(row, *combination)
        edges = np.cumsum(probabilities)
        expected = np.searchsorted(edges, numbers, side="right")
        is_near = np.abs(edges - numbers[:, None]).min(axis=1) < 1e-6  # rounding may decide
        is_off = np.abs(np.exp(logprobs.numpy()) - probabilities[chosen]) > 1e-6
        if np.any(((chosen.numpy() != expected) & ~is_near) | is_off):
            wrong.append(combination)
    assert wrong == []


def test_the_nucleus_ends_where_the_mass_is_reached():
    equal = torch.zeros(1, 4)  # a quarter each, which floats hold exactly
    for top_p, kept in ((0.25, 1), (0.5, 2), (0.500001, 3), (0.75, 3), (0.76, 4)):
        probabilities = log_distribution(equal, Sampling(max_tokens=1, top_p=top_p)).exp()[0].tolist()
        assert probabilities == pytest.approx([1 / kept] * kept + [0.0] * (4 - kept))
