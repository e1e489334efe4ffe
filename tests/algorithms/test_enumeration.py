"""What the gradient of each method is in expectation, by listing every batch that a small policy can sample."""

from dataclasses import replace
from itertools import product
from math import comb, sqrt

import pytest
import torch

from whet.algorithms.advantages import (
    center,
    over_average,
    over_batch,
    raw,
    standardize,
    to_go,
    unscaled,
)
from whet.algorithms.cells import bind
from whet.algorithms.policy_loss import clip, sequence_clip, sequence_mean, sequence_sum, token_mean
from whet.algorithms.table import ALGORITHMS

from .tabular import (
    any_values,
    chances,
    close,
    cosine,
    expected_gradient,
    graded,
    gradient,
    logprobs,
    policy,
    ppo,
    right_or_wrong,
    true_gradient,
    world,
)

pytestmark = pytest.mark.usefixtures("double")
RAGGED, FIXED, LONG = world(2), world(2, ragged=False), world(3)
REINFORCE = ALGORITHMS["reinforce"]


def test_the_worlds_are_complete():
    assert sorted(RAGGED.sequences) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2,)]
    assert (len(FIXED.sequences), len(LONG.sequences)) == (9, 15)
    for space in (RAGGED, FIXED, LONG):
        assert chances(space, policy(space, 1)).sum().item() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("surrogate", [REINFORCE.surrogate, clip])
@pytest.mark.parametrize(("prompts", "group"), [(1, 1), (1, 2), (3, 1)])
def test_reinforce_is_the_true_gradient_whatever_the_batch(prompts, group, surrogate):
    logits, rewards = policy(RAGGED, 2, prompts=prompts), graded(RAGGED, 2, prompts=prompts)
    row = replace(REINFORCE, surrogate=surrogate)  # at ratio 1 the clipped surrogate has the same gradient
    assert close(expected_gradient(row, RAGGED, logits, rewards, group=group), true_gradient(RAGGED, logits, rewards))


@pytest.mark.parametrize("prompts", [2, 3])
def test_the_batch_mean_as_baseline_scales_the_true_gradient_by_one_less_than_the_batch(prompts):
    logits, rewards = policy(RAGGED, 3, prompts=prompts), graded(RAGGED, 3, prompts=prompts)
    found = expected_gradient(replace(REINFORCE, advantage=over_batch), RAGGED, logits, rewards)
    assert close(found, true_gradient(RAGGED, logits, rewards) * (prompts - 1) / prompts)


@pytest.mark.parametrize("history", [[], [0.3], [2.0, -1.0, 0.5]])
def test_the_average_of_earlier_steps_as_baseline_leaves_the_true_gradient(history):
    logits, rewards = policy(RAGGED, 4), graded(RAGGED, 4)
    past = {"history": torch.tensor(history)}
    found = expected_gradient(
        replace(REINFORCE, advantage=over_average), RAGGED, logits, rewards, group=2, extra=lambda _: past
    )
    assert close(found, true_gradient(RAGGED, logits, rewards))


@pytest.mark.parametrize("group", [2, 3])
def test_rloo_is_the_true_gradient(group):
    logits, rewards = policy(RAGGED, 5), graded(RAGGED, 5)
    found = expected_gradient(ALGORITHMS["rloo"], RAGGED, logits, rewards, group=group)
    assert close(found, true_gradient(RAGGED, logits, rewards))


def test_remax_is_the_true_gradient():
    logits, rewards = policy(RAGGED, 6, prompts=2), graded(RAGGED, 6, prompts=2)
    greedy = []
    for table, reward in zip(logits.detach(), rewards, strict=True):
        said: tuple[int, ...] = ()
        while said not in RAGGED.sequences:
            said = (*said, int(table[RAGGED.prefixes.index(said)].argmax()))
        greedy.append(float(reward[RAGGED.sequences.index(said)]))
    found = expected_gradient(
        ALGORITHMS["remax"], RAGGED, logits, rewards, extra=lambda _: {"greedy": torch.tensor(greedy)}
    )
    assert close(found, true_gradient(RAGGED, logits, rewards))


@pytest.mark.parametrize("group", [2, 3])
def test_dr_grpo_is_the_true_gradient_times_a_constant_also_when_lengths_differ(group):
    """(G−1)/G because a rollout's own reward is in the mean, 1/max_tokens because that is the budget."""
    logits, rewards = policy(RAGGED, 7), graded(RAGGED, 7)
    found = expected_gradient(ALGORITHMS["dr_grpo"], RAGGED, logits, rewards, group=group)
    assert close(found, true_gradient(RAGGED, logits, rewards) * (group - 1) / group / RAGGED.max_tokens)


def test_opo_is_the_true_gradient_times_a_constant_only_while_all_lengths_are_equal():
    logits, rewards = policy(FIXED, 8), graded(FIXED, 8)
    found = expected_gradient(ALGORITHMS["opo"], FIXED, logits, rewards, group=2)
    assert close(found, true_gradient(FIXED, logits, rewards) / 2)


def test_opo_is_biased_when_lengths_differ_and_less_so_in_a_larger_group():
    """The baseline Σ_j T_j·R_j / Σ_j T_j holds a rollout's own reward and length, so E[b·∇log π] is not 0."""
    logits, rewards = policy(RAGGED, 19), graded(RAGGED, 19)
    true = true_gradient(RAGGED, logits, rewards)
    of_two, of_three = (expected_gradient(ALGORITHMS["opo"], RAGGED, logits, rewards, group=g) for g in (2, 3))
    lengths, chance = RAGGED.mask.sum(dim=1), chances(RAGGED, logits)[0].detach()
    scores = [gradient(lp.sum(), logits) for lp in logprobs(RAGGED, logits)[0]]
    lost = torch.zeros_like(true)
    for i, j in product(range(len(scores)), repeat=2):
        baseline = (lengths[i] * rewards[0, i] + lengths[j] * rewards[0, j]) / (lengths[i] + lengths[j])
        lost += chance[i] * chance[j] * baseline * scores[i]
    assert close(of_two, true - lost)
    assert cosine(of_two, true) < cosine(of_three, true) < 0.999


def true_values(space, logits, rewards):
    """What the policy earns on average from each prefix on."""
    chance = chances(space, logits).detach()
    rows = [
        [
            sum(c * r for c, r, s in zip(cs, rs, space.sequences, strict=True) if s[: len(prefix)] == prefix)
            / sum(c for c, s in zip(cs, space.sequences, strict=True) if s[: len(prefix)] == prefix)
            for prefix in space.prefixes
        ]
        for cs, rs in zip(chance.tolist(), rewards.tolist(), strict=True)
    ]
    return torch.tensor(rows)


@pytest.mark.parametrize(("prompts", "seed"), [(1, 10), (2, 11)])
def test_ppo_at_ratio_one_is_the_true_gradient_with_any_critic_at_lam_one(prompts, seed):
    logits, rewards = policy(LONG, seed, prompts=prompts), graded(LONG, seed, prompts=prompts)
    for values in (torch.zeros(prompts, len(LONG.prefixes)), any_values(LONG, seed, prompts)):
        found = expected_gradient(ppo(1.0), LONG, logits, rewards, values=values)
        assert close(found, true_gradient(LONG, logits, rewards))


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95])
def test_ppo_at_ratio_one_with_a_perfect_critic_is_the_true_gradient_at_any_lam(lam):
    logits, rewards = policy(LONG, 12), graded(LONG, 12)
    found = expected_gradient(ppo(lam), LONG, logits, rewards, values=true_values(LONG, logits, rewards))
    assert close(found, true_gradient(LONG, logits, rewards))


def test_below_lam_one_a_wrong_critic_biases_ppo_and_more_so_the_lower_lam():
    logits, rewards = policy(LONG, 13), graded(LONG, 13)
    true = true_gradient(LONG, logits, rewards)
    bias = [
        float((expected_gradient(ppo(lam), LONG, logits, rewards, values=any_values(LONG, 13)) - true).norm())
        for lam in (0.0, 0.5, 0.95, 1.0)
    ]
    assert bias[0] > bias[1] > bias[2] > 0.01
    assert bias[3] < 1e-10


def test_ppo_over_tokens_is_the_true_gradient_over_the_length_while_all_lengths_are_equal():
    logits, rewards = policy(FIXED, 14), graded(FIXED, 14)
    row = replace(ppo(1.0), weighting=token_mean)
    found = expected_gradient(row, FIXED, logits, rewards, values=any_values(FIXED, 14))
    assert close(found, true_gradient(FIXED, logits, rewards) / FIXED.max_tokens)


def test_returns_to_go_are_the_true_gradient():
    logits, rewards = policy(LONG, 15), graded(LONG, 15)
    row = replace(ALGORITHMS["reinforce_pp"], scaling=unscaled, weighting=sequence_sum)
    assert row.advantage is to_go
    assert close(expected_gradient(row, LONG, logits, rewards), true_gradient(LONG, logits, rewards))


@pytest.mark.parametrize("group", [2, 3, 4])
def test_maxrl_climbs_the_series_of_the_log_of_the_share_of_right_answers(group):
    """log p = −Σ_k (1−p)^k / k; a group of G climbs its first G−1 terms.

    With K right of G: E[∇log π | right] = ∇p/p and E[∇log π | wrong] = −∇p/(1−p), so the expectation is
    E[(1 − K/G)·1(K>0)]·∇p / (p(1−p)) = (1 − (1−p)^(G−1))/p·∇p = Σ_{k<G} (1−p)^(k−1)·∇p.
    """
    logits, rewards = policy(RAGGED, 16), right_or_wrong(RAGGED, (2,), (0, 1))
    found = expected_gradient(ALGORITHMS["maxrl"], RAGGED, logits, rewards, group=group)
    p = (chances(RAGGED, logits) * rewards).sum()
    assert close(found, gradient(-sum((1 - p) ** k / k for k in range(1, group)), logits))


@pytest.mark.parametrize("sharpness", [0.5, 2.0])
def test_the_deviation_in_grpo_weighs_prompts_by_how_hard_they_are(sharpness):
    """Right or wrong, K right of G: the factor on ∇p is Σ_K P(K)·K(G−K) / (G²·σ_K·p(1−p)), not a constant."""
    group, space = 4, world(1)
    logits, rewards = policy(space, 17, sharpness=sharpness), right_or_wrong(space, (1,))
    row = replace(ALGORITHMS["grpo"], advantage=bind(standardize, {"epsilon": 0.0}))
    found = expected_gradient(row, space, logits, rewards, group=group)
    p = float((chances(space, logits).detach() * rewards).sum())
    factor = sum(
        comb(group, k)
        * p**k
        * (1 - p) ** (group - k)
        * k
        * (group - k)
        / (group**2 * p * (1 - p))
        / sqrt(k * (group - k) / (group * (group - 1)))
        for k in range(1, group)
    )
    assert close(found, factor * true_gradient(space, logits, rewards))
    assert abs(factor - 0.75) > 0.05, "and it is not the constant (G−1)/G that the mean alone would give"


@pytest.mark.parametrize("row", ["grpo", "gspo"])
def test_the_mean_over_each_sequence_turns_the_gradient_when_lengths_differ(row):
    """Without the deviation, so that only the length is left: a token of a short rollout counts for more."""
    logits, rewards = policy(RAGGED, 19), graded(RAGGED, 19)
    true = true_gradient(RAGGED, logits, rewards)
    found = expected_gradient(replace(ALGORITHMS[row], advantage=center), RAGGED, logits, rewards, group=2)
    assert cosine(found, true) < 0.99
    # GSPO differentiates the mean log-ratio, so before the first update it is GRPO.
    token = replace(REINFORCE, advantage=center, weighting=sequence_mean)
    assert close(found, expected_gradient(token, RAGGED, logits, rewards, group=2))


def test_gspo_without_its_length_is_the_true_gradient():
    logits, rewards = policy(FIXED, 19), graded(FIXED, 19)
    row = replace(ALGORITHMS["gspo"], advantage=raw)
    assert row.surrogate is sequence_clip
    assert close(expected_gradient(row, FIXED, logits, rewards), true_gradient(FIXED, logits, rewards) / 2)
