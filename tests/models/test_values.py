"""The value of a state: read before the token is chosen, by the same shift as log-probs."""

import pytest
import torch

from tests.small import small_model
from whet.models.layers.packing import pack
from whet.models.logprobs import read_tokens, token_logprobs, token_values
from whet.models.reward.reward_model import LinearValue
from whet.records import Sampling

PLAIN = Sampling(max_tokens=1)
LENGTHS = torch.tensor([7, 4])
TOKENS = torch.randint(1, 20, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[2 <= t < n for t in range(7)] for n in LENGTHS.tolist()])


def head(width=32):
    made = LinearValue(width)
    with torch.no_grad():
        made.weight.copy_(torch.randn(width, generator=torch.Generator().manual_seed(1)))
        made.bias.fill_(0.25)
    return made


def test_a_new_head_says_nothing():
    assert LinearValue(5)(torch.randn(3, 5)).tolist() == [0, 0, 0]


def test_a_head_is_a_sum_and_a_constant():
    made = LinearValue(3)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([1.0, 2.0, -1.0]))
        made.bias.fill_(0.5)
    assert made(torch.tensor([[1.0, 1.0, 1.0], [0.0, 3.0, 2.0]])).tolist() == [2.5, 4.5]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("packed", [False, True])
def test_the_value_at_t_is_that_of_the_prefix_before_t(packed):
    """An independent pass over the prefix alone; and nothing outside the mask."""
    model, _ = small_model()
    found = token_values(model, head(), TOKENS, LENGTHS, MASK, pack(TOKENS, MASK) if packed else None)
    for b, t in MASK.nonzero().tolist():
        with torch.no_grad():
            prefix = model.hidden(TOKENS[b : b + 1, :t], torch.tensor([t]))[0, -1]
        assert found[b, t].item() == pytest.approx(float(head()(prefix[None])[0].detach()), abs=1e-5)
    assert not found[~MASK].any()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("t", [2, 4, 6])
def test_a_token_does_not_change_its_own_value_nor_an_earlier_one(t, packed):
    model, _ = small_model()
    changed = TOKENS.clone()
    changed[0, t] = (changed[0, t] + 1) % 20
    packings = [pack(tokens, MASK) if packed else None for tokens in (TOKENS, changed)]
    one = token_values(model, head(), TOKENS, LENGTHS, MASK, packings[0])
    two = token_values(model, head(), changed, LENGTHS, MASK, packings[1])
    assert torch.equal(one[0, : t + 1], two[0, : t + 1])
    assert torch.equal(one[1], two[1])
    if t < 6:  # but it does change the next one: the comparison can fail
        assert (one[0, t + 1] - two[0, t + 1]).abs() > 1e-3


def test_one_pass_reads_log_probs_entropies_and_values():
    model, _ = small_model()
    reading = read_tokens(model, TOKENS, LENGTHS, MASK, PLAIN, value_head=head())
    logprobs, entropies = token_logprobs(model, TOKENS, LENGTHS, MASK, PLAIN)
    assert torch.equal(reading.logprobs, logprobs)
    assert torch.equal(reading.entropies, entropies)
    assert torch.equal(reading.values, token_values(model, head(), TOKENS, LENGTHS, MASK))
    assert read_tokens(model, TOKENS, LENGTHS, MASK, PLAIN).values is None


def test_the_entropy_has_a_gradient_only_where_asked():
    model, _ = small_model(layers=1)
    assert not read_tokens(model, TOKENS, LENGTHS, MASK, PLAIN).entropies.requires_grad
    asked = read_tokens(model, TOKENS, LENGTHS, MASK, Sampling(max_tokens=1, top_k=3), entropy_gradient=True)
    asked.entropies.sum().backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(grad.isfinite().all() for grad in grads)  # tokens that were cut off have no log-prob
    assert sum(float(grad.norm()) for grad in grads) > 1e-3
