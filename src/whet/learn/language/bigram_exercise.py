"""Counting which token follows which, and sampling from the counts."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Matrix, Vector, mean, softmax

IDS = [0, 1, 0, 1, 1, 2, 0, 0, 1]
COUNTS = [[1.0, 3.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
TABLE = [[0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.0, 0.2, 0.8]]
UNIFORMS = [0.05, 0.65, 0.3, 0.99, 0.1, 0.75, 0.5, 0.2]


def counts(ids: list[int], size: int) -> Matrix:
    return _counted(list(pairwise(ids)), size)


def _counted(pairs: list[tuple[int, int]], size: int) -> Matrix:
    return [[float(sum(pair == (a, b) for pair in pairs)) for b in range(size)] for a in range(size)]


def probabilities(counts: Matrix, smoothing: float) -> Matrix:
    return [[(count + smoothing) / (sum(row) + smoothing * len(row)) for count in row] for row in counts]


def loss(probabilities: Matrix, ids: list[int]) -> float:
    return mean([-math.log(probabilities[a][b]) for a, b in pairwise(ids)])


def _losses(probabilities: Matrix, ids: list[int]) -> Vector:
    return [-math.log(probabilities[a][b]) for a, b in pairwise(ids)]


def sample(probabilities: Matrix, first: int, uniforms: Vector) -> list[int]:
    tokens = [first]
    for uniform in uniforms:
        tokens.append(_drawn(probabilities[tokens[-1]], uniform))
    return tokens


def _drawn(row: Vector, uniform: float) -> int:
    return next((token for token, total in enumerate(accumulate(row)) if uniform < total), len(row) - 1)


def _never_moves(probabilities: Matrix, first: int, uniforms: Vector) -> list[int]:
    return [first, *(_drawn(probabilities[first], uniform) for uniform in uniforms)]


def _greedy(probabilities: Matrix, first: int, uniforms: Vector) -> list[int]:
    tokens = [first]
    for _ in uniforms:
        row = probabilities[tokens[-1]]
        tokens.append(row.index(max(row)))
    return tokens


def _transposed(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


EXERCISE = Exercise(
    name="bigrams",
    title="bigram counts and sampling",
    phase="language models",
    chapter="01-bigrams.md",
    checks=(
        Compared(
            "bigram_counts",
            counts,
            [Case({"ids": [0, 1, 0, 1], "size": 2}), Case({"ids": IDS, "size": 3}), Case({"ids": [2], "size": 3})],
            [
                Mistake(
                    lambda ids, size: _transposed(counts(ids, size)),
                    "rows and columns are exchanged: a row belongs to the token that comes first, because a row "
                    "will become the distribution of what follows it",
                ),
                Mistake(
                    lambda ids, size: _counted(list(pairwise([*ids, ids[0]])), size),
                    "the last token is counted as followed by the first: a text is no ring",
                ),
                Mistake(
                    lambda ids, size: _counted(list(pairwise(ids))[::2], size),
                    "every second pair is missing: a token ends one pair and begins the next",
                ),
                Mistake(
                    lambda ids, size: _counted(list(pairwise(ids))[:-1], size),
                    "the last pair is missing: of n tokens there are n − 1 pairs",
                ),
                Mistake(
                    lambda ids, size: [[min(1.0, count) for count in row] for row in counts(ids, size)],
                    "a pair that occurs twice counts once: with tensors, `counts[a, b] += 1` on lists of indices adds "
                    "only once for indices that repeat",
                ),
            ],
        ),
        Compared(
            "next_probabilities",
            probabilities,
            [Case({"counts": COUNTS, "smoothing": 1.0}), Case({"counts": COUNTS, "smoothing": 0.5})],
            [
                Mistake(
                    lambda counts, smoothing: _transposed(probabilities(_transposed(counts), smoothing)),
                    "the columns add up to 1, and the rows should: a row is the distribution of the next token",
                ),
                Mistake(
                    lambda counts, smoothing: probabilities(counts, 0.0),
                    "the smoothing is not used: a pair that never occurred gets probability 0, and one such pair "
                    "in a held-out text makes its loss infinite",
                ),
                Mistake(
                    lambda counts, smoothing: [[(c + smoothing) / sum(row) for c in row] for row in counts],
                    "the rows add up to more than 1: the smoothing is in the numerator and not in the total",
                ),
                Mistake(
                    lambda counts, smoothing: [softmax(row) for row in counts],
                    "this is the softmax of the counts, which would be right for logits: counts are divided by their "
                    "sum",
                ),
                Mistake(
                    lambda counts, smoothing: [
                        [(c + smoothing) / sum(x + smoothing for r in counts for x in r) for c in row] for row in counts
                    ],
                    "all entries together add up to 1, so this is the probability of a pair. Asked for is that of the "
                    "next token where the one before it is known: every row adds up to 1",
                ),
            ],
        ),
        Compared(
            "mean_loss",
            loss,
            [
                Case({"probabilities": [[0.5, 0.5], [0.25, 0.75]], "ids": [0, 1, 1]}),
                Case({"probabilities": [[0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], "ids": IDS}),
            ],
            [
                Mistake(
                    lambda probabilities, ids: sum(_losses(probabilities, ids)),
                    "this is the sum over the tokens: it grows with the text, so two texts cannot be compared",
                ),
                Mistake(
                    lambda probabilities, ids: loss(probabilities, ids) / math.log(2),
                    "this is in bits (log to the base 2); losses of language models are in nats, the natural log",
                ),
                Mistake(
                    lambda probabilities, ids: sum(_losses(probabilities, ids)) / len(ids),
                    "the sum is divided by the number of tokens, and only n − 1 of them are predicted: the first is "
                    "not",
                ),
                Mistake(
                    lambda probabilities, ids: -math.log(mean([probabilities[a][b] for a, b in pairwise(ids)])),
                    "this is the log of the mean probability; a loss is the mean of the logs, because probabilities "
                    "of independent steps multiply",
                ),
                Mistake(
                    lambda probabilities, ids: loss(_transposed(probabilities), ids),
                    "the loss reads the table by the wrong index: the row is the token before",
                ),
            ],
        ),
        Compared(
            "sample",
            sample,
            [
                Case({"probabilities": TABLE, "first": 0, "uniforms": [0.05, 0.5]}),
                Case({"probabilities": TABLE, "first": 2, "uniforms": UNIFORMS}),
            ],
            [
                Mistake(
                    _never_moves,
                    "every token is drawn from the row of the first one: the chain never moves on to the row of "
                    "the token that was just drawn",
                ),
                Mistake(
                    _greedy,
                    "this always takes the likeliest token and ignores the random numbers: that is greedy decoding",
                ),
                Mistake(
                    lambda probabilities, first, uniforms: sample(probabilities, first, uniforms)[1:],
                    "the first token is missing in the result",
                ),
                Mistake(
                    lambda probabilities, first, uniforms: sample(probabilities, first, uniforms)[:-1],
                    "one token is missing at the end: every random number draws one more token",
                ),
            ],
        ),
    ),
    hints=(
        "Take the text 0 1 0 1 and write its pairs on paper: (0,1), (1,0), (0,1). How many pairs has a text of n "
        "tokens?",
        "A row of the table belongs to the token before, a column to the token after. What must a row of "
        "probabilities add up to, with the smoothing too?",
        "For sampling, put the probabilities of the row side by side on the line from 0 to 1; the random number "
        "falls into one of the pieces. Running totals say where the pieces end.",
        "After a token was drawn, it is the one whose row counts next. The list begins with `first`.",
    ),
)
