"""Log-probs of given tokens: the shift, the sampling distribution, chunks."""

import math

import pytest
import torch

from tests.small import small_model
from whet.models import logprobs as module
from whet.models.logprobs import likeliest_hits, log_distribution, token_logprobs
from whet.records import Sampling

PLAIN = Sampling(max_tokens=1)


def batch(lengths=(7, 4, 2), prompt=1):
    torch.manual_seed(0)
    tokens = torch.randint(0, 20, (len(lengths), max(lengths)))
    mask = torch.tensor([[prompt <= t < n for t in range(max(lengths))] for n in lengths])
    return tokens, torch.tensor(lengths), mask


def test_index_t_describes_token_t():
    model, _ = small_model()
    tokens, lengths, mask = batch()
    got, entropy = token_logprobs(model, tokens, lengths, mask, PLAIN)
    for b, n in enumerate(lengths.tolist()):
        for t in range(tokens.shape[1]):
            if t == 0 or t >= n:
                assert got[b, t] == 0
                assert entropy[b, t] == 0
                continue
            with torch.no_grad():  # an independent pass over the prefix alone
                logits = model.head(model.hidden(tokens[b : b + 1, :t], torch.tensor([t]))[0, -1])
            expected = logits.log_softmax(-1)
            assert got[b, t].item() == pytest.approx(float(expected[tokens[b, t]]), abs=1e-5)
            assert float(entropy[b, t]) == pytest.approx(float(-(expected.exp() * expected).sum()), abs=1e-5)


def test_token_zero_cannot_be_trained():
    model, _ = small_model()
    tokens, lengths, mask = batch(prompt=0)
    with pytest.raises(AssertionError):
        token_logprobs(model, tokens, lengths, mask, PLAIN)


def test_padding_is_not_read():
    model, _ = small_model()
    tokens, lengths, mask = batch()
    one, _ = token_logprobs(model, tokens, lengths, mask, PLAIN)
    scrambled = tokens.clone()
    for b, n in enumerate(lengths.tolist()):
        scrambled[b, n:] = 11
    two, _ = token_logprobs(model, scrambled, lengths, mask, PLAIN)
    assert torch.equal(one, two)


def test_chunks_change_neither_values_nor_gradients(monkeypatch):
    model, _ = small_model()
    tokens, lengths, mask = batch((9, 6, 3))

    def run():
        model.zero_grad()
        values, _ = token_logprobs(model, tokens, lengths, mask, Sampling(max_tokens=1, top_p=0.9))
        (values * torch.arange(values.numel()).view_as(values)).sum().backward()
        return values.detach(), [p.grad.clone() for p in model.parameters()]

    whole, whole_gradients = run()
    sizes = []
    original = type(model).head
    monkeypatch.setattr(type(model), "head", lambda self, h: sizes.append(len(h)) or original(self, h))
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", model.vocab_size * 4)
    monkeypatch.setattr(module, "CHUNK_ROWS", 1)
    chunked, chunked_gradients = run()
    assert max(sizes) == 4
    assert torch.allclose(whole, chunked, atol=1e-6)
    for a, b in zip(whole_gradients, chunked_gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-4, rtol=1e-4)


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])


def probabilities(**settings):
    return log_distribution(LOGITS, Sampling(max_tokens=1, **settings)).exp()[0].tolist()


def test_temperature_by_hand():
    weights = [math.exp(x / 0.5) for x in (2, 1, 0, -1)]
    assert probabilities(temperature=0.5) == pytest.approx([w / sum(weights) for w in weights])


def test_top_k_keeps_and_renormalises():
    weights = [math.exp(2), math.exp(1)]
    assert probabilities(top_k=2) == pytest.approx([w / sum(weights) for w in weights] + [0, 0])


def test_top_p_keeps_the_smallest_sufficient_set():
    # 0.644, 0.237, 0.087, 0.032: 0.6 needs one token, 0.65 two, 0.9 three
    assert [p > 0 for p in probabilities(top_p=0.6)] == [True, False, False, False]
    assert [p > 0 for p in probabilities(top_p=0.65)] == [True, True, False, False]
    assert [p > 0 for p in probabilities(top_p=0.9)] == [True, True, True, False]
    assert sum(probabilities(top_p=0.65)) == pytest.approx(1)


def test_min_p_is_relative_to_the_most_likely():
    # relative to the first: 1, 0.37, 0.14, 0.05
    assert [p > 0 for p in probabilities(min_p=0.2)] == [True, True, False, False]


def test_a_token_that_was_drawn_is_never_cut_off():
    kept = log_distribution(LOGITS, Sampling(max_tokens=1, top_k=1), keep=torch.tensor([3]))
    assert torch.isfinite(kept[0, 3])
    assert torch.isneginf(kept[0, 1])


def test_likeliest_hits_are_counted_one_by_one(monkeypatch):
    model, _ = small_model()
    tokens, lengths, mask = batch((9, 6, 3, 2), prompt=2)
    with torch.no_grad():
        likeliest = model.head(model.hidden(tokens, lengths)).argmax(dim=-1)
        for b, t in ((0, 4), (0, 5), (1, 3), (2, 2)):  # so that there is something to hit
            tokens[b, t] = likeliest[b, t - 1]
            likeliest = model.head(model.hidden(tokens, lengths)).argmax(dim=-1)
    expected = [
        sum(int(likeliest[b, t - 1] == tokens[b, t]) for t in range(n) if mask[b, t])
        for b, n in enumerate(lengths.tolist())
    ]
    assert 4 <= sum(expected) < int(mask.sum())
    assert len(set(expected)) > 1  # so that it shows whose they are
    assert likeliest_hits(model, tokens, lengths, mask).tolist() == expected
    monkeypatch.setattr(module, "CHUNK_ROWS", 2)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 1)
    assert likeliest_hits(model, tokens, lengths, mask).tolist() == expected
    assert likeliest_hits(model, tokens, lengths, torch.zeros_like(mask)).tolist() == [0] * 4
