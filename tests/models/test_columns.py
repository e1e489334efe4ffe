"""The head of few rows, adapters, and the cache's rows as they move."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models.test_decoder import LENGTHS, TOKENS, small
from whet.models.cpu.column_decode import CHUNK_ROWS, FEW, are_few_rows, product_of_rows, quickest_reader


@pytest.mark.parametrize("rows", [1, 3, FEW])
@pytest.mark.parametrize("vocabulary", [7, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_a_product_of_rows_is_a_linear_layer(rows, vocabulary):
    generator = torch.Generator().manual_seed(rows)
    states, weight = torch.randn(rows, 24, generator=generator), torch.randn(vocabulary, 24, generator=generator)
    assert torch.allclose(product_of_rows(states, weight), F.linear(states, weight), atol=1e-5)


@pytest.mark.parametrize("tied_head", [True, False])
def test_the_head_says_the_same_of_few_rows_and_of_many(tied_head):
    model = small("llama", tied_head=tied_head)
    states = torch.randn(FEW + 1, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        many = model.head(states)
        few = torch.cat([model.head(states[:1]), model.head(states[1:])])
    assert (many - few).abs().max() < 1e-5
    assert not are_few_rows(states[:1])  # with gradients there is one way only
    assert model.head(states[:1]).requires_grad


class Adapted(nn.Module):
    """A low-rank change of a product, as adapters make it."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.down, self.up = nn.Linear(inner.in_features, 2), nn.Linear(2, inner.out_features)

    def forward(self, states):
        return self.inner(states) + self.up(self.down(states))


@torch.no_grad()
def test_an_adapter_is_called_and_not_passed_over():
    model = small("llama")
    block = model.model.layers[1]
    block.self_attn.q_proj = Adapted(block.self_attn.q_proj)
    assert quickest_reader(model.model) is model.model
    _, cache = model.begin(TOKENS, LENGTHS, room=3)
    states = model.extend(TOKENS[:, 0], cache)
    for row, length in enumerate(LENGTHS.tolist()):
        longer = torch.cat((TOKENS[row, :length], TOKENS[row, :1]))[None]
        assert (states[row] - model.hidden(longer, torch.tensor([length + 1]))[0, -1]).abs().max() < 1e-5


@torch.no_grad()
def test_prompts_stand_in_the_cache_as_they_were_given():
    """Another engine copies them from there: place t holds token t, whatever the length of the row."""
    model = small("qwen3")
    _, cache = model.begin(TOKENS, LENGTHS, room=0)
    for row, length in enumerate(LENGTHS.tolist()):
        _, alone = model.begin(TOKENS[row : row + 1, :length], torch.tensor([length]), room=0)
        assert (cache.keys[:, row, :, :length] - alone.keys[:, 0]).abs().max() < 1e-5
        assert (cache.values[:, row, :, :length] - alone.values[:, 0]).abs().max() < 1e-5


@torch.no_grad()
def test_a_row_that_stays_in_its_place_is_not_copied():
    model = small("llama")
    _, cache = model.begin(TOKENS, LENGTHS, room=8)
    model.extend(TOKENS[:, 0], cache)
    storage, third = cache.keys.data_ptr(), cache.keys[:, 3].clone()
    cache.keys[:, 0].fill_(7.0)  # a mark
    cache.select(torch.tensor([0, 3, 2]))
    assert cache.keys.data_ptr() == storage
    assert bool((cache.keys[:, 0] == 7.0).all())
    assert torch.equal(cache.keys[:, 1], third)
    assert cache.lengths.tolist() == [12, 8, 2]


@torch.no_grad()
def test_a_short_row_goes_on_where_the_long_ones_have_ended():
    """Rows end in one column, so the columns of a long row that has left are used again."""
    model = small("llama")
    _, cache = model.begin(TOKENS, LENGTHS, room=4)
    sequence = TOKENS[2, :1].tolist()
    for step in range(14):
        new = TOKENS[:, step % 11] if step < 4 else TOKENS[2:3, step % 11]
        if step == 4:
            cache.select(torch.tensor([2]))
        states = model.extend(new, cache)
        sequence.append(int(TOKENS[2, step % 11]))
        alone = model.hidden(torch.tensor([sequence]), torch.tensor([len(sequence)]))[0, -1]
        assert (states[2 if step < 4 else 0] - alone).abs().max() < 1e-5
    assert cache.keys.shape[3] == 15  # the row's own tokens and no more
