"""Iterative unmasking: given tokens stay, every blank is filled, and texts are as likely as the process says."""

import math
from itertools import product

import pytest
import torch

from tests.models.test_bidirectional import CONTEXT, VOCAB, bidirectional
from whet.engines.denoising.denoising_engine import DenoisingEngine
from whet.engines.denoising.unmasking import Unmasking, fill
from whet.errors import RunFailed, UserError
from whet.models.text.mask_token import with_mask
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Prompt, Sampling

MASK = VOCAB - 1
PLAIN, GREEDY = Sampling(max_tokens=99), Sampling(max_tokens=99, temperature=0.0)
ALPHABET = "abcdefghij"  # with the end of a sequence and the mask 12 ids


def blanks(*rows):
    """Texts of digits, with `_` for a token that is wanted and `?` for one that stays hidden."""
    tokens = torch.tensor([[MASK if one in "_?" else int(one) for one in row] for row in rows])
    return tokens, torch.tensor([[one == "_" for one in row] for row in rows])


def keys(count, first=0):
    return torch.arange(first, first + count) * 7919 + 13


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, Sampling(max_tokens=9, top_k=3)], ids=["plain", "greedy", "top-k"])
@pytest.mark.parametrize("steps", [1, 3, None, 40])
@pytest.mark.parametrize("order", ["random", "confidence"])
def test_given_tokens_stay_and_all_blanks_are_filled(order, steps, sampling):
    tokens, wanted = blanks("12_45__8", "________", "1234567_", "12345678", "_2??????")
    found = fill(bidirectional(), tokens, wanted, keys(5), sampling, Unmasking(order=order, steps=steps))
    assert torch.equal(found.tokens[~wanted], tokens[~wanted])
    assert bool((found.tokens[wanted] < MASK).all())
    assert torch.equal(found.steps > 0, wanted)
    counts = wanted.sum(dim=1)
    allowed = counts if steps is None else torch.full_like(counts, steps)
    assert bool((found.steps.amax(dim=1) <= allowed).all())


@pytest.mark.parametrize("order", ["random", "confidence"])
def test_a_row_depends_on_its_key_and_not_on_the_batch(order):
    model, how = bidirectional(), Unmasking(order=order)
    tokens, wanted = blanks("12_45__8", "________", "1_______")
    together = fill(model, tokens, wanted, keys(3), PLAIN, how)
    for row in range(3):
        one = slice(row, row + 1)
        alone = fill(model, tokens[one], wanted[one], keys(3)[one], PLAIN, how)
        assert torch.equal(alone.tokens[0], together.tokens[row])
        assert torch.equal(alone.steps[0], together.steps[row])
    again, other = (fill(model, tokens, wanted, keys(3, first), PLAIN, how) for first in (0, 5))
    assert torch.equal(again.tokens, together.tokens)
    assert not torch.equal(other.tokens, together.tokens)


@pytest.mark.parametrize(("steps", "sizes"), [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (8, [1] * 8), (20, [1] * 8)])
def test_confidence_reveals_the_likeliest_tokens_first(steps, sizes):
    """Replayed by hand: at every step the likeliest token of each hidden place, and the places that are surest."""
    model = bidirectional("gpt2", sharp=3.0)  # learned positions: places of an empty text differ
    tokens, wanted = blanks("________")
    found = fill(model, tokens, wanted, keys(1), GREEDY, Unmasking(order="confidence", steps=steps))
    assert found.steps[0].bincount().tolist()[1:] == sizes
    state = tokens[0].clone()
    for step, size in enumerate(sizes, start=1):
        logits = model(state[None], torch.tensor([CONTEXT])).detach()[0, :, :MASK]
        sure, ids = logits.log_softmax(dim=-1).max(dim=-1)
        hidden = [place for place in range(CONTEXT) if state[place] == MASK]
        best = sorted(hidden, key=lambda place: -float(sure[place]))[:size]
        assert sorted(best) == (found.steps[0] == step).nonzero()[:, 0].tolist()
        state[best] = ids[best]
    assert torch.equal(state, found.tokens[0])


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_random_order_samples_the_process(steps):
    """Two blanks: revealed in the same step with probability 1/steps, else one after the other, in either order."""
    model, count = bidirectional(vocab=4, layers=1, sharp=7.0), 10_000
    mask = 3
    tokens = torch.tensor([[mask, 0, mask, 1, 2, 0, 1, 2]])
    lengths = torch.tensor([CONTEXT])

    def probabilities(state):
        return model(state, lengths)[0, :, :mask].detach().double().softmax(dim=-1)

    both = probabilities(tokens)
    exact = torch.zeros(3, 3, dtype=torch.float64)
    for one, two in product(range(3), repeat=2):
        first, second = tokens.clone(), tokens.clone()
        first[0, 0], second[0, 2] = one, two
        by_first = both[0, one] * probabilities(first)[2, two]
        by_second = both[2, two] * probabilities(second)[0, one]
        exact[one, two] = both[0, one] * both[2, two] / steps + (1 - 1 / steps) * (by_first + by_second) / 2
    assert float(exact.sum()) == pytest.approx(1)
    many = tokens.expand(count, -1)
    found = fill(model, many, many == mask, keys(count), PLAIN, Unmasking(steps=steps))
    counts = torch.bincount(found.tokens[:, 0] * 3 + found.tokens[:, 2], minlength=9).reshape(3, 3)
    spread = (count * exact * (1 - exact)).sqrt()
    assert bool(((counts - count * exact).abs() < 4.5 * spread + 1).all())
    together = int((found.steps[:, 0] == found.steps[:, 2]).sum())
    assert abs(together - count / steps) <= 4.5 * math.sqrt(count / steps * (1 - 1 / steps))
    if steps > 1:  # the order matters for this model, so that the test could fail
        independent = both[0, :, None] * both[2, None, :]
        assert float(((independent - exact).abs() * count / spread).max()) > 5


def test_steps_are_evenly_likely_to_reveal_a_token():
    tokens, wanted = blanks("________")
    many, all_wanted = tokens.expand(2000, -1), wanted.expand(2000, -1)
    steps = fill(bidirectional(layers=1), many, all_wanted, keys(2000), PLAIN, Unmasking(steps=4)).steps
    counts = steps.flatten().bincount()[1:]
    assert len(counts) == 4
    assert float((counts - 4000).abs().max()) < 4.5 * math.sqrt(16000 * 0.25 * 0.75)


def test_weights_that_are_not_finite_are_said():
    model = bidirectional()
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    tokens, wanted = blanks("________")
    with pytest.raises(RunFailed, match="not finite"):
        fill(model, tokens, wanted, keys(1), PLAIN, Unmasking())


@pytest.fixture
def engine():
    return DenoisingEngine(bidirectional(), with_mask(character_tokenizer(ALPHABET)))


def prompt(engine, text, stream=(1,)):
    return Prompt(tokens=tuple(engine.tokenizer.encode(text)), stream=stream)


def test_completions_extend_the_prompt(engine):
    asked = [prompt(engine, "ab"), prompt(engine, "cde", (2,))]
    found = engine.generate(asked, Sampling(max_tokens=4), count=3)
    assert [len(own) for own in found] == [3, 3]
    for completion in (one for own in found for one in own):
        assert len(completion.tokens) == len(completion.logprobs)
        assert all(map(math.isnan, completion.logprobs))
        stopped = engine.tokenizer.eos in completion.tokens
        assert completion.finish == ("stop" if stopped else "length")
        assert (
            len(completion.tokens) == 4 or completion.tokens.index(engine.tokenizer.eos) == len(completion.tokens) - 1
        )
        assert completion.text == engine.tokenizer.decode(completion.tokens)
    assert len({completion.tokens for completion in found[0]}) > 1
    assert engine.generate(asked, Sampling(max_tokens=4), count=3)[1][2].tokens == found[1][2].tokens
    assert engine.generate(asked[1:], Sampling(max_tokens=4), count=3)[0][2].tokens == found[1][2].tokens


def test_a_completion_ends_at_the_context_and_at_a_stop_string(engine):
    (found,) = engine.generate([prompt(engine, "abc")], Sampling(max_tokens=50), count=20)
    assert max(len(one.tokens) for one in found) == CONTEXT - 3
    letter = next(one.text[1] for one in found if len(one.text) > 2)
    stopped = engine.generate([prompt(engine, "abc")], Sampling(max_tokens=50, stop=(letter,)), count=20)[0]
    for one, before in zip(stopped, found, strict=True):
        end = before.text.index(letter) + 1 if letter in before.text else len(before.text)
        assert one.text == before.text[:end]
        assert one.finish == ("stop" if letter in before.text else before.finish)


def test_infilling_keeps_what_is_given_wherever_it_stands(engine):
    text = [3, None, None, 5, None, 1]
    filled = engine.infill([text, [None] * CONTEXT], [(0,), (1,)], PLAIN, count=4)
    for ids in filled[0]:
        assert [ids[place] for place in (0, 3, 5)] == [3, 5, 1]
        assert len(ids) == 6
        assert max(ids) < MASK
    assert {len(ids) for ids in filled[1]} == {CONTEXT}


def test_the_model_sees_a_window_of_its_whole_context(engine):
    """What is not asked for is masked and not cut off: as in training, where windows are as long as the context."""
    greedy = engine.infill([[3, None]], [(0,)], GREEDY)[0][0]
    row = torch.tensor([[3] + [MASK] * (CONTEXT - 1)])
    logits = engine.policy(row, torch.tensor([CONTEXT]))[0, 1, :MASK]
    assert greedy == [3, int(logits.argmax())]


def test_a_shorter_text_is_filled_as_if_it_were_alone():
    """In a batch with longer texts what comes after its end is masked, as it is alone."""
    engine = DenoisingEngine(bidirectional(sharp=3.0), with_mask(character_tokenizer(ALPHABET)))
    texts, streams = [[3, None], [None, 7, None], [None] * CONTEXT], [(0,), (1,), (2,)]
    together = engine.infill(texts, streams, PLAIN, count=4)
    alone = [engine.infill([text], [stream], PLAIN, count=4)[0] for text, stream in zip(texts, streams, strict=True)]
    assert together == alone


def test_refusals_of_the_engine(engine):
    with pytest.raises(UserError, match="a text of 9 tokens exceeds the model's context of 8"):
        engine.infill([[None] * 9], [(0,)], PLAIN)
    with pytest.raises(UserError, match="order from left to right"):
        engine.infill([[None]], [(0,)], Sampling(max_tokens=1, min_tokens=1))
    with pytest.raises(UserError, match="a prompt is empty"):
        engine.generate([Prompt(tokens=(), stream=(0,))], PLAIN)
    with pytest.raises(UserError, match="does not belong to this model"):
        engine.generate([Prompt(tokens=(MASK,), stream=(0,))], PLAIN)
    with pytest.raises(UserError, match="order is 'left': use random or confidence"):
        engine.revealing(Unmasking(order="left"))
    with pytest.raises(UserError, match="steps is 0"):
        engine.revealing(Unmasking(steps=0))
