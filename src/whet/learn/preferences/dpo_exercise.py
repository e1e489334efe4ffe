"""Direct preference optimisation."""

from __future__ import annotations

from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Mask, Matrix, Vector, log_sigmoid, mean

T, F = True, False
ROWS = [
    Case({"logprobs": [[-1.0, -2.0, -4.0]], "mask": [[F, T, T]]}),
    Case(
        {
            "logprobs": [[-0.5, -1.5, -0.2, -0.1], [-2.0, -0.3, -9.0, -9.0]],
            "mask": [[F, T, T, T], [F, T, F, F]],
        }
    ),
]
PAIRS = {
    "chosen": [-10.0, -22.0, -3.0],
    "rejected": [-12.0, -20.0, -8.0],
    "chosen_ref": [-11.0, -21.0, -5.0],
    "rejected_ref": [-11.5, -21.5, -6.0],
    "beta": 0.3,
}
CASES = [
    Case({"chosen": [-1.0], "rejected": [-2.0], "chosen_ref": [-2.0], "rejected_ref": [-2.0], "beta": 0.5}),
    Case(PAIRS),
    Case(
        {**PAIRS, "chosen": [-900.0, -22.0, -3.0], "beta": 5.0},
        "with log-probs far from the reference the loss is wrong: a probability rounds to 0 and its log is −inf. "
        "`logsigmoid` is exact everywhere",
    ),
]
Margin = Callable[[float, float, float, float, float], float]


def summed(logprobs: Matrix, mask: Mask) -> Vector:
    return [
        sum(x for x, mark in zip(row, marks, strict=True) if mark) for row, marks in zip(logprobs, mask, strict=True)
    ]


def _averaged(logprobs: Matrix, mask: Mask) -> Vector:
    return [total / sum(marks) for total, marks in zip(summed(logprobs, mask), mask, strict=True)]


def _each(
    term: Margin, chosen: Vector, rejected: Vector, chosen_ref: Vector, rejected_ref: Vector, beta: float
) -> Vector:
    return [term(*pair, beta) for pair in zip(chosen, rejected, chosen_ref, rejected_ref, strict=True)]


def _mean(term: Margin) -> Callable[..., float]:
    return lambda chosen, rejected, chosen_ref, rejected_ref, beta: mean(
        _each(term, chosen, rejected, chosen_ref, rejected_ref, beta)
    )


def loss_of(margin: Margin) -> Callable[..., float]:
    return _mean(lambda c, r, cr, rr, b: -log_sigmoid(margin(c, r, cr, rr, b)))


def margin_of(c: float, r: float, cr: float, rr: float, b: float) -> float:
    return b * ((c - cr) - (r - rr))


def reward(logprobs: Vector, logprobs_ref: Vector, beta: float) -> Vector:
    return [beta * (a - b) for a, b in zip(logprobs, logprobs_ref, strict=True)]


REWARDS = [
    Case({"logprobs": [-1.0], "logprobs_ref": [-3.0], "beta": 0.5}),
    Case({"logprobs": [-10.0, -22.0], "logprobs_ref": [-11.0, -21.5], "beta": 0.1}),
]

EXERCISE = Exercise(
    name="dpo-loss",
    title="DPO: the loss, and the reward that it implies",
    phase="preferences",
    chapter="16-dpo.md",
    checks=(
        Compared(
            "sequence_logprobs",
            summed,
            ROWS,
            [
                Mistake(
                    _averaged,
                    "this is the mean over the tokens: the log-probability of an answer is the sum, because "
                    "probabilities of tokens multiply",
                ),
                Mistake(
                    lambda logprobs, mask: [sum(row) for row in logprobs],
                    "the mask is not used: prompt and padding are in the sum",
                ),
                Mistake(
                    lambda logprobs, mask: [sum(map(sum, [summed(logprobs, mask)]))],
                    "the whole batch is summed: every row is an answer, with a number of its own",
                ),
            ],
            gradient_of=("logprobs",),
        ),
        Compared(
            "implicit_reward",
            reward,
            REWARDS,
            [
                Mistake(
                    lambda logprobs, logprobs_ref, beta: [-x for x in reward(logprobs, logprobs_ref, beta)],
                    "the ratio is the wrong way round: an answer that got likelier than under the reference has a "
                    "positive reward",
                ),
                Mistake(
                    lambda logprobs, logprobs_ref, beta: reward(logprobs, logprobs_ref, 1.0),
                    "β is missing",
                ),
                Mistake(
                    lambda logprobs, logprobs_ref, beta: [beta * a for a in logprobs],
                    "the reference is missing: long answers would have a low reward only for being long",
                ),
                Mistake(
                    lambda logprobs, logprobs_ref, beta: reward(logprobs, logprobs_ref, 1 / beta),
                    "this divides by β: the reward is β times the log ratio",
                ),
            ],
            gradient_of=("logprobs",),
        ),
        Compared(
            "dpo_loss",
            loss_of(margin_of),
            CASES,
            [
                Mistake(
                    loss_of(lambda *x: -margin_of(*x)),
                    "chosen and rejected are exchanged (or a sign is): this makes the rejected answer likelier",
                ),
                Mistake(
                    _mean(lambda *x: log_sigmoid(margin_of(*x))),
                    "the minus before the logarithm is missing: this rises where it should fall",
                ),
                Mistake(
                    loss_of(lambda c, r, cr, rr, b: b * (c - r)),
                    "the reference is not used: the loss then asks for a margin that the reference may have had all "
                    "along, and nothing holds the policy near it",
                ),
                Mistake(
                    loss_of(lambda c, r, cr, rr, b: (c - cr) - (r - rr)),
                    "β is missing: it says how far from the reference a preference may pull",
                ),
                Mistake(
                    _mean(lambda c, r, cr, rr, b: -b * log_sigmoid((c - cr) - (r - rr))),
                    "β stands before the logarithm, where it only scales the step; it belongs inside of the sigmoid",
                ),
                Mistake(
                    loss_of(lambda c, r, cr, rr, b: b * (c - cr) - (r - rr)),
                    "β multiplies only the chosen answer: a bracket is missing",
                ),
                Mistake(
                    loss_of(lambda c, r, cr, rr, b: b * ((c - rr) - (r - cr))),
                    "the references count with the wrong sign: they are exchanged, or added and not subtracted. Each "
                    "answer is compared with its own reference, and a ratio is a difference of logarithms",
                ),
                Mistake(
                    lambda chosen, rejected, chosen_ref, rejected_ref, beta: sum(
                        _each(lambda *x: -log_sigmoid(margin_of(*x)), chosen, rejected, chosen_ref, rejected_ref, beta)
                    ),
                    "this is the sum over the pairs",
                ),
                Mistake(
                    _mean(lambda c, r, cr, rr, b: ((c - cr) - (r - rr) - 1 / (2 * b)) ** 2),
                    "this is IPO's squared loss: DPO's is −log of a sigmoid",
                ),
            ],
            gradient_of=("chosen", "rejected"),
        ),
    ),
    hints=(
        "At the start of training policy and reference are the same. What is every implicit reward, and what the loss?",
        "The loss is that of exercise 12, where the scores are implicit rewards.",
        "Four numbers for every pair. Which two belong to the same answer? Subtract within an answer first.",
        "`torch.nn.functional.logsigmoid`, of β times the difference of two differences; then the mean, with a minus.",
    ),
)
