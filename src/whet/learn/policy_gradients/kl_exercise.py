"""Estimates of a KL divergence from sampled tokens, and the exact one."""

from __future__ import annotations

import math
from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Vector, log_softmax, mean, softmax

TOKENS = [
    Case({"logprobs": [math.log(0.9)], "logprobs_ref": [math.log(0.5)]}),
    Case({"logprobs": [-0.1, -2.0, -1.0, -0.7], "logprobs_ref": [-0.7, -1.0, -1.0, -3.0]}),
]
LOGITS = [
    Case({"logits": [math.log(0.9), math.log(0.1)], "logits_ref": [0.0, 0.0]}),
    Case({"logits": [0.3, -1.0, 2.0, 0.5], "logits_ref": [1.0, 0.2, 0.1, -0.6]}),
]


def per_token(estimate: Callable[[float], float]) -> Callable[..., Vector]:
    """An estimate of d = log π − log π_ref, for every token."""
    return lambda logprobs, logprobs_ref: [estimate(a - b) for a, b in zip(logprobs, logprobs_ref, strict=True)]


k1 = per_token(lambda d: d)
k2 = per_token(lambda d: d * d / 2)
k3 = per_token(lambda d: math.exp(-d) - 1 + d)


def exact(logits: Vector, logits_ref: Vector) -> float:
    return sum(_terms(logits, logits_ref))


def _terms(logits: Vector, logits_ref: Vector) -> Vector:
    ours, theirs = log_softmax(logits), log_softmax(logits_ref)
    return [math.exp(a) * (a - b) for a, b in zip(ours, theirs, strict=True)]


EXERCISE = Exercise(
    name="kl-estimators",
    title="KL estimators k1, k2, k3",
    phase="policy gradients",
    chapter="11-kl.md",
    checks=(
        Compared(
            "k1",
            k1,
            TOKENS,
            [
                Mistake(
                    per_token(lambda d: -d),
                    "the sign is wrong: its mean under the policy would be −KL, and as a penalty it would pay for "
                    "moving away from the reference",
                ),
                Mistake(per_token(abs), "the absolute value is no longer unbiased: single terms of k1 may be negative"),
                Mistake(per_token(math.exp), "this is the ratio; k1 is its logarithm"),
            ],
            gradient_of=("logprobs",),
        ),
        Compared(
            "k2",
            k2,
            TOKENS,
            [
                Mistake(per_token(lambda d: d * d), "a half is missing: near d = 0 the KL grows like d²/2"),
                Mistake(per_token(lambda d: d / 2), "a square is missing"),
                Mistake(
                    per_token(lambda d: (math.exp(d) - 1) ** 2 / 2),
                    "this squares the ratio less 1; k2 squares the logarithm of the ratio",
                ),
            ],
            gradient_of=("logprobs",),
        ),
        Compared(
            "k3",
            k3,
            TOKENS,
            [
                Mistake(
                    per_token(lambda d: math.exp(d) - 1 - d),
                    "the ratio is the wrong way round. Where tokens come from the policy, this has not the mean "
                    "KL(π‖ref), and it explodes where the policy likes a token much better than the reference does",
                ),
                Mistake(
                    per_token(lambda d: math.exp(-d) - 1 - d),
                    "a sign is wrong: this can be negative, and k3 never is, because exp(x) ≥ 1 + x",
                ),
                Mistake(
                    per_token(lambda d: math.exp(-d) + d),
                    "a 1 is missing: where policy and reference agree, the estimate must be 0",
                ),
                Mistake(
                    per_token(lambda d: math.exp(-d) - 1),
                    "the second term is missing: the mean of exp(−d) − 1 under the policy is 0, so this estimates 0",
                ),
            ],
            gradient_of=("logprobs",),
        ),
        Compared(
            "exact_kl",
            exact,
            LOGITS,
            [
                Mistake(
                    lambda logits, logits_ref: exact(logits_ref, logits),
                    "this is KL(ref‖π): the tokens are the policy's, so the mean goes over the policy's probabilities",
                ),
                Mistake(
                    lambda logits, logits_ref: -exact(logits_ref, logits),
                    "the mean goes over the reference's probabilities: the tokens are the policy's",
                ),
                Mistake(
                    lambda logits, logits_ref: -exact(logits, logits_ref),
                    "the sign is wrong: a KL divergence is never negative",
                ),
                Mistake(
                    lambda logits, logits_ref: mean(_terms(logits, logits_ref)),
                    "this is the mean of the terms: they are weighted by the probabilities already, so they are summed",
                ),
                Mistake(
                    lambda logits, logits_ref: exact(logits, logits_ref) / math.log(2),
                    "this is in bits; with the natural logarithm it is in nats, as log-probs are",
                ),
                Mistake(
                    lambda logits, logits_ref: sum(
                        p * (a - b) for p, a, b in zip(softmax(logits), logits, logits_ref, strict=True)
                    ),
                    "the logits are compared and not the log-probs: adding the same number to all logits changes this, "
                    "and does not change the policy",
                ),
                Mistake(
                    lambda logits, logits_ref: sum(
                        p * q for p, q in zip(softmax(logits), log_softmax(logits), strict=True)
                    ),
                    "this is minus the entropy of the policy: the reference is missing",
                ),
                Mistake(
                    lambda logits, logits_ref: (
                        -sum(p * q for p, q in zip(softmax(logits), log_softmax(logits_ref), strict=True))
                    ),
                    "this is the cross-entropy: it is larger than the KL by the entropy of the policy",
                ),
            ],
            gradient_of=("logits",),
        ),
    ),
    hints=(
        "With d = log π − log π_ref and tokens from π: the KL is the mean of d. That is k1.",
        "k2 and k3 are never negative and are 0 where d = 0. Near 0 both are about d²/2.",
        "k3 adds something to k1 whose mean under π is 0: E[π_ref/π] − 1. Which sign has d in π_ref/π = exp(…)?",
        "`exact_kl`: `log_softmax` of both, the difference, weighted by the probabilities of the policy, summed.",
    ),
)
