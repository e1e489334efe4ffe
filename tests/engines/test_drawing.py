"""The quick draw is the definition: the same token for every random number, also next to a token's edge."""

import math

import pytest
import torch

from whet.engines.native import native_engine as drawing
from whet.engines.native.native_engine import BLOCK, draw
from whet.models.logprobs import log_distribution
from whet.records import Sampling
from whet.streams import uniform

VOCABULARIES = [4096, 5000, 49_152, 50_257]  # two are no multiples of the block


def defined(logits, sampling, numbers):
    """The inverse transform in fp64 over the whole vocabulary, one row and one number at a time."""
    tokens = []
    for row, number in zip(log_distribution(logits, sampling), numbers.tolist(), strict=True):
        cumulative = row.double().exp().cumsum(0)
        tokens.append(min(int((cumulative <= number * float(cumulative[-1])).sum()), len(row) - 1))
    return tokens


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize(("spread", "temperature"), [(4.0, 1.0), (3.0, 0.6), (0.5, 1.3), (12.0, 1.0)])
def test_equals_the_definition(vocabulary, spread, temperature):
    logits = torch.randn(96, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * spread
    keys, positions = torch.arange(96) * 7919, torch.arange(96)
    sampling = Sampling(max_tokens=1, temperature=temperature)
    chosen, logprobs = draw(logits, sampling, keys, positions)
    assert chosen.tolist() == defined(logits, sampling, uniform(keys, positions))
    expected = (logits.double() / temperature).log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
    assert (logprobs.double() - expected).abs().max() < 1e-6 * (1 + expected.abs().max())


def test_a_number_at_a_tokens_edge_is_decided_by_the_definition(monkeypatch):
    """For every number the edge itself, and its neighbours in fp64: there rounding in fp32 must not decide."""
    logits = torch.randn(1, 8192, generator=torch.Generator().manual_seed(1)) * 5
    sampling = Sampling(max_tokens=1)
    cumulative = log_distribution(logits, sampling)[0].double().exp().cumsum(0)
    edges = (cumulative / cumulative[-1])[cumulative.diff(prepend=torch.zeros(1).double()) > 1e-4]
    near = torch.cat([edges, edges - 1e-12, edges + 1e-12, edges - 1e-7, edges + 1e-7]).clamp(0, 1 - 1e-12)
    many = logits.expand(len(near), -1)
    monkeypatch.setattr(drawing, "uniform", lambda keys, positions: near)
    chosen, _ = draw(many, sampling, torch.zeros(len(near)), torch.zeros(len(near)))
    assert chosen.tolist() == defined(many, sampling, near)
    quick, is_doubtful, _ = drawing._draw_quickly(many.softmax(-1), near)
    assert bool(is_doubtful.all())  # each of them was asked about …
    assert quick.tolist() != chosen.tolist()  # … and that was needed


def test_few_rows_are_doubtful():
    """Otherwise the quick way would be no quicker."""
    logits = torch.randn(2000, 8192, generator=torch.Generator().manual_seed(2)) * 5
    numbers = uniform(torch.arange(2000), torch.zeros(2000, dtype=torch.int64))
    _, is_doubtful, _ = drawing._draw_quickly(logits.softmax(-1), numbers)
    assert is_doubtful.float().mean() < 0.02


def test_a_token_in_every_place_of_a_block_is_found():
    vocabulary = 4096 + 3
    places = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 4095, 4096, vocabulary - 1]
    logits = torch.full((len(places), vocabulary), -math.inf)
    logits[torch.arange(len(places)), torch.tensor(places)] = 3.0
    chosen, logprobs = draw(logits, Sampling(max_tokens=1), torch.arange(len(places)), torch.arange(len(places)))
    assert (chosen.tolist(), logprobs.tolist()) == (places, [0.0] * len(places))


def test_numbers_that_are_none_do_not_hide():
    logits = torch.zeros(3, 5000)
    logits[1, 17] = math.nan
    _, logprobs = draw(logits, Sampling(max_tokens=1), torch.arange(3), torch.arange(3))
    assert [math.isnan(x) for x in logprobs.tolist()] == [False, True, False]


def test_a_row_is_drawn_alike_alone_and_among_others():
    logits = torch.randn(64, 9000, generator=torch.Generator().manual_seed(3)) * 4
    keys, positions = torch.arange(64), torch.full((64,), 5)
    together = draw(logits, Sampling(max_tokens=1), keys, positions)
    for row in range(64):
        alone = draw(logits[row : row + 1], Sampling(max_tokens=1), keys[row : row + 1], positions[row : row + 1])
        assert [x.item() for x in alone] == [x[row].item() for x in together]
