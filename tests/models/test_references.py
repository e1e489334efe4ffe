"""References that are no policy: counts by hand, read by the same function that reads policies."""

import math

import pytest
import torch

from whet.errors import UserError
from whet.models.logprobs import read_tokens
from whet.models.references import BIGRAM_LARGEST, Bigram, Uniform
from whet.records import Sampling

PLAIN = Sampling(max_tokens=1)
TOKENS = torch.tensor([[0, 1, 2, 1], [2, 2, 0, 0]])
LENGTHS = torch.tensor([4, 2])
MASK = torch.tensor([[False, True, True, True], [False, True, False, False]])


def test_every_token_is_as_likely_as_every_other():
    reading = read_tokens(Uniform(7), TOKENS, LENGTHS, MASK, PLAIN)
    assert torch.allclose(reading.logprobs, -math.log(7) * MASK)
    assert torch.allclose(reading.entropies, math.log(7) * MASK)
    hot = read_tokens(Uniform(7), TOKENS, LENGTHS, MASK, Sampling(max_tokens=1, temperature=0.3))
    assert torch.allclose(hot.logprobs, reading.logprobs)


def test_pairs_are_counted_and_each_once_more():
    # 0→1 twice, 1→2 once, 1→0 once; a row of one token has no pair, and no pair crosses two sequences.
    bigram = Bigram([[0, 1, 2], [1, 0, 1], [2]], vocab_size=3)
    table = bigram.log_table.exp().tolist()
    assert table[0] == pytest.approx([1 / 5, 3 / 5, 1 / 5])
    assert table[1] == pytest.approx([2 / 5, 1 / 5, 2 / 5])
    assert table[2] == pytest.approx([1 / 3, 1 / 3, 1 / 3])  # never followed by anything


def test_a_token_is_read_after_the_one_before_it():
    bigram = Bigram([[0, 1, 2], [1, 0, 1], [2]], vocab_size=3)
    reading = read_tokens(bigram, TOKENS, LENGTHS, MASK, PLAIN)
    expected = [[0, math.log(3 / 5), math.log(2 / 5), math.log(1 / 3)], [0, math.log(1 / 3), 0, 0]]
    assert torch.allclose(reading.logprobs, torch.tensor(expected), atol=1e-6)
    rows = torch.tensor([[1 / 5, 3 / 5, 1 / 5], [2 / 5, 1 / 5, 2 / 5]])
    entropies = -(rows * rows.log()).sum(-1)
    assert reading.entropies[0, 1:3].tolist() == pytest.approx(entropies.tolist(), rel=1e-5)


def test_no_text_is_the_uniform_reference():
    empty = read_tokens(Bigram([], vocab_size=3), TOKENS, LENGTHS, MASK, PLAIN)
    assert torch.allclose(empty.logprobs, read_tokens(Uniform(3), TOKENS, LENGTHS, MASK, PLAIN).logprobs)


def test_large_ids_keep_their_identity():
    """The state of a token is its id as a number: it must be exact for every id that a table may have."""
    last = BIGRAM_LARGEST - 1
    states = Bigram.hidden(object.__new__(Bigram), torch.tensor([[last, last - 1]]), torch.tensor([2]))
    assert states[0, :, 0].long().tolist() == [last, last - 1]


def test_a_table_that_would_be_too_large_is_refused_in_a_sentence():
    with pytest.raises(UserError, match=r"the vocabulary has 8193 tokens: its table would have their square; use a"):
        Bigram([], vocab_size=BIGRAM_LARGEST + 1)
