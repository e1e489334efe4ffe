"""The bound on held-out text, against enumeration of every set of masked tokens."""

import math
from itertools import combinations
from math import factorial

import pytest
import torch

from tests.models.test_bidirectional import bidirectional
from whet.distributed.world import World
from whet.evaluate.held_out_masks import DRAWS, RATIO, drawn_masks, masked_counts, masked_metrics
from whet.evaluate.held_out_text import HeldOutText
from whet.evaluate.measures import headline, measure_of

LENGTH, MASK = 5, 11


def model_of(length=LENGTH):
    return bidirectional(context=length, sharp=3.0)


def exact_bound(model, text):
    """∫ (1/t) Σ_M t^|M| (1 − t)^(L − |M|) Σ_{i in M} −log π dt over every set M, from plain logits."""
    length, total = len(text), 0.0
    for k in range(1, length + 1):
        for hidden in combinations(range(length), k):
            shown = text.clone()
            shown[list(hidden)] = MASK
            logprobs = model(shown[None], torch.tensor([length])).detach()[0, :, :MASK].double().log_softmax(dim=-1)
            nll = -sum(float(logprobs[place, text[place]]) for place in hidden)
            total += factorial(k - 1) * factorial(length - k) / factorial(length) * nll
    return total


@pytest.mark.parametrize("seed", range(2))
def test_the_bound_is_that_of_all_masks(seed):
    model = model_of()
    text = torch.randint(0, MASK, (LENGTH,), generator=torch.Generator().manual_seed(seed))
    windows = text.expand(3000, -1)  # one text, and 3000 · DRAWS draws of its masks
    held_out = HeldOutText(windows=windows, tokens_per_character=0.5, tokens_per_byte=0.25)
    found = masked_metrics(model, held_out, World.alone("cpu"), has_bound=True)
    exact = exact_bound(model, text) / LENGTH
    width = found["eval/bound_high"] - found["eval/bound_low"]
    assert abs(found["eval/bound"] - exact) < width
    assert width < 0.03 * exact
    assert found["eval/bound_bits_per_character"] == pytest.approx(found["eval/bound"] / math.log(2) * 0.5)
    assert found["eval/bound_bits_per_byte"] == pytest.approx(found["eval/bound"] / math.log(2) * 0.25)
    assert found["eval/windows"] == 3000


def test_the_masked_loss_is_that_of_the_drawn_tokens():
    model = model_of(8)
    windows = torch.randint(0, MASK, (6, 8), generator=torch.Generator().manual_seed(0))
    held_out = HeldOutText(windows=windows, tokens_per_character=1.0, tokens_per_byte=1.0)
    found = masked_metrics(model, held_out, World.alone("cpu"), has_bound=False)
    count = round(RATIO * 8)
    chosen = drawn_masks(torch.arange(6), torch.full((6,), count), torch.full((6,), 8), draw=DRAWS)
    shown = windows.masked_fill(chosen, MASK)
    logits = model(shown, torch.full((6,), 8)).detach()[..., :MASK]
    logprobs = logits.log_softmax(dim=-1).gather(-1, windows[..., None])[..., 0]
    assert found["eval/masked_loss"] == pytest.approx(-float(logprobs[chosen].mean()), rel=1e-5)
    assert found["eval/masked_accuracy"] == float((logits.argmax(dim=-1) == windows)[chosen].double().mean())
    assert "eval/bound" not in found


def test_counts_are_spread_over_all_numbers_of_tokens():
    counts = masked_counts(torch.arange(1000), torch.full((1000,), 16))
    assert (int(counts.min()), int(counts.max())) == (1, 16)
    quarter = (counts - 1) // 4  # each draw has its own quarter
    assert bool((quarter == torch.arange(DRAWS)).all())
    shares = counts.flatten().bincount(minlength=17)[1:] / counts.numel()
    assert torch.allclose(shares, torch.full((16,), 1 / 16), atol=0.002)


def test_masks_are_named_by_draw_and_window_alone():
    numbers, counts, nine = torch.arange(50), torch.full((50,), 3), torch.full((50,), 9)
    masks = drawn_masks(numbers, counts, nine, draw=0)
    assert masks.sum(dim=1).tolist() == [3] * 50
    assert torch.equal(drawn_masks(numbers[20:30], counts[20:30], nine[20:30], draw=0), masks[20:30])
    assert not torch.equal(drawn_masks(numbers, counts, nine, draw=1), masks)
    assert len({tuple(row) for row in masks.tolist()}) > 25


def test_rows_of_several_lengths_are_masked_within_their_own():
    numbers, lengths = torch.arange(40), torch.arange(40) % 5 + 1
    counts = masked_counts(numbers, lengths)
    assert bool(((counts >= 1) & (counts <= lengths[:, None])).all())
    masks = drawn_masks(numbers, counts[:, 2], lengths, draw=2)
    assert masks.sum(dim=1).tolist() == counts[:, 2].tolist()
    assert not bool((masks & (torch.arange(5) >= lengths[:, None])).any())


def test_parts_of_windows_are_read_as_texts_of_their_own():
    """Two parts of one window and one of another, against each alone: nothing of a neighbour, positions from 0."""
    model, world = model_of(8), World.alone("cpu")
    windows = torch.randint(0, MASK, (2, 8), generator=torch.Generator().manual_seed(3))
    parts = torch.tensor([[0, 0, 3], [0, 3, 8], [1, 2, 4]])
    told = masked_metrics(
        model,
        HeldOutText(windows=windows, tokens_per_character=1.0, tokens_per_byte=1.0, parts=parts),
        world,
        has_bound=True,
    )
    lengths, nats, bound = torch.tensor([3, 5, 2]), 0.0, 0.0
    ones, counts = torch.ones(3, dtype=torch.int64), masked_counts(torch.arange(3), torch.tensor([3, 5, 2]))
    for row, (window, first, last) in enumerate(parts.tolist()):
        text = windows[window, first:last]

        def nll(draw, some, row=row, text=text):
            hidden = drawn_masks(torch.arange(3), some, lengths, draw=draw)[row, : len(text)]
            logits = model(text.masked_fill(hidden, MASK)[None], torch.tensor([len(text)])).detach()[0, :, :MASK]
            return -float(logits.double().log_softmax(dim=-1).gather(-1, text[:, None])[hidden].sum())

        nats += nll(DRAWS, ones)
        bound += sum(nll(draw, counts[:, draw]) * len(text) / int(counts[row, draw]) for draw in range(DRAWS)) / DRAWS
    assert told["eval/windows"] == 3
    assert told["eval/masked_loss"] == pytest.approx(nats / 3, rel=1e-5)  # one masked token of each
    assert told["eval/bound"] == pytest.approx(bound / 10, rel=1e-5)


def test_a_bound_is_not_called_a_likelihood():
    measured = {"eval/bound": 2.0, "eval/masked_loss": 1.0, "eval/masked_accuracy": 0.5}
    found = headline(measured)
    assert found is not None
    assert (found.metric, found.label, found.is_higher_better) == ("eval/bound", "held-out bound (nats a token)", False)
    assert measure_of("eval/bound_bits_per_character").label == "held-out bound, bits per character"
    assert not measure_of("eval/bound_bits_per_character").is_higher_better
    assert measure_of("eval/masked_accuracy").is_share
    only = headline({"eval/masked_loss": 1.0})
    assert only is not None
    assert not only.is_higher_better
