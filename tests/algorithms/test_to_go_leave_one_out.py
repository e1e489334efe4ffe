"""Returns-to-go less those of the group's others: by hand, by an oracle in loops, in expectation by enumeration."""

from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from whet.algorithms.advantages import to_go, to_go_leave_one_out, unscaled, whiten
from whet.algorithms.cells import bind, call, is_per_token
from whet.algorithms.policy_loss import reinforce, sequence_sum
from whet.algorithms.table import ADVANTAGES, ALGORITHMS, GROUP_STATISTICS, SUPPLIED

from . import oracle
from .batches import random_case
from .oracle import places
from .tabular import close, gradient, logprobs, policy, world

pytestmark = pytest.mark.usefixtures("double")
RAGGED, FIXED = world(2), world(2, ragged=False)


def test_it_is_listed_and_declared():
    assert ADVANTAGES["to_go_leave_one_out"] is to_go_leave_one_out
    assert to_go_leave_one_out in GROUP_STATISTICS
    assert is_per_token(to_go_leave_one_out)
    assert "tokens" in SUPPLIED["advantage"]


# One group of three behind a prompt of one token: (a, b), (a, c), (d, b).
IDS = torch.tensor([[9, 1, 2], [9, 1, 3], [9, 4, 2]])
MASK = torch.tensor([[False, True, True]]).repeat(3, 1)
EARNED = torch.tensor([[7.0, 1.0, 2.0], [7.0, 0.0, 4.0], [7.0, 1.0, 0.0]])  # what is off the mask is never read
SHAPE = torch.zeros(1, 3)


def test_by_hand():
    # returns: (3, 2), (4, 4), (1, 0). Token 1: all are in the same state. Token 2: the first two are, the third is
    # alone and is compared with both.
    assert to_go_leave_one_out(SHAPE, EARNED, IDS, MASK).tolist() == [
        [0.0, 3 - (4 + 1) / 2, 2.0 - 4],
        [0.0, 4 - (3 + 1) / 2, 4.0 - 2],
        [0.0, 1 - (3 + 4) / 2, 0 - (2 + 4) / 2],
    ]
    # Without the condition on the prefix, token 2 of each is compared with both others.
    assert to_go_leave_one_out(SHAPE, EARNED, IDS, MASK, prefix=False)[:, 2].tolist() == [2 - 2.0, 4 - 1.0, 0 - 3.0]
    # gamma ½: returns (2, 2), (2, 4), (1, 0)
    halved = to_go_leave_one_out(SHAPE, EARNED, IDS, MASK, gamma=0.5)
    assert halved.tolist() == [[0.0, 0.5, -2.0], [0.0, 0.5, 2.0], [0.0, -1.0, -3.0]]


def test_alone_it_is_the_return_to_go():
    each = to_go_leave_one_out(torch.zeros(3, 1), EARNED, IDS, MASK, gamma=0.9)
    assert torch.equal(each, to_go(EARNED, MASK, gamma=0.9))


def test_where_only_one_rollout_arrived_there_is_no_baseline():
    mask = MASK.clone()
    mask[1:, 2] = False
    assert to_go_leave_one_out(SHAPE, EARNED, IDS, mask)[0].tolist() == [0.0, 3 - (0 + 1) / 2, 2.0]


def test_groups_do_not_see_each_other_and_order_does_not_matter():
    ids, earned, mask = (torch.cat([some, some.flip(dims=[0])]) for some in (IDS, EARNED, MASK))
    both = to_go_leave_one_out(torch.zeros(2, 3), earned, ids, mask)
    alone = to_go_leave_one_out(SHAPE, EARNED, IDS, MASK)
    assert torch.equal(both, torch.cat([alone, alone.flip(dims=[0])]))


def test_prompts_gaps_and_padding_do_not_count():
    """The same tokens elsewhere: behind prompts of other lengths, around the answer of a tool."""
    mask = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    moved = [torch.full(mask.shape, 5.0).masked_scatter(mask, some[MASK].double()) for some in (EARNED, IDS)]
    found = to_go_leave_one_out(SHAPE, moved[0], moved[1].long(), mask)
    assert torch.equal(found[mask], to_go_leave_one_out(SHAPE, EARNED, IDS, MASK)[MASK])
    assert not found[~mask].any()


def test_equal_returns_are_exactly_zero_and_stay_so_when_whitened():
    """0.1 is not a binary fraction: the mean of three may differ in the last bit, and that bit is no signal."""
    for group in (2, 3, 6, 7):
        earned = torch.full((group, 5), 0.1, dtype=torch.float32)
        ids, mask = torch.zeros(group, 5, dtype=torch.int64), torch.ones(group, 5, dtype=torch.bool)
        found = to_go_leave_one_out(torch.zeros(1, group), earned, ids, mask)
        assert not found.any()
        assert not whiten(found, mask).any()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_against_the_oracle(seed, prefix, gamma):
    """With a reward on every token; test_rows compares it with one on the last."""
    case = random_case(seed)
    earned = np.random.default_rng(seed).normal(0.0, 1.0, case.mask.shape)
    rows = [[float(earned[b, t]) for t in places(case.mask, b)] for b in range(len(case.mask))]
    found = to_go_leave_one_out(
        torch.tensor(case.rewards), *map(torch.tensor, (earned, case.tokens, case.mask)), gamma=gamma, prefix=prefix
    )
    beside = set()
    for b in range(len(case.mask)):
        times = places(case.mask, b)
        wanted = oracle.to_go_leave_one_out(case, b, times, rows, gamma=gamma, prefix=prefix)
        other = oracle.to_go_leave_one_out(case, b, times, rows, gamma=gamma, prefix=not prefix)
        assert found[b, times].tolist() == pytest.approx(wanted, abs=1e-12)
        beside |= {abs(x - y) > 1e-6 for x, y in zip(wanted, other, strict=True)}
    assert beside == {True, False}  # the condition on the prefix matters in these batches
    assert not found[torch.tensor(~case.mask)].any()


# --- expectation -------------------------------------------------------------------------------------------------


def token_table(space, seed):
    """(N, T): some reward for every token of every completion, by the prefix and the token alone."""
    table = torch.randn(len(space.prefixes), 3, generator=torch.Generator().manual_seed(seed))
    return table[space.states, space.tokens] * space.mask


def true_gradient(space, logits, earned):
    chance = logprobs(space, logits).sum(dim=2).exp()
    return gradient((chance * earned.sum(dim=1)).sum(), logits)


def expected_gradient(advantage, space, logits, earned, group):
    """Of Σ_t A_t·log π_t, a mean over the group, over every group that the policy can sample; and its variance."""
    under_policy = logprobs(space, logits)[0]
    mean, square = torch.zeros_like(logits), 0.0
    for drawn in product(range(len(space.sequences)), repeat=group):
        picked = torch.tensor(drawn)
        supply = {
            "rewards": earned[picked].sum(dim=1).view(1, group),
            "token_rewards": earned[picked],
            "tokens": space.tokens[picked],
            "mask": space.mask[picked],
        }
        weights, count = call(sequence_sum, {"mask": supply["mask"], "max_tokens": space.max_tokens})
        loss = reinforce(under_policy[picked], call(advantage, supply))
        found = -gradient((loss * weights).sum() / count, logits)
        chance = prod(under_policy[picked].sum(dim=1).exp().tolist())
        mean, square = mean + chance * found, square + chance * float(found.square().sum())
    return mean, square - float(mean.square().sum())


@pytest.mark.parametrize("space", [RAGGED, FIXED], ids=["lengths differ", "equal lengths"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("group", [2, 3])
def test_the_expected_gradient_is_the_true_one(space, prefix, group):
    logits, earned = policy(space, 21), token_table(space, 21)
    found, _ = expected_gradient(bind(to_go_leave_one_out, {"prefix": prefix}), space, logits, earned, group)
    assert close(found, true_gradient(space, logits, earned))
    assert found.norm() > 0.1


def test_a_baseline_with_the_own_return_in_it_is_biased_and_would_be_noticed():
    def over_all(rewards, token_rewards, mask):
        returns = to_go(token_rewards, mask).view(*rewards.shape, -1)
        return (returns - returns.mean(dim=1, keepdim=True)).view(token_rewards.shape) * mask

    logits, earned = policy(RAGGED, 22), token_table(RAGGED, 22)
    found, _ = expected_gradient(over_all, RAGGED, logits, earned, 2)
    assert not close(found, true_gradient(RAGGED, logits, earned))


def test_the_immediate_reward_alone_is_not_the_gradient_of_the_return():
    """The defect that returns-to-go repair: a token that leads to a good state earns nothing by itself."""
    logits, earned = policy(FIXED, 23), token_table(FIXED, 23)
    found, _ = expected_gradient(partial(to_go_leave_one_out, gamma=0.0), FIXED, logits, earned, 2)
    assert not close(found, true_gradient(FIXED, logits, earned))


def test_the_baseline_lowers_the_variance():
    logits = policy(RAGGED, 24)
    earned = token_table(RAGGED, 24) + RAGGED.mask  # rewards that are rarely negative, as of matches
    _, without = expected_gradient(to_go, RAGGED, logits, earned, 3)
    _, with_prefix = expected_gradient(to_go_leave_one_out, RAGGED, logits, earned, 3)
    assert with_prefix < without


def test_it_composes_with_every_row_that_weighs_tokens():
    for row in ("grpo", "dr_grpo", "cispo", "sapo", "reinforce_pp", "rloo", "gpg"):
        for scaling in (unscaled, whiten):
            algorithm = replace(ALGORITHMS[row], advantage=to_go_leave_one_out, scaling=scaling)
            supply = {"rewards": SHAPE, "token_rewards": EARNED, "tokens": IDS, "mask": MASK}
            advantages = call(algorithm.advantage, supply)
            scaled = call(algorithm.scaling, {"advantages": advantages, "rewards": SHAPE, "mask": MASK})
            assert torch.isfinite(scaled).all()
            assert scaled[MASK].std() > 0
