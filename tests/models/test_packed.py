"""Sequences one behind the other: the states of each are those it has alone, for every family."""

import pytest
import torch

from tests.models.hf_models import CASES, build
from tests.models.test_foreign import FOREIGN
from tests.small import small_model
from whet.errors import UserError
from whet.models.attention import packed_places
from whet.models.load import load_model
from whet.models.logprobs import read_tokens
from whet.records import Sampling

LENGTHS = torch.tensor([11, 4, 1, 7])
TOKENS = torch.randint(3, 97, (4, 11), generator=torch.Generator().manual_seed(5))
KEPT = torch.arange(11) < LENGTHS[:, None]


def test_places_by_hand():
    positions, owners = packed_places(torch.tensor([3, 1, 2]))
    assert positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert owners.tolist() == [0, 0, 0, 1, 2, 2]
    assert [part.tolist() for part in packed_places(torch.zeros(0, dtype=torch.int64))] == [[], []]


@pytest.mark.parametrize("case", [*CASES, *FOREIGN])
def test_packed_states_are_those_of_each_sequence_alone(case, tmp_path):
    build(*{**CASES, **FOREIGN}[case]).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    with torch.no_grad():
        packed = model.hidden_packed(TOKENS[KEPT], LENGTHS)
        assert torch.allclose(packed, model.hidden(TOKENS, LENGTHS)[KEPT], atol=1e-4)
        start = 0
        for row, length in enumerate(LENGTHS.tolist()):
            alone = model.hidden(TOKENS[row : row + 1, :length], torch.tensor([length]))[0]
            assert torch.allclose(packed[start : start + length], alone, atol=1e-4), row
            start += length


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("recompute", [False, True])
def test_packing_changes_no_gradient(family, recompute):
    model, _ = small_model(family)
    model.gradient_checkpointing = recompute
    mask = KEPT & (torch.arange(11) > 0)

    def gradient(packed):
        model.zero_grad()
        reading = read_tokens(model, TOKENS % 20, LENGTHS, mask, Sampling(max_tokens=1), packed=packed)
        (reading.logprobs * torch.arange(44).view(4, 11)).sum().backward()
        return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]), reading.logprobs.detach()

    (padded, one), (packed, two) = gradient(False), gradient(True)
    assert torch.allclose(one, two, atol=1e-5)
    assert float((padded - packed).norm() / padded.norm()) < 1e-5


def test_only_a_single_sequence_must_fit_the_context():
    model, _ = small_model(context=12)
    model.hidden_packed(torch.ones(24, dtype=torch.int64), torch.tensor([12, 12]))
    with pytest.raises(UserError, match="a sequence of 13 tokens exceeds the model's context of 12: shorten it"):
        model.hidden_packed(torch.ones(25, dtype=torch.int64), torch.tensor([12, 13]))
