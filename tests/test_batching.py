"""Padding, micro-batches, weights and minibatches."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.algorithms import policy_loss as weightings
from whet.batching import (
    collate,
    global_weights,
    micro_batches,
    packed_batches,
    pad,
    split_prompts,
    take,
    take_batch,
)
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.records import Batch, Sampling

CPU = torch.device("cpu")
ROWS = [[5, 6, 7], [8], [9, 10]]
MASKS = [[False, True, True], [False], [False, True]]


def test_padding_is_zero_and_on_the_right() -> None:
    sequences = collate(ROWS, MASKS, CPU)
    assert sequences.tokens.tolist() == [[5, 6, 7], [8, 0, 0], [9, 10, 0]]
    assert sequences.mask.tolist() == [[False, True, True], [False, False, False], [False, True, False]]
    assert sequences.lengths.tolist() == [3, 1, 2]


def test_no_rows_are_a_batch_too() -> None:
    """A rank may own none of a minibatch."""
    sequences = collate([], [], CPU)
    assert sequences.tokens.shape == sequences.mask.shape == (0, 0)
    assert sequences.lengths.dtype == torch.int64
    assert list(micro_batches(sequences.lengths, 10)) == []
    assert list(packed_batches(sequences, torch.tensor([], dtype=torch.int64), 10)) == []
    none = take(collate(ROWS, MASKS, CPU), torch.tensor([], dtype=torch.int64))
    assert none.tokens.shape == none.mask.shape == (0, 0)
    assert pad([], torch.float32).shape == (0, 0)


@given(lengths=st.lists(st.integers(1, 40), max_size=30), budget=st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_micro_batches_are_a_partition_within_the_budget(lengths: list[int], budget: int) -> None:
    pieces = [p.tolist() for p in micro_batches(torch.tensor(lengths, dtype=torch.int64), budget)]
    assert sorted(row for piece in pieces for row in piece) == list(range(len(lengths)))

    def cost(piece: list[int]) -> int:
        sizes = [lengths[row] for row in piece]
        return len(sizes) * max(sizes)

    for piece, after in zip(pieces, [*pieces[1:], []], strict=False):
        assert cost(piece) <= budget or len(piece) == 1
        if after:  # and as many as fit: one more row would be too much
            assert cost([*piece, after[0]]) > budget
    spread = [lengths[row] for piece in pieces for row in piece]
    assert spread == sorted(lengths, reverse=True)  # like beside like: little padding


def test_micro_batches_by_hand() -> None:
    def split(lengths: list[int], budget: int) -> list[list[int]]:
        return [rows.tolist() for rows in micro_batches(torch.tensor(lengths), budget)]

    assert split([1] * 7, 3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert split([0] * 3, 2) == [[0, 1], [2]]  # a row without tokens counts as one
    assert split([2, 9, 1], 4) == [[1], [0, 2]]  # the long one comes first, and alone
    assert split([5] * 100, 500) == [list(range(100))]  # rows of one length stay in their order


def test_long_groups_come_first_and_what_trains_nothing_last() -> None:
    """Rows of groups 7, 3 and 5: the second row of group 3 makes it the longest, group 7 needs one token, 5 none."""
    masks = [[False, True], [False], [False, True], [False, True, True, True]]
    sequences = collate([[1] * len(mask) for mask in masks], masks, CPU)
    groups = torch.tensor([3, 7, 5, 3])
    assert [rows.tolist() for rows in packed_batches(sequences, groups, 100)] == [[3, 0, 2, 1]]


@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), min_size=1, max_size=30), budget=st.integers(1, 60)
)
@settings(max_examples=100, deadline=None)
def test_packed_batches_are_a_partition_within_the_budget(rows: list[tuple[int, int]], budget: int) -> None:
    """Group g has a prompt of g + 1 tokens; a row with n trained tokens needs all of its tokens but the last."""
    tokens = [[1] * (group + 1 + trained) for group, trained in rows]
    masks = [[False] * (group + 1) + [True] * trained for group, trained in rows]
    groups = torch.tensor([group for group, _ in rows])
    pieces = [p.tolist() for p in packed_batches(collate(tokens, masks, CPU), groups, budget)]
    assert all(pieces)
    assert sorted(row for piece in pieces for row in piece) == list(range(len(rows)))

    def cost(piece: list[int]) -> int:
        used = [rows[row] for row in piece if rows[row][1]]
        return sum(group + 1 for group in {group for group, _ in used}) + sum(trained - 1 for _, trained in used)

    for piece, after in zip(pieces, [*pieces[1:], []], strict=False):
        assert cost(piece) <= budget or len(piece) == 1
        if after:
            assert cost([*piece, after[0]]) > budget


def test_a_piece_loses_the_padding_it_does_not_need() -> None:
    sequences = collate(ROWS, MASKS, CPU)
    piece = take(sequences, torch.tensor([2, 1]))
    assert piece.tokens.tolist() == [[9, 10], [8, 0]]
    assert piece.mask.tolist() == [[False, True], [False, False]]
    assert piece.lengths.tolist() == [2, 1]


def test_all_arrays_of_a_batch_are_cut_alike() -> None:
    sequences = collate(ROWS, MASKS, CPU)
    marks = torch.arange(9.0).view(3, 3)
    names = ("logprobs_old", "logprobs_sampled", "logprobs_ref", "advantages", "correction", "values", "targets")
    arrays = {name: marks + 10 * index for index, name in enumerate(names)}
    rest = {"sampling": Sampling(max_tokens=3), "kl_coefficient": 0.5, "entropy_coefficient": 0.25}
    batch = Batch(sequences=sequences, prompts=torch.tensor([4, 4, 7]), rows=torch.arange(3), **arrays, **rest)
    piece = take_batch(batch, torch.tensor([2]))
    assert piece.sequences.tokens.tolist() == [[9, 10]]
    for index, name in enumerate(names):
        assert getattr(piece, name).tolist() == [[10 * index + 6, 10 * index + 7]], name
    assert (piece.prompts.tolist(), piece.rows.tolist()) == ([7], [2])
    assert (piece.sampling, piece.kl_coefficient, piece.entropy_coefficient) == tuple(rest.values())
    optional = ("logprobs_old", "logprobs_sampled", "logprobs_ref", "values", "targets")
    bare = take_batch(replace(batch, **dict.fromkeys(optional)), torch.tensor([0, 2]))
    assert all(getattr(bare, name) is None for name in optional)
    assert bare.correction.tolist() == [[40, 41, 42], [46, 47, 48]]
    assert {field.name for field in fields(Batch)} == {
        *names,
        *rest,
        "sequences",
        "prompts",
        "rows",
    }  # none was forgotten


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        (weightings.token_mean, [[0, 1 / 3, 1 / 3], [0, 1 / 3, 0]]),
        (weightings.sequence_mean, [[0, 1 / 4, 1 / 4], [0, 1 / 2, 0]]),
        (weightings.sequence_sum, [[0, 1 / 2, 1 / 2], [0, 1 / 2, 0]]),
        (weightings.budget_mean, [[0, 1 / 16, 1 / 16], [0, 1 / 16, 0]]),
    ],
)
def test_weights_by_hand(weighting: object, expected: list[list[float]]) -> None:
    mask = torch.tensor([[False, True, True], [False, True, False]])
    weights = global_weights(weighting, mask, World.alone(), max_tokens=8)  # type: ignore[arg-type]
    assert torch.allclose(weights, torch.tensor(expected))


@pytest.mark.parametrize("kind", [torch.float64, torch.bool])
def test_weights_are_fp32_whatever_a_weighting_gives(kind: torch.dtype) -> None:
    mask = torch.tensor([[False, True, True, False]])
    weights = global_weights(lambda mask: (mask.to(kind), mask.sum()), mask, World.alone(), max_tokens=8)
    assert weights.dtype == torch.float32
    assert weights.tolist() == [[0.0, 0.5, 0.5, 0.0]]


def test_a_batch_that_trains_nothing_is_refused_and_one_token_is_enough() -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(RunFailed, match="the batch has no trained tokens"):
        global_weights(weightings.token_mean, mask, World.alone(), max_tokens=8)
    mask[1, 2] = True
    assert global_weights(weightings.token_mean, mask, World.alone(), max_tokens=8).sum() == 1


@given(prompts=st.integers(1, 40), data=st.data())
@settings(max_examples=60, deadline=None)
def test_minibatches_share_the_prompts_out(prompts: int, data: st.DataObject) -> None:
    minibatches = data.draw(st.integers(1, prompts))
    parts = split_prompts(prompts, minibatches, seed=(1, 2))
    assert sorted(prompt for part in parts for prompt in part) == list(range(prompts))
    sizes = [len(part) for part in parts]
    assert len(parts) == minibatches
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_the_seed_names_the_shuffle() -> None:
    assert split_prompts(20, 4, seed=(1, 2, 0)) == split_prompts(20, 4, seed=(1, 2, 0))
    assert split_prompts(20, 4, seed=(1, 2, 0)) != split_prompts(20, 4, seed=(1, 2, 1))
    assert split_prompts(20, 4, seed=(1, 2, 0)) != [list(range(5 * i, 5 * i + 5)) for i in range(4)]
