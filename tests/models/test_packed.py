"""Sequences one behind the other, prompts shared: the states of each are those it has alone, for every family."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.hf_models import CASES, build
from tests.models.test_foreign import FOREIGN
from tests.small import small_model
from whet.errors import UserError
from whet.models.layers.packing import pack
from whet.models.load import load_model
from whet.models.logprobs import read_tokens, token_values
from whet.records import Sampling

LENGTHS = torch.tensor([11, 4, 2, 7, 9, 6])
TOKENS = torch.randint(3, 97, (6, 11), generator=torch.Generator().manual_seed(5))
TOKENS[1, :3] = TOKENS[0, :3]  # rows 0, 1 and 4 begin alike, and so do 3 and 5
TOKENS[4, :3] = TOKENS[0, :3]
TOKENS[5, :4] = TOKENS[3, :4]
GROUPS = torch.tensor([7, 7, 2, 3, 7, 3])
PROMPTS = torch.tensor([3, 3, 1, 4, 3, 4])
COLUMNS = torch.arange(11)
MASK = (PROMPTS[:, None] <= COLUMNS) & (LENGTHS[:, None] > COLUMNS)
PLAIN = Sampling(max_tokens=1)


def test_a_packing_by_hand():
    tokens = torch.tensor([[1, 2, 3, 4], [9, 8, 0, 0], [1, 2, 5, 0], [1, 2, 6, 7]])
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]).bool()
    packing = pack(tokens, mask, torch.tensor([4, 1, 4, 4]))
    # Each prompt once; 4, 8 and 5 predict nothing, and the last row is left out.
    assert packing.tokens.tolist() == [9, 1, 2, 3]
    assert packing.positions.tolist() == [0, 0, 1, 2]
    assert packing.roots.tolist() == [1, 2]
    assert packing.branches.tolist() == [0, 1, 0, 0]
    assert packing.parents.tolist() == [0, 1, 1, 1]
    assert packing.lengths.tolist() == [3, 1, 2, 0]
    assert packing.places.tolist() == [[1, 2, 3, 0], [0, 0, 0, 0], [1, 2, 0, 0], [0, 0, 0, 0]]
    assert packing.longest == 3
    alone = pack(tokens, mask)
    assert alone.tokens.tolist() == [1, 2, 3, 9, 1, 2]
    assert alone.roots.tolist() == [3, 1, 2, 0]
    assert alone.places.tolist() == [[0, 1, 2, 0], [3, 0, 0, 0], [4, 5, 0, 0], [0, 0, 0, 0]]


def test_nothing_to_pack():
    packing = pack(torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool), torch.tensor([0, 1]))
    assert packing.tokens.tolist() == []
    assert packing.longest == 0


@pytest.mark.parametrize("case", ["llama-tied", *FOREIGN])
def test_rows_without_trained_tokens_are_not_read(case, tmp_path):
    """All completions of a step may have been cut off."""
    build(*{**CASES, **FOREIGN}[case]).save_pretrained(tmp_path)
    model, none = load_model(tmp_path), torch.zeros_like(MASK)
    for packing in (None, pack(TOKENS, none), pack(TOKENS, none, GROUPS)):
        reading = read_tokens(
            model, TOKENS, LENGTHS, none, PLAIN, value_head=lambda states: states[:, 0], packing=packing
        )
        values = token_values(model, lambda states: states[:, 0], TOKENS, LENGTHS, none, packing)
        for found in (reading.logprobs, reading.entropies, reading.values, values):
            assert torch.equal(found, torch.zeros(MASK.shape))


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=12),
    shared=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_every_token_that_a_trained_one_needs_is_there_at_its_position(rows, shared, seed):
    """Group g has a prompt of g + 1 tokens."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, 50, (4, 4), generator=generator)
    tokens = torch.randint(50, 99, (len(rows), 10), generator=generator)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, (group, trained) in enumerate(rows):
        tokens[row, : group + 1] = prompts[group, : group + 1]
        mask[row, group + 1 : group + 1 + trained] = True
    packing = pack(tokens, mask, torch.tensor([group for group, _ in rows]) if shared else None)
    for row, (group, trained) in enumerate(rows):
        needed = group + trained if trained else 0
        places = packing.places[row, :needed]
        assert packing.tokens[places].tolist() == tokens[row, :needed].tolist()
        assert packing.positions[places].tolist() == list(range(needed))
    used = [(group, trained) for group, trained in rows if trained]
    prompt_tokens = sum(g + 1 for g in {g for g, _ in used}) if shared else sum(g + 1 for g, _ in used)
    assert len(packing.tokens) == prompt_tokens + sum(trained - 1 for _, trained in used)
    assert torch.equal(tokens.flatten()[packing.sources], packing.tokens)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("case", [*CASES, *FOREIGN])
def test_packed_states_are_those_of_each_sequence_alone(case, shared, tmp_path):
    build(*{**CASES, **FOREIGN}[case]).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    packing = pack(TOKENS, MASK, GROUPS if shared else None)
    with torch.no_grad():
        packed = model.hidden_packed(packing)
        for row, length in enumerate(LENGTHS.tolist()):
            alone = model.hidden(TOKENS[row : row + 1, :length], torch.tensor([length]))[0]
            found = packed[packing.places[row, : length - 1]]
            assert torch.allclose(found, alone[: length - 1], atol=1e-4), row


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gemma3_text", "qwen3_moe", "olmoe"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_packing_changes_no_gradient(family, recompute, shared):
    model, _ = small_model(family)
    model.gradient_checkpointing = recompute
    tokens = TOKENS % 20
    mask = MASK.clone()
    mask[1] = False  # a row that was cut off and is left out
    packings = [None, pack(tokens, mask, GROUPS if shared else None)]

    def gradient(packing):
        model.zero_grad()
        reading = read_tokens(model, tokens, LENGTHS, mask, PLAIN, packing=packing)
        (reading.logprobs * torch.arange(66).view(6, 11)).sum().backward()
        return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]), reading.logprobs.detach()

    (padded, one), (packed, two) = (gradient(packing) for packing in packings)
    assert torch.allclose(one, two, atol=1e-5)
    assert float((padded - packed).norm() / padded.norm()) < 1e-5


def test_a_branch_that_does_not_see_its_root_is_caught():
    model, _ = small_model()
    packing = pack(TOKENS % 20, MASK, GROUPS)
    changed = TOKENS % 20
    changed[GROUPS == 3, 1] = (changed[GROUPS == 3, 1] + 1) % 20  # within the prompt of rows 3 and 5
    with torch.no_grad():
        one, two = (model.hidden_packed(p) for p in (packing, pack(changed, MASK, GROUPS)))
    moved = (one - two).abs().amax(dim=1) > 1e-4
    assert moved[packing.places[3, 4:6]].all()
    assert moved[packing.places[5, 4]]
    assert not moved[packing.places[0, :10]].any()


def test_only_a_single_sequence_must_fit_the_context():
    model, _ = small_model(context=12)
    tokens = torch.ones(2, 14, dtype=torch.int64)
    trained = torch.arange(14) > 0
    model.hidden_packed(pack(tokens, (trained & (torch.arange(14) < 13)).expand(2, -1)))
    with pytest.raises(UserError, match="a sequence of 13 tokens exceeds the model's context of 12: shorten it"):
        model.hidden_packed(pack(tokens, trained.expand(2, -1)))
