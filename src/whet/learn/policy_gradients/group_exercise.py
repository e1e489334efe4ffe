"""GRPO's advantages, and the two ways to average a loss over tokens."""

from __future__ import annotations

from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Mask, Matrix, chosen, deviation, mean

T, F = True, False
EPSILON = 1e-6
GROUPS = [
    Case({"rewards": [[1.0, 0.0, 0.0, 0.0]]}),
    Case({"rewards": [[3.0, 1.0, 0.0, 1.0], [0.2, 0.9, 0.4, 0.4], [5.0, 4.0, 4.0, 4.5]]}),
    Case(
        {"rewards": [[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]]},
        "a group of equal rewards must have advantages of 0: nothing can be learned from it, and 0/0 is nan",
    ),
]
LOSSES = [
    Case({"losses": [[1.0, 3.0], [5.0, 9.0]], "mask": [[T, T], [T, F]]}),
    Case(
        {
            "losses": [[0.5, -1.0, 2.0, 4.0], [1.0, 3.0, 8.0, 8.0], [2.0, 8.0, 8.0, 8.0]],
            "mask": [[T, T, T, T], [T, T, F, F], [T, F, F, F]],
        }
    ),
]


def grpo(rewards: Matrix) -> Matrix:
    return [[(r - mean(row)) / (deviation(row) + EPSILON) for r in row] for row in rewards]


def center(rewards: Matrix) -> Matrix:
    return [[r - mean(row) for r in row] for row in rewards]


def _all(rewards: Matrix) -> list[float]:
    return [r for row in rewards for r in row]


def _by_columns(function: Callable[[Matrix], Matrix]) -> Callable[[Matrix], Matrix]:
    def turned(rewards: Matrix) -> Matrix:
        columns = function([list(column) for column in zip(*rewards, strict=True)])
        return [list(row) for row in zip(*columns, strict=True)]

    return turned


def _over_batch(rewards: Matrix) -> Matrix:
    every = _all(rewards)
    return [[(r - mean(every)) / (deviation(every) + EPSILON) for r in row] for row in rewards]


def _batch_deviation(rewards: Matrix) -> Matrix:
    spread = deviation(_all(rewards))
    return [[(r - mean(row)) / (spread + EPSILON) for r in row] for row in rewards]


def _left_out(rewards: Matrix) -> Matrix:
    return [[r - (sum(row) - r) / (len(row) - 1) for r in row] for row in rewards]


def token_mean(losses: Matrix, mask: Mask) -> float:
    return mean(chosen(losses, mask))


def sequence_mean(losses: Matrix, mask: Mask) -> float:
    return mean([mean(chosen([row], [marks])) for row, marks in zip(losses, mask, strict=True)])


def _everywhere(losses: Matrix, mask: Mask) -> float:
    return mean(_all(losses))


def _diluted(losses: Matrix, mask: Mask) -> float:
    return sum(chosen(losses, mask)) / sum(len(row) for row in mask)


EXERCISE = Exercise(
    name="group-advantages",
    title="GRPO: advantages in a group, and who has a vote",
    phase="policy gradients",
    chapter="10-grpo.md",
    checks=(
        Compared(
            "grpo_advantages",
            grpo,
            GROUPS,
            [
                Mistake(
                    _over_batch,
                    "mean and deviation go over the whole batch: then a rollout is compared with those of other "
                    "prompts, and an easy prompt looks good",
                ),
                Mistake(
                    _batch_deviation,
                    "the deviation goes over the whole batch; in GRPO it is that of the group. (With the batch's it is "
                    "another method, which also works.)",
                ),
                Mistake(
                    lambda rewards: [[(r - mean(row)) / (deviation(row, 0) + EPSILON) for r in row] for row in rewards],
                    "the deviation is that of a whole population (divided by G); the one of a sample divides by G − 1, "
                    "which `Tensor.std` does by itself",
                ),
                Mistake(
                    lambda rewards: [
                        [(r - mean(row)) / (deviation(row) ** 2 + EPSILON) for r in row] for row in rewards
                    ],
                    "this divides by the variance: its unit is that of the reward squared, so the result depends on "
                    "the scale of the rewards",
                ),
                Mistake(center, "the division by the deviation of the group is missing (that is Dr. GRPO)"),
                Mistake(
                    lambda rewards: [[r / (deviation(row) + EPSILON) for r in row] for row in rewards],
                    "the mean of the group is not subtracted: all rollouts would get likelier where rewards are "
                    "positive",
                ),
                Mistake(
                    lambda rewards: [
                        [a / (deviation(row) + EPSILON) for a in left]
                        for row, left in zip(rewards, _left_out(rewards), strict=True)
                    ],
                    "the own reward is left out of the mean (that is RLOO); GRPO takes the mean of the whole group",
                ),
            ],
        ),
        Compared(
            "dr_grpo_advantages",
            center,
            GROUPS,
            [
                Mistake(
                    grpo,
                    "there is still a division by the deviation. It blows up the noise of groups that nearly agree: a "
                    "prompt with one right answer of a hundred counts more than one with fifty",
                ),
                Mistake(
                    _left_out, "the own reward is left out of the mean (that is RLOO): Dr. GRPO takes the group's mean"
                ),
                Mistake(
                    lambda rewards: [[r - mean(_all(rewards)) for r in row] for row in rewards],
                    "the mean goes over the whole batch, and not over the group",
                ),
                Mistake(
                    _by_columns(center),
                    "the mean goes over the columns: a row is a prompt, and the rollouts of a row are a group",
                ),
            ],
        ),
        Compared(
            "token_mean",
            token_mean,
            LOSSES,
            [
                Mistake(
                    sequence_mean,
                    "this is the mean of the means of the rows, where a token of a short row has more weight",
                ),
                Mistake(_everywhere, "the mask is not used"),
                Mistake(_diluted, "padding is in the denominator: more padding, smaller loss"),
            ],
        ),
        Compared(
            "sequence_mean",
            sequence_mean,
            LOSSES,
            [
                Mistake(
                    token_mean,
                    "this is the mean over all tokens, where a long row has more weight than a short one",
                ),
                Mistake(_everywhere, "the mask is not used"),
                Mistake(
                    _diluted,
                    "every row is divided by the length with padding: the same row would count less beside a longer "
                    "one",
                ),
                Mistake(
                    lambda losses, mask: sum(
                        mean(chosen([row], [marks])) for row, marks in zip(losses, mask, strict=True)
                    ),
                    "the means of the rows are summed; the loss is their mean",
                ),
                Mistake(
                    lambda losses, mask: mean([sum(chosen([r], [m])) for r, m in zip(losses, mask, strict=True)]),
                    "the rows are summed, not averaged, over their tokens",
                ),
            ],
        ),
    ),
    hints=(
        "One row is one group. Which `dim` does the mean go over, and what does `keepdim=True` change?",
        "A group in which all answers are right: what is the deviation, and what would be divided by it?",
        "`token_mean`: one sum, one count. `sequence_mean`: a sum and a count for every row, then the mean of the "
        "rows.",
    ),
)
