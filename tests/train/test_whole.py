"""Log-probs of whole completions, and passes that never part the rows of a unit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.small import small_model
from whet.config.parts import UpdateConfig
from whet.distributed.world import World
from whet.models.logprobs import read_tokens
from whet.records import Row
from whet.train.rows import units as module
from whet.train.rows.units import stacked, summed_logprobs, whole_units

ALONE = World.alone()
MODEL, TOKENIZER = small_model()


def row(length, prompt=1):
    tokens = [(7 * place + 3 * length) % 20 for place in range(length)]
    return Row(tokens=tuple(tokens), mask=tuple(place >= prompt for place in range(length)))


def units_of(lengths, size, most):
    sequences = stacked([row(length) for length in lengths], ALONE)
    return [rows.tolist() for rows in whole_units(sequences, size, UpdateConfig(micro_batch_tokens=most), MODEL)]


def test_units_by_hand():
    # Units of two rows, 3, 9 and 4 tokens at their longest: 18 tokens padded for the second, 8 + 6 → 2 units of 4 next.
    assert units_of([3, 2, 5, 9, 4, 4], 2, 18) == [[2, 3], [4, 5, 0, 1]]
    assert units_of([3, 2, 5, 9, 4, 4], 2, 8) == [[2, 3], [4, 5], [0, 1]]  # the longest comes alone
    assert units_of([3, 2, 5, 9, 4, 4], 2, 100) == [[2, 3, 4, 5, 0, 1]]
    assert units_of([9, 2, 5, 5], 2, 100) == [[0, 1, 2, 3]]  # by the longer row of a unit
    assert units_of([9, 2, 5, 5], 2, None) == [[0, 1, 2, 3]]  # as many as fit


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 3), lengths=st.lists(st.integers(2, 12), min_size=1, max_size=9), most=st.integers(1, 80))
def test_every_unit_comes_once_and_whole(size, lengths, most):
    lengths = [length for length in lengths for _ in range(size)]
    found = units_of(lengths, size, most)
    assert sorted(place for rows in found for place in rows) == list(range(len(lengths)))
    for rows in found:
        for start in range(0, len(rows), size):
            first = rows[start]
            assert first % size == 0
            assert rows[start : start + size] == list(range(first, first + size))
        longest = max(lengths[place] for place in rows)
        assert len(rows) * longest <= most or len(rows) == size


@pytest.mark.parametrize("packed", [True, False])
def test_sums_are_those_of_single_tokens(packed):
    rows = [row(9, prompt=4), row(5, prompt=2), row(7, prompt=3), row(2)]
    sequences = stacked(rows, ALONE)
    order = torch.tensor([2, 0, 3, 1])
    settings_ = UpdateConfig(padding_free=packed)
    with torch.no_grad():
        sums, counts = summed_logprobs(MODEL, sequences, order, 1, settings_, ALONE.device)
        for place, found, count in zip(order.tolist(), sums.tolist(), counts.tolist(), strict=True):
            one = rows[place]
            logits = MODEL.head(MODEL.hidden(torch.tensor([one.tokens]), torch.tensor([len(one.tokens)])))[0].double()
            table = logits.log_softmax(dim=-1)
            chosen = [t for t, on in enumerate(one.mask) if on]
            assert count == len(chosen)
            assert found == pytest.approx(sum(float(table[t - 1, one.tokens[t]]) for t in chosen), abs=2e-5)


def test_two_rows_of_a_unit_share_their_prompt(monkeypatch):
    """Packed, the prompt of a pair is read once; the sums are the same as when it is read twice."""
    read = []

    def noted(*given, packing):
        read.append(None if packing is None else len(packing.tokens))
        return read_tokens(*given, packing=packing)

    monkeypatch.setattr(module, "read_tokens", noted)
    prompt = (3, 5, 8, 2)
    rows = [
        Row(tokens=(*prompt, *rest), mask=(False,) * 4 + (True,) * len(rest))
        for rest in ((1, 0), (9, 9, 4, 0), (6, 0), (2, 7, 0))
    ]
    sequences, everything = stacked(rows, ALONE), torch.arange(4)
    with torch.no_grad():
        together = summed_logprobs(MODEL, sequences, everything, 2, UpdateConfig(padding_free=True), ALONE.device)[0]
        padded = summed_logprobs(MODEL, sequences, everything, 2, UpdateConfig(padding_free=False), ALONE.device)[0]
    assert read == [2 * 4 + 1 + 3 + 1 + 2, None]  # two prompts, and each completion but for its last token
    assert torch.allclose(together, padded, atol=2e-5)
    assert together.std() > 1  # the model is sharp: rows that were mixed up would show
