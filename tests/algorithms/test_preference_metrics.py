"""What is logged while preferences are learned."""

import torch

from whet.algorithms.preference.metrics import margins, wins


def test_a_tie_is_half_a_win():
    chosen, rejected = torch.tensor([1.0, 0.0, 2.0, 0.5]), torch.tensor([0.0, 0.0, 3.0, 0.5])
    assert wins(chosen, rejected).tolist() == [1.0, 0.5, 0.0, 0.5]
    assert margins(chosen, rejected).tolist() == [1.0, 0.0, -1.0, 0.0]


def test_a_policy_that_is_its_reference_is_right_half_of_the_time():
    assert wins(torch.zeros(7), torch.zeros(7)).mean().item() == 0.5


def test_swapping_pairs_turns_wins_into_losses():
    left, right = torch.randint(0, 3, (2, 50), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(wins(left, right) + wins(right, left), torch.ones(50))
