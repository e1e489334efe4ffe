"""What is logged while preferences are learned."""

from itertools import product

import pytest
import torch

from whet.algorithms.preference_metrics import length_correlation, length_drift, margins, separation, wins


def test_a_tie_is_half_a_win():
    chosen, rejected = torch.tensor([1.0, 0.0, 2.0, 0.5]), torch.tensor([0.0, 0.0, 3.0, 0.5])
    assert wins(chosen, rejected).tolist() == [1.0, 0.5, 0.0, 0.5]
    assert margins(chosen, rejected).tolist() == [1.0, 0.0, -1.0, 0.0]


def test_a_policy_that_is_its_reference_is_right_half_of_the_time():
    assert wins(torch.zeros(7), torch.zeros(7)).mean().item() == 0.5


def test_swapping_pairs_turns_wins_into_losses():
    left, right = torch.randint(0, 3, (2, 50), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(wins(left, right) + wins(right, left), torch.ones(50))


@pytest.mark.parametrize("seed", range(5))
def test_separation_counts_all_pairs_of_kinds(seed):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 6, (30,), generator=generator).float()  # with ties
    labels = torch.rand(30, generator=generator) < 0.4
    counted = [wins(good, bad).item() for good, bad in product(rewards[labels], rewards[~labels])]
    assert separation(rewards, labels).item() == pytest.approx(sum(counted) / len(counted))


def test_separation_of_one_kind_alone_is_not_a_number():
    for labels in (torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)):
        assert separation(torch.arange(3.0), labels).isnan()


def test_length_drift_is_a_share_of_the_length_before():
    assert length_drift(torch.tensor([30, 20]), torch.tensor([10, 30])).item() == pytest.approx(0.25)
    assert length_drift(torch.tensor([5]), torch.tensor([10])).item() == pytest.approx(-0.5)


def test_margins_that_are_lengths_correlate_with_lengths():
    chosen, rejected = torch.tensor([9, 4, 7]), torch.tensor([3, 5, 6])
    assert length_correlation(0.1 * (chosen - rejected) + 5, chosen, rejected).item() == pytest.approx(1.0)
    assert length_correlation(-0.1 * (chosen - rejected), chosen, rejected).item() == pytest.approx(-1.0)
    # differences 6, −1, 1 (centred 4, −3, −1), margins 1, 2, 3 (centred −1, 0, 1): −5/√(26·2)
    assert length_correlation(torch.tensor([1.0, 2.0, 3.0]), chosen, rejected).item() == pytest.approx(-5 / 52**0.5)
    assert length_correlation(torch.ones(3), chosen, rejected).item() == 0.0
