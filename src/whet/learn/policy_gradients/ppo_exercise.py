"""PPO's clipped loss."""

from __future__ import annotations

import math
from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Mask, Matrix, mean

T, F = True, False
SMALL = {
    "logprobs": [[math.log(0.6), math.log(0.1)]],
    "logprobs_old": [[math.log(0.4), math.log(0.2)]],
    "advantages": [[1.0, -1.0]],
    "mask": [[T, T]],
    "clip": 0.2,
}
# Ratios on both sides of the range and inside of it, for advantages of both signs.
LARGER = {
    "logprobs": [[-1.0, -0.5, -2.0, -1.2, -0.7], [-0.3, -1.21, -3.0, -0.2, -0.1]],
    "logprobs_old": [[-1.4, -0.9, -1.5, -0.8, -0.75], [-0.35, -1.0, -2.0, -4.0, -4.0]],
    "advantages": [[1.0, -2.0, 0.5, -1.5, 2.0], [-1.0, 3.0, 1.0, 9.0, 9.0]],
    "mask": [[T, T, T, T, T], [T, T, T, F, F]],
    "clip": 0.2,
}
Term = Callable[[float, float, float], float]  # ratio, advantage, clip → loss of a token


def _clipped(ratio: float, clip: float) -> float:
    return min(max(ratio, 1 - clip), 1 + clip)


def _token(ratio: float, advantage: float, clip: float) -> float:
    return -min(ratio * advantage, _clipped(ratio, clip) * advantage)


def _rows(term: Term, batch: tuple[Matrix, Matrix, Matrix, Mask], clip: float, log: bool = False) -> Matrix:
    out = []
    for new, old, advantages, marks in zip(*batch, strict=True):
        ratios = [a - b if log else math.exp(a - b) for a, b in zip(new, old, strict=True)]
        out.append([term(r, a, clip) for r, a, mark in zip(ratios, advantages, marks, strict=True) if mark])
    return out


def mean_of(term: Term, log: bool = False) -> Callable[..., float]:
    def loss(logprobs: Matrix, logprobs_old: Matrix, advantages: Matrix, mask: Mask, clip: float) -> float:
        rows = _rows(term, (logprobs, logprobs_old, advantages, mask), clip, log)
        return mean([number for row in rows for number in row])

    return loss


loss = mean_of(_token)
fraction = mean_of(lambda ratio, advantage, clip: float(abs(ratio - 1) > clip))


def _by_row(logprobs: Matrix, logprobs_old: Matrix, advantages: Matrix, mask: Mask, clip: float) -> float:
    return mean([mean(row) for row in _rows(_token, (logprobs, logprobs_old, advantages, mask), clip)])


def _everywhere(logprobs: Matrix, logprobs_old: Matrix, advantages: Matrix, mask: Mask, clip: float) -> float:
    return loss(logprobs, logprobs_old, advantages, [[True] * len(row) for row in mask], clip)


def _diluted(logprobs: Matrix, logprobs_old: Matrix, advantages: Matrix, mask: Mask, clip: float) -> float:
    rows = _rows(_token, (logprobs, logprobs_old, advantages, mask), clip)
    return sum(map(sum, rows)) / sum(len(row) for row in mask)


def _everywhere_counted(logprobs: Matrix, logprobs_old: Matrix, advantages: Matrix, mask: Mask, clip: float) -> float:
    """Tokens outside of the range also at padding, as a share of the trained ones."""
    every = [[True] * len(row) for row in mask]
    share = fraction(logprobs, logprobs_old, advantages, every, clip)
    return share * sum(map(len, mask)) / sum(map(sum, mask))


def swapped(logprobs: Matrix, logprobs_old: Matrix, advantages: Matrix, mask: Mask, clip: float) -> float:
    return loss(logprobs_old, logprobs, advantages, mask, clip)


EXERCISE = Exercise(
    name="ppo-loss",
    title="PPO's clipped loss",
    phase="policy gradients",
    chapter="09-ppo.md",
    checks=(
        Compared(
            "ppo_loss",
            loss,
            [Case(SMALL), Case(LARGER)],
            [
                Mistake(
                    mean_of(lambda r, a, c: -max(r * a, _clipped(r, c) * a)),
                    "of the two terms the better one is taken: the objective must be the worse one, so that a step out "
                    "of the range is never rewarded and a way back is never blocked",
                ),
                Mistake(
                    mean_of(lambda r, a, c: -_token(r, a, c)),
                    "the sign is wrong: an optimizer makes a loss smaller, so this would make good tokens less likely",
                ),
                Mistake(
                    mean_of(lambda r, a, c: -_clipped(r, c) * a),
                    "the ratio is clipped, and there is no minimum with the unclipped term. A token that got much less "
                    "likely although it was good has then no gradient to come back",
                ),
                Mistake(
                    mean_of(lambda r, a, c: -r * a),
                    "nothing is clipped: this is the importance-weighted policy gradient, whose steps have no limit",
                ),
                Mistake(
                    swapped,
                    "the ratio is π_old/π; it is π/π_old. With this one a token's loss falls where it gets less likely",
                ),
                Mistake(
                    mean_of(_token, log=True),
                    "the difference of the log-probs is taken for the ratio: that is its logarithm",
                ),
                Mistake(
                    mean_of(lambda r, a, c: -min(r * a, min(max(r, -c), c) * a)),
                    "the ratio is clipped to [−clip, clip]: it is near 1, so the range is [1 − clip, 1 + clip]",
                ),
                Mistake(
                    mean_of(lambda r, a, c: -min(r * a, max(r * a, 1 - c), 1 + c)),
                    "the product with the advantage is clipped: what must stay near 1 is the ratio",
                ),
                Mistake(_everywhere, "the mask is not used: padding is trained too"),
                Mistake(
                    _diluted,
                    "padding is in the denominator: the sum is over the trained tokens, so the count must be too",
                ),
                Mistake(
                    _by_row,
                    "this is the mean of the means of the rows; asked for is the mean over all trained tokens",
                ),
                Mistake(
                    lambda logprobs, logprobs_old, advantages, mask, clip: sum(
                        map(sum, _rows(_token, (logprobs, logprobs_old, advantages, mask), clip))
                    ),
                    "this is the sum over the tokens: the step would grow with the size of the batch",
                ),
            ],
            gradient_of=("logprobs",),
        ),
        Compared(
            "clip_fraction",
            fraction,
            [Case(SMALL), Case(LARGER)],
            [
                Mistake(
                    lambda logprobs, logprobs_old, advantages, mask, clip: (
                        1 - fraction(logprobs, logprobs_old, advantages, mask, clip)
                    ),
                    "this is the share inside of the range",
                ),
                Mistake(
                    mean_of(lambda r, a, c: float(abs(r) > c), log=True),
                    "the logarithm of the ratio is compared with the range: it is not symmetric there",
                ),
                Mistake(
                    lambda logprobs, logprobs_old, advantages, mask, clip: fraction(
                        logprobs, logprobs_old, advantages, [[True] * len(row) for row in mask], clip
                    ),
                    "padding is counted too",
                ),
                Mistake(
                    _everywhere_counted,
                    "padding is counted too",
                ),
                Mistake(
                    mean_of(lambda r, a, c: float(r > 1 + c)),
                    "only ratios above the range are counted: the range has two ends",
                ),
            ],
        ),
    ),
    hints=(
        "Before the first update π = π_old. What is the ratio of every token then, and what is the loss?",
        "A = +1: for which ratios is the loss flat? And for A = −1? Draw both lines before you write the formula.",
        "The ratio is `(logprobs - logprobs_old).exp()`. `clamp` limits it, and `torch.minimum` compares two tensors "
        "entry by entry. Where does the minus stand?",
        "The mean over the trained tokens: multiply by the mask, sum, divide by the number of True.",
    ),
)
