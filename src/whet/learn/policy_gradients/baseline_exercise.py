"""Baselines: the same mean, less variance, computed exactly on a bandit."""

from __future__ import annotations

import math

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Matrix, Vector, mean, softmax
from whet.learn.policy_gradients.bandit_exercise import expected_reward, score

GROUPS = [Case({"rewards": [[1.0, 0.0, 0.0]]}), Case({"rewards": [[3.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]})]
LOGITS, REWARDS = [0.5, -0.2, 1.1], [1.0, 4.0, 2.0]
BANDIT = {"logits": LOGITS, "rewards": REWARDS}


def leave_one_out(rewards: Matrix) -> Matrix:
    return [[r - (sum(row) - r) / (len(row) - 1) for r in row] for row in rewards]


def _less_mean(rewards: Matrix) -> Matrix:
    return [[r - mean(row) for r in row] for row in rewards]


def _second_moment(logits: Vector, rewards: Vector, baseline: float) -> float:
    """E ‖(r − b)·score‖²."""
    return sum(p * (rewards[a] - baseline) ** 2 * _length(score(logits, a)) for a, p in enumerate(softmax(logits)))


def _length(vector: Vector) -> float:
    return sum(x * x for x in vector)


def _mean_estimate(logits: Vector, rewards: Vector, baseline: float) -> Vector:
    terms = [(p * (rewards[a] - baseline), score(logits, a)) for a, p in enumerate(softmax(logits))]
    return [sum(w * s[i] for w, s in terms) for i in range(len(logits))]


def variance(logits: Vector, rewards: Vector, baseline: float) -> float:
    return _second_moment(logits, rewards, baseline) - _length(_mean_estimate(logits, rewards, baseline))


def _unweighted(logits: Vector, rewards: Vector, baseline: float) -> float:
    """The variance as if all actions were equally likely."""
    vectors = [[(r - baseline) * s for s in score(logits, a)] for a, r in enumerate(rewards)]
    middle = [mean([v[i] for v in vectors]) for i in range(len(logits))]
    return mean([_length([x - m for x, m in zip(v, middle, strict=True)]) for v in vectors])


def best(logits: Vector, rewards: Vector) -> float:
    weights = [p * _length(score(logits, a)) for a, p in enumerate(softmax(logits))]
    return sum(w * r for w, r in zip(weights, rewards, strict=True)) / sum(weights)


def _best_unweighted(logits: Vector, rewards: Vector) -> float:
    weights = [_length(score(logits, a)) for a in range(len(logits))]
    return sum(w * r for w, r in zip(weights, rewards, strict=True)) / sum(weights)


EXERCISE = Exercise(
    name="baselines",
    title="baselines and variance",
    phase="policy gradients",
    chapter="07-baselines.md",
    checks=(
        Compared(
            "leave_one_out",
            leave_one_out,
            GROUPS,
            [
                Mistake(
                    _less_mean,
                    "the mean contains the own reward: the baseline then depends on the action, and the advantage is "
                    "too small by the factor (G−1)/G",
                ),
                Mistake(
                    lambda rewards: [[r - (sum(row) - r) / len(row) for r in row] for row in rewards],
                    "the sum of the others is divided by G, and there are G − 1 others",
                ),
                Mistake(
                    lambda rewards: [[(sum(row) - r) / (len(row) - 1) for r in row] for row in rewards],
                    "these are the baselines; the advantage is the reward less its baseline",
                ),
                Mistake(
                    lambda rewards: [[r - mean([x for line in rewards for x in line]) for r in row] for row in rewards],
                    "the mean goes over the whole batch: an easy prompt would look good, whatever was answered",
                ),
                Mistake(
                    lambda rewards: [[-a for a in row] for row in leave_one_out(rewards)],
                    "the sign is wrong: a rollout better than the others has a positive advantage",
                ),
            ],
        ),
        Compared(
            "gradient_variance",
            variance,
            [
                Case({"logits": [0.0, 0.0], "rewards": [1.0, 0.0], "baseline": 0.0}),
                Case({**BANDIT, "baseline": 0.0}),
                Case({**BANDIT, "baseline": 2.5}),
            ],
            [
                Mistake(
                    _second_moment,
                    "this is the mean of the squares; the variance is that less the square of the mean, and the mean "
                    "here is the gradient, not 0",
                ),
                Mistake(
                    _unweighted,
                    "all actions count the same: likely ones are sampled more often, so they count by their "
                    "probability",
                ),
                Mistake(
                    lambda logits, rewards, baseline: math.sqrt(variance(logits, rewards, baseline)),
                    "this is the standard deviation: its square is asked for",
                ),
                Mistake(
                    lambda logits, rewards, baseline: variance(logits, rewards, 0.0),
                    "the baseline is not used",
                ),
                Mistake(
                    lambda logits, rewards, baseline: variance(logits, rewards, baseline) / len(logits),
                    "this is the mean over the entries of the gradient; asked for is their sum",
                ),
                Mistake(
                    lambda logits, rewards, baseline: sum(
                        p * (r - baseline - (expected_reward(logits, rewards) - baseline)) ** 2
                        for p, r in zip(softmax(logits), rewards, strict=True)
                    ),
                    "this is the variance of the reward; asked for is that of the gradient's estimate, (r − b)·score",
                ),
            ],
        ),
        Compared(
            "best_baseline",
            best,
            [Case({"logits": [0.0, 1.0], "rewards": [1.0, 0.0]}), Case(BANDIT)],
            [
                Mistake(
                    expected_reward,
                    "this is the expected reward: a good baseline, and not the best. Rewards count by the length of "
                    "the score that they multiply, too",
                ),
                Mistake(lambda logits, rewards: mean(rewards), "this is the plain mean of the rewards"),
                Mistake(
                    _best_unweighted,
                    "the probabilities are missing in both sums",
                ),
                Mistake(lambda logits, rewards: 0.0, "without a baseline the variance is not the least"),
            ],
        ),
    ),
    hints=(
        "The sum of the others is the sum of all less the own reward. How many others are there?",
        "For `gradient_variance` write down every action's estimate, a vector, and its probability. Variance: mean of "
        "the squared lengths, less the squared length of the mean.",
        "The mean of the estimate does not depend on b. So only the mean of the squared lengths must be least: "
        "Σ_a π(a)·(r(a) − b)²·‖score(a)‖² is a parabola in b.",
        "Set its derivative by b to 0, and solve for b.",
    ),
)
