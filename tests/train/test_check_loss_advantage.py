"""check_loss on advantages: each promise is broken once on purpose and named in the sentence."""

import pytest
import torch
from torch import Tensor

from tests.train.verdicts import outcomes
from whet.algorithms.cells import per_token
from whet.train.check.advantage import check_advantage
from whet.train.check.checks import kind_of


def by_first(rewards):
    return rewards - rewards[:, :1]


def wrong_axis(rewards):
    return rewards - rewards.mean(dim=0)


def by_group_number(rewards):
    return rewards * (1 + torch.arange(len(rewards)))[:, None]


def no_epsilon(rewards):
    return (rewards - rewards.mean(dim=1, keepdim=True)) / rewards.std(dim=1, keepdim=True)


def tiny_epsilon(rewards):
    return (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-12)


def per_group(rewards):
    return rewards.mean(dim=1)


def worst_first(rewards):
    return rewards.mean(dim=1, keepdim=True) - rewards


def centred_in_place(rewards):
    return rewards.sub_(rewards.mean(dim=1, keepdim=True))


def random_baseline(rewards):
    return rewards - torch.rand(())


def log_of_rewards(rewards):
    return (rewards + 0.01).log()


@per_token
def without_mask(token_rewards):
    return token_rewards.flip(dims=[1]).cumsum(dim=1).flip(dims=[1])


@per_token
def over_padding(token_rewards, mask):
    return (token_rewards * mask - (token_rewards * mask).mean()) * mask


@per_token
def time_passes(token_rewards, mask):
    found = torch.zeros_like(token_rewards)
    running = torch.zeros_like(token_rewards[:, 0])
    for t in range(token_rewards.shape[1] - 1, -1, -1):
        running = token_rewards[:, t] * mask[:, t] + 0.9 * running
        found[:, t] = running
    return found


@pytest.mark.parametrize(
    ("broken", "check", "told"),
    [
        (by_first, "order in a group", "the place of a rollout in its group counts, or groups are mixed"),
        (wrong_axis, "order in a group", "a group is a row of rewards"),
        (by_group_number, "order of groups", "the place of a group in the batch counts"),
        (no_epsilon, "finite", "returns nan at [0, 0] on rewards that are all 0"),
        (tiny_epsilon, "equal rewards", "rounding is divided by a deviation of nearly 0"),
        (per_group, "shape", "returns shape (4,) on ordinary float64 input, not (4, 3)"),
        (worst_first, "direction", "the sign is flipped"),
        (centred_in_place, "inputs", "changes its input 'rewards' in place"),
        (random_baseline, "determinism", "it draws random numbers"),
        (log_of_rewards, "negative rewards", "returns nan at"),
        (without_mask, "padding", "it reads tokens outside the mask"),
        (over_padding, "padding", "divides by the width"),
        (time_passes, "packing", "time passes over tokens that were not sampled"),
    ],
)
def test_an_advantage_that_breaks_a_promise_is_told_which(broken, check, told):
    assert kind_of(broken, "mine") == "advantage"
    failed = outcomes(check_advantage(broken), "failed")
    assert told in failed[check], failed
    assert "\n" not in failed[check]


def test_an_advantage_per_token_says_so_and_no_other_does():
    def undeclared(token_rewards, mask):
        return token_rewards * mask

    @per_token
    def of_rollouts(rewards):
        return rewards - 0.5

    told = outcomes(check_advantage(undeclared), "failed")["shape"]
    assert "not (4, 3): return one advantage per rollout; one per token is declared by @per_token (of whet." in told
    told = outcomes(check_advantage(of_rollouts), "failed")["shape"]
    assert told.startswith(
        "returns shape (4, 3) on ordinary float64 input, not (12, 9): return one advantage per token"
    )
    assert told.endswith("one per rollout is not")


def test_statistics_of_the_whole_batch_are_a_note_with_the_numbers():
    def flattened(rewards: Tensor) -> Tensor:
        return (rewards - rewards.mean()) / (rewards.std() + 1e-4)

    findings = check_advantage(flattened)
    assert outcomes(findings, "failed") == {}
    told = outcomes(findings, "note")["other groups"]
    assert told.startswith("uses the whole batch: leaving out the other groups changes [")
    assert "all ranks are supplied at once" in told


def test_an_advantage_that_is_now_per_rollout_and_now_per_token_is_found():
    def undecided(rewards, mask):
        return rewards if rewards.shape[1] > 1 and mask.shape[1] < 10 else rewards.reshape(-1, 1) * mask

    failed = outcomes(check_advantage(undecided), "failed")
    assert "returns shape (12, 14) on padding with noise, not (4, 3)" in failed["padding"]
