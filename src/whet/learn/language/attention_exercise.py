"""Causal self-attention: a weighted mean of the values so far."""

from __future__ import annotations

import math
from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Matrix, Vector, softmax

Heads = list[Matrix]  # (heads, tokens, width)
SMALL = {
    "queries": [[[1.0, 0.0], [0.0, 1.0]]],
    "keys": [[[1.0, 0.0], [0.0, 2.0]]],
    "values": [[[1.0, 2.0], [3.0, 4.0]]],
}
# Three different lengths, so that no two of them can be confused: 2 heads, 4 tokens, width 3.
LARGER = {
    name: [[[math.sin(seed + 7 * h + 3 * t + 2 * d) for d in range(3)] for t in range(4)] for h in range(2)]
    for seed, name in enumerate(("queries", "keys", "values"))
}
HUGE = {**LARGER, "queries": [[[9000.0 * x for x in row] for row in head] for head in LARGER["queries"]]}


def _attended(
    weigh: Callable[[Matrix], Matrix], queries: Heads, keys: Heads, values: Heads, scale: float | None = None
) -> Heads:
    out = []
    for q, k, v in zip(queries, keys, values, strict=True):
        factor = 1 / math.sqrt(len(q[0])) if scale is None else scale
        scores = [[factor * sum(a * b for a, b in zip(one, other, strict=True)) for other in k] for one in q]
        weights = weigh(scores)
        out.append(
            [[sum(w * row[d] for w, row in zip(line, v, strict=True)) for d in range(len(v[0]))] for line in weights]
        )
    return out


def _causal(scores: Matrix) -> Matrix:
    return [_filled(softmax(row[: t + 1]), len(row)) for t, row in enumerate(scores)]


def _filled(weights: Vector, length: int) -> Vector:
    return weights + [0.0] * (length - len(weights))


def _everything(scores: Matrix) -> Matrix:
    return [softmax(row) for row in scores]


def _masked_afterwards(scores: Matrix) -> Matrix:
    return [_filled(softmax(row)[: t + 1], len(row)) for t, row in enumerate(scores)]


def _masked_by_zero(scores: Matrix) -> Matrix:
    return [softmax(_filled(row[: t + 1], len(row))) for t, row in enumerate(scores)]


def _anticausal(scores: Matrix) -> Matrix:
    return [[0.0] * t + softmax(row[t:]) for t, row in enumerate(scores)]


def _over_queries(scores: Matrix) -> Matrix:
    columns = [[0.0] * t + softmax([row[t] for row in scores[t:]]) for t in range(len(scores))]
    return [list(row) for row in zip(*columns, strict=True)]


def _unnormalised(scores: Matrix) -> Matrix:
    return [_filled([math.exp(score) for score in row[: t + 1]], len(row)) for t, row in enumerate(scores)]


def attention(queries: Heads, keys: Heads, values: Heads) -> Heads:
    return _attended(_causal, queries, keys, values)


def _variant(weigh: Callable[[Matrix], Matrix]) -> Callable[..., Heads]:
    return lambda queries, keys, values: _attended(weigh, queries, keys, values)


def _scaled(scale: Callable[[int, int], float]) -> Callable[..., Heads]:
    return lambda queries, keys, values: _attended(
        _causal, queries, keys, values, scale(len(queries[0]), len(queries[0][0]))
    )


EXERCISE = Exercise(
    name="attention",
    title="causal attention",
    phase="language models",
    chapter="03-attention.md",
    checks=(
        Compared(
            "causal_attention",
            attention,
            [
                Case(SMALL),
                Case(LARGER),
                Case(
                    HUGE,
                    "with scores of several hundred the result is wrong: exp of such a number is infinite, and "
                    "inf / inf is nan. A softmax does not change if the same number is subtracted from all scores",
                ),
            ],
            [
                Mistake(
                    _variant(_everything),
                    "every token also sees the tokens after it: it could copy the token that it should predict, and in "
                    "sampling these do not exist yet",
                ),
                Mistake(
                    _variant(_masked_afterwards),
                    "the weights of a row do not add up to 1: the future was removed after the softmax, when it had "
                    "already taken its share",
                ),
                Mistake(
                    _variant(_masked_by_zero),
                    "the future still has weight: a score of 0 is no exclusion, since exp(0) is 1. Which score has the "
                    "weight 0?",
                ),
                Mistake(
                    _variant(_anticausal),
                    "the mask is the wrong way round: a token sees itself and what comes after it, and nothing before "
                    "it",
                ),
                Mistake(
                    _variant(_over_queries),
                    "the softmax goes over the queries, and should go over the keys: the weights that one token gives "
                    "to the others must add up to 1",
                ),
                Mistake(
                    _scaled(lambda tokens, width: 1.0),
                    "the scores are not scaled: a sum of d products has a standard deviation of √d, so with wide heads "
                    "the softmax would be nearly one-hot, and its gradient nearly 0",
                ),
                Mistake(
                    _scaled(lambda tokens, width: 1 / width),
                    "the scores are divided by the width; it is the standard deviation of a sum of d products that has "
                    "to go, and that is smaller than d",
                ),
                Mistake(
                    _scaled(lambda tokens, width: 1 / math.sqrt(tokens)),
                    "the scores are scaled by the number of tokens: what grows with the length of a vector is the "
                    "width of a head",
                ),
                Mistake(
                    lambda queries, keys, values: attention(keys, queries, values),
                    "queries and keys are exchanged: row t of the scores belongs to the query at t",
                ),
                Mistake(
                    _variant(_unnormalised),
                    "the weights of a row do not add up to 1: they are exponentials that nobody divided by their sum",
                ),
                Mistake(
                    lambda queries, keys, values: attention(queries, keys, keys),
                    "the mean is one of the keys: keys say where to look, and values are what is seen",
                ),
            ],
            gradient_of=("queries", "values"),
        ),
    ),
    hints=(
        "What may the first token see? Whatever its query says, its result is its own value. Check that by hand.",
        "There is one score for every pair of a query and a key: a (tokens, tokens) table for every head. How is it "
        "a product of two matrices?",
        "The future is excluded before the softmax, by a score whose exponential is 0.",
        "`torch.ones(T, T).triu(1)` marks the places above the diagonal; `masked_fill` sets a number there.",
    ),
)
