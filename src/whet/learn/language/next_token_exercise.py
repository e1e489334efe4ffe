"""The loss of a language model: cross-entropy of the next token, on the tokens that are trained."""

from __future__ import annotations

import math
from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Mask, Matrix, Vector, log_softmax, mean, softmax

Batch = list[Matrix]
T, F = True, False
SMALL = {"logits": [[[2.0, 0.0], [0.0, 1.0], [3.0, 3.0]]], "tokens": [[0, 1, 0]], "mask": [[F, T, T]]}
LARGER = {
    "logits": [[[math.sin(5 * b + 3 * t + v * v) * 2 for v in range(4)] for t in range(5)] for b in range(3)],
    "tokens": [[3, 1, 0, 2, 1], [0, 2, 2, 3, 0], [1, 3, 0, 0, 0]],
    "mask": [[F, F, T, T, T], [T, T, T, T, F], [F, F, T, F, F]],
}
HUGE = {**SMALL, "logits": [[[2000.0, 0.0], [0.0, 1000.0], [3.0, 3.0]]]}


def losses_of_rows(logits: Batch, tokens: list[list[int]], mask: Mask, offset: int = 1, late: int = 0) -> Matrix:
    """−log p of the trained tokens of each row; logits stand `offset` places before their token."""
    rows = []
    for row, ids, marks in zip(logits, tokens, mask, strict=True):
        places = [t for t in range(max(1, offset), len(ids)) if marks[t - late]]
        rows.append([-log_softmax(row[t - offset])[ids[t]] for t in places])
    return rows


def joined(rows: Matrix) -> Vector:
    return [number for row in rows for number in row]


def loss(logits: Batch, tokens: list[list[int]], mask: Mask) -> float:
    return mean(joined(losses_of_rows(logits, tokens, mask)))


def unshifted(logits: Batch, tokens: list[list[int]], mask: Mask, first: int = 0) -> float:
    pairs = [
        -log_softmax(row[t])[ids[t]]
        for row, ids, marks in zip(logits, tokens, mask, strict=True)
        for t in range(first, len(ids))
        if marks[t]
    ]
    return mean(pairs)


def shifted_backwards(logits: Batch, tokens: list[list[int]], mask: Mask, late: int = 0) -> float:
    pairs = [
        -log_softmax(row[t + 1])[ids[t]]
        for row, ids, marks in zip(logits, tokens, mask, strict=True)
        for t in range(len(ids) - 1)
        if marks[t + late]
    ]
    return mean(pairs)


def _total(logits: Batch, tokens: list[list[int]], mask: Mask) -> float:
    return sum(joined(losses_of_rows(logits, tokens, mask)))


def _divided(count: Callable[[Mask], int]) -> Callable[..., float]:
    return lambda logits, tokens, mask: _total(logits, tokens, mask) / count(mask)


def _of_probabilities(logits: Batch, tokens: list[list[int]], mask: Mask) -> float:
    return -mean(
        [
            softmax(row[t - 1])[ids[t]]
            for row, ids, marks in zip(logits, tokens, mask, strict=True)
            for t in range(1, len(ids))
            if marks[t]
        ]
    )


def _no_mask(mask: Mask) -> Mask:
    return [[True] * len(row) for row in mask]


EXERCISE = Exercise(
    name="next-token",
    title="cross-entropy of shifted tokens",
    phase="language models",
    chapter="04-language-modelling.md",
    checks=(
        Compared(
            "next_token_loss",
            loss,
            [
                Case(SMALL),
                Case(LARGER),
                Case(
                    HUGE,
                    "with logits of a thousand the loss is wrong: exp of it is infinite, and the log of a probability "
                    "that rounds to 0 is −inf. `log_softmax` computes the log without the probability",
                ),
            ],
            [
                Mistake(
                    unshifted,
                    "logits and tokens are compared at the same place: the model is trained to repeat the token that "
                    "it has just read. The loss falls quickly to 0, and samples are one token again and again",
                ),
                Mistake(
                    lambda logits, tokens, mask: unshifted(logits, tokens, mask, first=1),
                    "logits and tokens are compared at the same place: the model is trained to repeat the token that "
                    "it has just read. The loss falls quickly to 0, and samples are one token again and again",
                ),
                Mistake(
                    shifted_backwards,
                    "the shift goes the wrong way: the logits at t are compared with the token before. They belong to "
                    "the token after",
                ),
                Mistake(
                    lambda logits, tokens, mask: shifted_backwards(logits, tokens, mask, late=1),
                    "the shift goes the wrong way: the logits at t are compared with the token before. They belong to "
                    "the token after",
                ),
                Mistake(
                    lambda logits, tokens, mask: mean(joined(losses_of_rows(logits, tokens, mask, late=1))),
                    "the mask is one place off: it says which tokens are trained, so it moves along with the tokens "
                    "and not with the logits. The last token of the prompt is trained, and the end of the answer is "
                    "not",
                ),
                Mistake(
                    lambda logits, tokens, mask: loss(logits, tokens, _no_mask(mask)),
                    "the mask is not used: prompts and padding are trained too",
                ),
                Mistake(
                    lambda logits, tokens, mask: mean(
                        [mean(row) for row in losses_of_rows(logits, tokens, mask) if row]
                    ),
                    "this is the mean of the means of the rows: a token of a short row counts more than one of a long "
                    "row. Asked for is the mean over all trained tokens of the batch",
                ),
                Mistake(
                    _divided(lambda mask: sum(len(row) - 1 for row in mask)),
                    "the sum is divided by all places, trained or not: with more padding the same tokens have a "
                    "smaller loss, and a smaller gradient",
                ),
                Mistake(
                    _divided(lambda mask: sum(len(row) for row in mask)),
                    "the sum is divided by all places, trained or not: with more padding the same tokens have a "
                    "smaller loss, and a smaller gradient",
                ),
                Mistake(
                    _divided(lambda mask: sum(map(sum, mask))),
                    "the sum is divided by the marks of the mask, of which one may stand at the first token, which "
                    "nothing predicts: it adds nothing to the sum",
                ),
                Mistake(_total, "this is the sum over the tokens: the gradient would grow with the size of the batch"),
                Mistake(
                    _of_probabilities,
                    "a log is missing: this is minus the probability of the token",
                ),
            ],
            gradient_of=("logits",),
        ),
    ),
    hints=(
        "Which logits predict the first token? And which token do the last logits predict? Both have no partner.",
        "Drop one column of the logits and one column of the tokens so that what is left stands one above the other. "
        "Which of these two cuts does the mask need?",
        "`log_softmax` over the vocabulary, then `gather` at the tokens: one log-prob per place, (rows, tokens − 1).",
        "Multiply by the mask, sum everything, and divide by what? By the number of terms that are in the sum.",
    ),
)
