"""Log-probs of given tokens: the shift, the sampling distribution, chunks."""

import math

import pytest
import torch

from tests.small import small_model
from whet.models import logprobs as module
from whet.models.layers.packing import pack
from whet.models.logprobs import log_distribution, read_tokens, token_likelihoods, token_logprobs, token_values
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
    for some in (mask, mask & (torch.arange(3) == 1)[:, None]):  # of any row, not only of all
        with pytest.raises(AssertionError):
            token_logprobs(model, tokens, lengths, some, PLAIN)


def test_where_nothing_is_asked_no_model_is():
    """No kernel takes attention over nothing."""
    model, _ = small_model()
    model.hidden = lambda *_: pytest.fail("the model was asked")
    tokens, lengths, mask = batch()
    nothing = torch.zeros_like(mask)
    reading = read_tokens(model, tokens, lengths, nothing, PLAIN)
    assert not reading.logprobs.any()
    assert not reading.entropies.any()
    assert reading.values is None
    assert read_tokens(model, tokens, lengths, nothing, PLAIN, value_head=len).values.tolist() == [[0.0] * 7] * 3
    assert not token_values(model, len, tokens, lengths, nothing).any()
    assert [some.tolist() for some in token_likelihoods(model, tokens, lengths, nothing)] == [[0, 0, 0]] * 2


def test_a_packing_is_what_the_model_reads_where_there_is_one():
    model, _ = small_model()
    tokens, lengths, mask = batch()
    plain = token_logprobs(model, tokens, lengths, mask, PLAIN)[0]
    model.hidden = lambda *_: pytest.fail("the padded rows were read")
    packed = read_tokens(model, tokens, lengths, mask, PLAIN, packing=pack(tokens, mask)).logprobs
    assert torch.allclose(plain, packed, atol=1e-5)


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
        sizes.clear()
        both = torch.stack(token_logprobs(model, tokens, lengths, mask, Sampling(max_tokens=1, top_p=0.9)))
        if not torch.is_grad_enabled():
            return both, []
        pulled = (both[0] * torch.arange(both[0].numel()).view_as(both[0])).sum()
        return both.detach(), torch.autograd.grad(pulled, list(model.parameters()))

    sizes = []
    original = type(model).head
    monkeypatch.setattr(type(model), "head", lambda self, h: sizes.append(len(h)) or original(self, h))
    whole, whole_gradients = run()
    assert sizes == [15]  # all at once, and not again for the gradient
    monkeypatch.setattr(module, "CPU_CHUNK", model.vocab_size * 15)
    monkeypatch.setattr(module, "LEAST_ROWS", 1)
    assert torch.equal(run()[0], whole)
    assert sizes == [15]  # what just fits is not cut
    monkeypatch.setattr(module, "CPU_CHUNK", model.vocab_size * 4)
    chunked, chunked_gradients = run()
    assert sorted(sizes) == [3, 3, 4, 4, 4, 4, 4, 4]  # each once more for its gradient: no logits are kept
    assert torch.allclose(whole, chunked, atol=1e-6)
    for a, b in zip(whole_gradients, chunked_gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        assert torch.allclose(whole, run()[0], atol=1e-6)
    assert sizes == [4, 4, 4, 3]


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])


def probabilities(**settings):
    return log_distribution(LOGITS, Sampling(max_tokens=1, **settings)).exp()[0].tolist()


def oracle(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, keep=None):
    """Probabilities token by token: top-k, of what is left top-p, and min-p against the likeliest of all."""
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    by_weight = sorted(range(len(logits)), key=lambda i: (-weights[i], i))
    left = by_weight[:top_k] if top_k else by_weight
    total, before, nucleus = sum(weights[i] for i in left), 0.0, set()
    for i in left:
        if before < top_p:
            nucleus.add(i)
        before += weights[i] / total
    kept = {i for i in nucleus if weights[i] >= min_p} | ({keep} - {None})
    return [weights[i] / sum(weights[j] for j in kept) if i in kept else 0.0 for i in range(len(logits))]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("top_k", [0, 3, 7, 30])
@pytest.mark.parametrize("top_p", [1.0, 0.35, 0.8])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.3])
def test_any_combination_is_what_the_oracle_says(temperature, top_k, top_p, min_p):
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    logits = 2 * torch.randn(4, 12, generator=torch.Generator().manual_seed(5))
    drawn = torch.tensor([0, 5, 11, 7])
    for keep in (None, drawn):
        found = log_distribution(logits, Sampling(max_tokens=1, **settings), keep=keep).exp()
        for row, one in enumerate(logits.tolist()):
            wanted = oracle(one, **settings, keep=None if keep is None else int(keep[row]))
            assert found[row].tolist() == pytest.approx(wanted, abs=1e-6)


def test_of_equally_likely_tokens_the_first_make_up_the_nucleus():
    # 64 tokens of 1/64 each, exactly: a quarter is the first sixteen, and the seventeenth is no longer needed.
    found = log_distribution(torch.zeros(1, 64), Sampling(max_tokens=1, top_p=0.25))[0]
    assert found.isfinite().tolist() == [True] * 16 + [False] * 48


def test_a_token_of_exactly_the_least_share_stays():
    logits = torch.tensor([[0.0, math.log(0.5), math.log(0.4)]])
    assert log_distribution(logits, Sampling(max_tokens=1, min_p=0.5)).isfinite().tolist() == [[True, True, False]]


def test_without_top_p_the_rarest_token_stays_possible():
    # The first has all of the probability that fp32 can tell from 1.
    found = log_distribution(torch.tensor([[40.0, 0.0, 1.0]]), Sampling(max_tokens=1))[0]
    assert found.tolist() == pytest.approx([0.0, -40.0, -39.0])


def test_bf16_logits_are_normalised_in_fp32():
    logits = 5 * torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = log_distribution(logits, Sampling(max_tokens=1, temperature=0.7))
    assert found.dtype == torch.float32
    assert torch.equal(found, (logits.float() / 0.7).log_softmax(dim=-1))


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


def test_a_token_that_was_drawn_has_a_log_prob_also_where_it_would_be_cut_off():
    model, _ = small_model()
    tokens, lengths, mask = batch()
    found, _ = token_logprobs(model, tokens, lengths, mask, Sampling(max_tokens=1, top_k=1))
    assert bool(found.isfinite().all())
    assert float(found.detach().min()) < -1  # some of them are not the likeliest


def test_a_token_that_was_drawn_is_never_cut_off():
    kept = log_distribution(LOGITS, Sampling(max_tokens=1, top_k=1), keep=torch.tensor([3]))
    assert torch.isfinite(kept[0, 3])
    assert torch.isneginf(kept[0, 1])


def test_likeliest_tokens_are_counted_one_by_one(monkeypatch):
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
    logprobs, hits = token_likelihoods(model, tokens, lengths, mask)
    assert hits.tolist() == expected
    exact = token_logprobs(model, tokens, lengths, mask, PLAIN)[0].sum(dim=1)
    assert logprobs.tolist() == pytest.approx(exact.tolist(), abs=1e-5)
    sizes = []
    original = type(model).head

    def counted(self, states):
        assert not torch.is_grad_enabled()
        sizes.append(len(states))
        return original(self, states)

    monkeypatch.setattr(type(model), "head", counted)
    for rows, elements, most in ((2, 1, 2), (1, 3 * model.vocab_size, 3), (1, 4 * model.vocab_size - 1, 3)):
        monkeypatch.setattr(module, "LEAST_ROWS", rows)
        monkeypatch.setattr(module, "CPU_CHUNK", elements)
        sizes.clear()
        assert token_likelihoods(model, tokens, lengths, mask)[1].tolist() == expected
        assert max(sizes) == most
