"""Returns-to-go: what a token can still be credited for."""

from __future__ import annotations

from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Mask, Matrix

T, F = True, False
CASES = [
    Case({"rewards": [[1.0, 2.0, 4.0]], "mask": [[T, T, T]], "gamma": 0.5}),
    Case(
        {
            "rewards": [[0.5, -1.0, 0.0, 2.0, 0.0], [1.0, 0.0, 3.0, 9.0, 9.0], [0.0, 0.0, 1.0, 1.0, 9.0]],
            "mask": [[T, T, T, T, T], [T, T, T, F, F], [T, T, T, T, F]],
            "gamma": 0.9,
        }
    ),
    Case({"rewards": [[0.0, 0.0, 1.0]], "mask": [[T, T, T]], "gamma": 1.0}),
]


def _summed(term: Callable[[list[float], int, int, float], float]) -> Callable[..., Matrix]:
    """G_t as Σ_s term(rewards of the row without padding, t, s, γ), and 0 at padding."""

    def table(rewards: Matrix, mask: Mask, gamma: float) -> Matrix:
        rows = []
        for row, marks in zip(rewards, mask, strict=True):
            real = row[: sum(marks)]
            sums = [sum(term(real, t, s, gamma) for s in range(len(real))) for t in range(len(real))]
            rows.append(sums + [0.0] * (len(row) - len(real)))
        return rows

    return table


def returns(rewards: Matrix, mask: Mask, gamma: float) -> Matrix:
    return _summed(lambda r, t, s, g: g ** (s - t) * r[s] if s >= t else 0.0)(rewards, mask, gamma)


def _unmasked(rewards: Matrix, mask: Mask, gamma: float) -> Matrix:
    return returns(rewards, [[True] * len(row) for row in mask], gamma)


def _masked_last(rewards: Matrix, mask: Mask, gamma: float) -> Matrix:
    found = _unmasked(rewards, mask, gamma)
    return [[g * m for g, m in zip(row, marks, strict=True)] for row, marks in zip(found, mask, strict=True)]


def _carried(rewards: Matrix, mask: Mask, gamma: float) -> Matrix:
    """One running sum for the whole batch, from the last row to the first."""
    running, rows = 0.0, []
    for row, marks in zip(reversed(rewards), reversed(mask), strict=True):
        out = []
        for reward, mark in zip(reversed(row), reversed(marks), strict=True):
            running = reward + gamma * running if mark else running
            out.append(running if mark else 0.0)
        rows.append(out[::-1])
    return rows[::-1]


EXERCISE = Exercise(
    name="returns-to-go",
    title="returns-to-go",
    phase="policy gradients",
    chapter="06-reinforce.md",
    checks=(
        Compared(
            "returns_to_go",
            returns,
            CASES,
            [
                Mistake(
                    _summed(lambda r, t, s, g: g**s * r[s]),
                    "every token gets the return of the whole row: no token can change a reward that came before it, "
                    "so that part is noise",
                ),
                Mistake(
                    _summed(lambda r, t, s, g: r[s]),
                    "every token gets the sum of all rewards of its row, also of those that came before it, and γ is "
                    "not used",
                ),
                Mistake(
                    _summed(lambda r, t, s, g: g ** (t - s) * r[s] if s <= t else 0.0),
                    "the sum goes over the past: a token is credited for what came before it, and not for what it led "
                    "to",
                ),
                Mistake(
                    _summed(lambda r, t, s, g: r[s] if s <= t else 0.0),
                    "the sum goes over the past: a token is credited for what came before it, and not for what it led "
                    "to",
                ),
                Mistake(
                    _summed(lambda r, t, s, g: r[s] if s >= t else 0.0),
                    "γ is not used: rewards of later tokens are to be discounted",
                ),
                Mistake(
                    _summed(lambda r, t, s, g: g**s * r[s] if s >= t else 0.0),
                    "the discount counts from the beginning of the row; it counts from the token: its own reward has "
                    "the factor 1, the next one γ",
                ),
                Mistake(
                    _summed(lambda r, t, s, g: g ** (s - t - 1) * r[s] if s > t else 0.0),
                    "the reward of the token itself is missing",
                ),
                Mistake(
                    _summed(lambda r, t, s, g: g ** (s - t + 1) * r[s] if s >= t else 0.0),
                    "there is one γ too many: the reward of the token itself is not discounted",
                ),
                Mistake(
                    _masked_last,
                    "numbers at padding flow into the returns of real tokens: mask the rewards, not only the result",
                ),
                Mistake(
                    _unmasked,
                    "the mask is not used: padding is taken for tokens, and what stands there for rewards",
                ),
                Mistake(
                    _carried,
                    "the running sum goes on from one row into another: every rollout begins with a sum of 0",
                ),
                Mistake(
                    lambda rewards, mask, gamma: [row[::-1] for row in returns(rewards, mask, gamma)],
                    "the returns are in reversed order: they were collected from the end, and not turned round",
                ),
            ],
        ),
    ),
    hints=(
        "For rewards 1, 2, 4 and γ = ½: what is the return at the last token? And at the one before it, if you know "
        "that?",
        "G_t = r_t + γ·G_{t+1}: go from the last token to the first, with one running number per row.",
        "Padding: its reward is not real, and its return is 0. If it is 0 before the loop, what does the loop do "
        "there?",
    ),
)
