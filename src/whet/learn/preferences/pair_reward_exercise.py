"""The Bradley-Terry loss of a reward model."""

from __future__ import annotations

import math
from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Vector, log_sigmoid, mean

PAIRS = {"chosen": [1.0, 0.0, 2.5, -1.0], "rejected": [0.5, 1.0, 2.5, -3.0]}
FAR = {"chosen": [900.0, -900.0], "rejected": [-900.0, 900.0]}
OVERFLOW = (
    "with scores far apart the result is wrong: exp overflows, or a probability rounds to 0 and its log is −inf. "
    "`logsigmoid` and `sigmoid` of the difference of the scores are exact everywhere"
)
SCORES = [Case({"chosen": [1.0], "rejected": [0.0]}), Case(PAIRS), Case(FAR, OVERFLOW)]


def _sigmoid(x: float) -> float:
    return math.exp(log_sigmoid(x))


def _each(term: Callable[[float, float], float]) -> Callable[..., Vector]:
    return lambda chosen, rejected: [term(c, r) for c, r in zip(chosen, rejected, strict=True)]


def _mean(term: Callable[[float, float], float]) -> Callable[..., float]:
    return lambda chosen, rejected: mean(_each(term)(chosen, rejected))


loss = _mean(lambda c, r: -log_sigmoid(c - r))
win = _each(lambda c, r: _sigmoid(c - r))
accuracy = _mean(lambda c, r: 0.5 if c == r else float(c > r))

EXERCISE = Exercise(
    name="pair-reward",
    title="Bradley-Terry: the loss of a reward model",
    phase="preferences",
    chapter="14-reward-models.md",
    checks=(
        Compared(
            "win_probability",
            win,
            SCORES,
            [
                Mistake(
                    _each(lambda c, r: _sigmoid(r - c)),
                    "this is the probability that the rejected answer wins",
                ),
                Mistake(
                    _each(lambda c, r: c / (c + r)),
                    "the scores themselves are divided: they may be negative or 0. In the Bradley-Terry model the "
                    "strengths are exp(score)",
                ),
                Mistake(
                    _each(lambda c, r: _sigmoid(c)),
                    "the rejected score is not used: only the difference says who wins",
                ),
                Mistake(
                    _each(lambda c, r: _sigmoid(c) - _sigmoid(r)),
                    "this is a difference of probabilities, which may be negative; it is the probability of a "
                    "difference",
                ),
                Mistake(_each(lambda c, r: float(c > r)), "this says who wins, not how likely that is"),
            ],
            gradient_of=("chosen",),
        ),
        Compared(
            "preference_loss",
            loss,
            SCORES,
            [
                Mistake(
                    _mean(lambda c, r: -log_sigmoid(r - c)),
                    "chosen and rejected are exchanged: the model would learn to prefer what people rejected",
                ),
                Mistake(
                    _mean(lambda c, r: log_sigmoid(c - r)),
                    "the minus is missing: this is a log-likelihood, which should rise, and a loss should fall",
                ),
                Mistake(
                    _mean(lambda c, r: -_sigmoid(c - r)),
                    "the logarithm is missing. A pair that the model gets badly wrong would then have nearly no "
                    "gradient",
                ),
                Mistake(
                    lambda chosen, rejected: sum(_each(lambda c, r: -log_sigmoid(c - r))(chosen, rejected)),
                    "this is the sum over the pairs",
                ),
                Mistake(
                    _mean(lambda c, r: -log_sigmoid(c)),
                    "the rejected score is not used",
                ),
                Mistake(
                    _mean(lambda c, r: -log_sigmoid(c) - log_sigmoid(-r)),
                    "chosen and rejected are judged each by itself, as good or bad. Preferences say only which of the "
                    "two is better: adding 5 to both scores must not change the loss",
                ),
                Mistake(
                    _mean(lambda c, r: max(0.0, 1 - (c - r))),
                    "this is the hinge loss: it has no probability behind it, and no gradient beyond its margin",
                ),
                Mistake(
                    _mean(lambda c, r: r - c),
                    "this is only the difference of the scores: it falls without end, and pairs that are already right "
                    "pull as much as wrong ones",
                ),
                Mistake(
                    _mean(lambda c, r: -log_sigmoid(c - r) / math.log(2)),
                    "this is in bits: the natural logarithm is asked for",
                ),
            ],
            gradient_of=("chosen", "rejected"),
        ),
        Compared(
            "pair_accuracy",
            accuracy,
            [Case({"chosen": [1.0, 0.0], "rejected": [0.0, 1.0]}), Case(PAIRS)],
            [
                Mistake(
                    _mean(lambda c, r: float(c > r)),
                    "a tie counts as wrong: a model that gives all answers the same score would have 0 %, and it is as "
                    "good as a coin",
                ),
                Mistake(
                    _mean(lambda c, r: float(c >= r)),
                    "a tie counts as right: a model that gives all answers the same score would have 100 %",
                ),
                Mistake(
                    _mean(lambda c, r: _sigmoid(c - r)),
                    "this is the mean probability; accuracy counts who is ahead",
                ),
                Mistake(
                    lambda chosen, rejected: 1 - accuracy(chosen, rejected),
                    "this is the share that the model gets wrong",
                ),
            ],
        ),
    ),
    hints=(
        "Two strengths e^c and e^r: the first wins with probability e^c/(e^c + e^r). Divide both by e^c: a sigmoid of "
        "what?",
        "The loss is −log of the probability of what people chose. At equal scores it is log 2 ≈ 0.693.",
        "`torch.nn.functional.logsigmoid` is the logarithm of the sigmoid without computing the sigmoid.",
        "A tie is half a win.",
    ),
)
