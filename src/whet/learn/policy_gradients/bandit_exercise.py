"""The policy gradient of a bandit: few actions, so every expectation is a sum that can be written out."""

from __future__ import annotations

from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Vector, mean, softmax

LOGITS, REWARDS = [0.5, -0.2, 1.1, 0.0], [1.0, 0.0, 2.0, -1.0]
SMALL = {"logits": [0.0, 0.0], "rewards": [1.0, 0.0]}
LARGER = {"logits": LOGITS, "rewards": REWARDS}
ACTIONS = [2, 2, 0, 3, 1, 2, 0]


def expected_reward(logits: Vector, rewards: Vector) -> float:
    return sum(p * r for p, r in zip(softmax(logits), rewards, strict=True))


def score(logits: Vector, action: int) -> Vector:
    return [float(index == action) - p for index, p in enumerate(softmax(logits))]


def _weighted(logits: Vector, weight: Callable[[float, int], float]) -> Vector:
    """Σ_a weight(π(a), a) · score(a)."""
    probabilities = softmax(logits)
    scores = [score(logits, action) for action in range(len(logits))]
    weights = [weight(p, action) for action, p in enumerate(probabilities)]
    return [sum(w * s[i] for w, s in zip(weights, scores, strict=True)) for i in range(len(logits))]


def gradient(logits: Vector, rewards: Vector) -> Vector:
    return _weighted(logits, lambda p, a: p * rewards[a])


def estimate(logits: Vector, rewards: Vector, actions: list[int]) -> Vector:
    return _sampled(logits, actions, lambda a: rewards[a] / len(actions))


def _sampled(logits: Vector, actions: list[int], weight: Callable[[int], float]) -> Vector:
    scores = [(weight(action), score(logits, action)) for action in actions]
    return [sum(w * s[i] for w, s in scores) for i in range(len(logits))]


def _centred(logits: Vector, rewards: Vector, actions: list[int]) -> Vector:
    average = mean([rewards[a] for a in actions])
    return _sampled(logits, actions, lambda a: (rewards[a] - average) / len(actions))


EXERCISE = Exercise(
    name="bandit-gradient",
    title="the policy gradient of a bandit, by enumeration",
    phase="policy gradients",
    chapter="05-policy-gradients.md",
    checks=(
        Compared(
            "expected_reward",
            expected_reward,
            [
                Case(SMALL),
                Case(LARGER),
                Case({"logits": [1000.0, 999.0], "rewards": [1.0, 3.0]}, "overflow: use softmax"),
            ],
            [
                Mistake(
                    lambda logits, rewards: mean(rewards),
                    "this is the plain mean of the rewards: likely actions count more than unlikely ones",
                ),
                Mistake(
                    lambda logits, rewards: sum(a * b for a, b in zip(logits, rewards, strict=True)),
                    "logits are no probabilities: they may be negative, and do not add up to 1",
                ),
                Mistake(
                    lambda logits, rewards: rewards[logits.index(max(logits))],
                    "this is the reward of the likeliest action; the policy samples, so all actions count",
                ),
            ],
            gradient_of=("logits",),
        ),
        Compared(
            "score",
            score,
            [Case({"logits": [0.0, 0.0], "action": 0}), Case({"logits": LOGITS, "action": 2})],
            [
                Mistake(
                    lambda logits, action: [float(i == action) for i in range(len(logits))],
                    "only the logit of the action changes: but log π(a) = logit − log Σ exp, and the second term "
                    "depends on every logit. To make one action likelier is to make the others less likely",
                ),
                Mistake(
                    lambda logits, action: [softmax(logits)[action] * s for s in score(logits, action)],
                    "this is the gradient of π(a), not that of log π(a): it is smaller by the factor π(a)",
                ),
                Mistake(
                    lambda logits, action: [1 - p if i == action else 0.0 for i, p in enumerate(softmax(logits))],
                    "the entries of the other actions are missing: the entries of a score add up to 0",
                ),
                Mistake(
                    lambda logits, action: [-s for s in score(logits, action)],
                    "the sign is wrong: following it makes the action less likely. (A loss has a minus; the score has "
                    "none.)",
                ),
            ],
        ),
        Compared(
            "policy_gradient",
            gradient,
            [Case(SMALL), Case(LARGER)],
            [
                Mistake(
                    lambda logits, rewards: _weighted(logits, lambda p, a: rewards[a]),
                    "the sum over the actions is not weighted by their probabilities: an expectation under the policy "
                    "is",
                ),
                Mistake(
                    lambda logits, rewards: _weighted(logits, lambda p, a: p),
                    "the rewards are missing, and without them the expected score is 0, whatever the policy",
                ),
                Mistake(
                    lambda logits, rewards: _weighted(logits, lambda p, a: p * p * rewards[a]),
                    "every action is weighted by its probability twice: once by the expectation, and once more because "
                    "the gradient of π(a) was taken for that of log π(a)",
                ),
                Mistake(
                    lambda logits, rewards: [-g for g in gradient(logits, rewards)],
                    "this is the gradient of a loss; asked for is that of the expected reward, which is to rise",
                ),
                Mistake(
                    lambda logits, rewards: [p * r for p, r in zip(softmax(logits), rewards, strict=True)],
                    "the scores are missing: these are the terms of the expected reward itself",
                ),
            ],
        ),
        Compared(
            "estimate",
            estimate,
            [Case({**SMALL, "actions": [0]}), Case({**LARGER, "actions": ACTIONS})],
            [
                Mistake(
                    lambda logits, rewards, actions: _sampled(logits, actions, lambda a: rewards[a]),
                    "this is the sum over the samples: with twice as many, the step would be twice as long",
                ),
                Mistake(
                    lambda logits, rewards, actions: _sampled(
                        logits, actions, lambda a: softmax(logits)[a] * rewards[a] / len(actions)
                    ),
                    "samples are weighted by π(a), but likely actions are already sampled more often: that counts the "
                    "probability twice, and the estimate no longer has the gradient as its mean",
                ),
                Mistake(
                    _centred,
                    "a baseline, the mean reward of these samples, is subtracted. That is chapter 7; here it is the "
                    "mean of the samples' own rewards, which makes the estimate too small by 1/n",
                ),
                Mistake(
                    lambda logits, rewards, actions: _sampled(logits, actions, lambda a: 1 / len(actions)),
                    "the rewards are missing: this makes whatever was sampled likelier",
                ),
                Mistake(
                    lambda logits, rewards, actions: [-g for g in estimate(logits, rewards, actions)],
                    "this is the gradient of a loss; asked for is an estimate of that of the expected reward",
                ),
            ],
        ),
    ),
    hints=(
        "log π(a) = logit_a − log Σ_b exp(logit_b). What is the derivative of the second term by logit_i?",
        "The score has one entry per logit. They add up to 0: why must they?",
        "∇ Σ_a π(a) r(a) = Σ_a r(a) ∇π(a), and ∇π(a) = π(a) ∇log π(a). Where does π(a) stand in the result?",
        "In `estimate` nobody knows π(a) of what was not sampled: the samples stand for the expectation, and each "
        "counts the same.",
    ),
)
