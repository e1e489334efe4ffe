"""Generalised advantage estimation."""

from __future__ import annotations

from dataclasses import dataclass

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Mask, Matrix

T, F = True, False
BATCH = {
    "rewards": [[0.0, 1.0, 0.0, 2.0, 0.0], [1.0, -1.0, 0.5, 7.0, 7.0], [0.0, 0.0, 0.0, 1.0, 7.0]],
    "values": [[0.5, 0.2, 1.0, 1.5, 0.3], [0.4, 0.1, 0.9, 5.0, 5.0], [0.2, 0.6, 0.3, 0.8, 5.0]],
    "mask": [[T, T, T, T, T], [T, T, T, F, F], [T, T, T, T, F]],
}
SMALL = {"rewards": [[0.0, 1.0]], "values": [[0.5, 0.25]], "mask": [[T, T]], "gamma": 0.5, "lam": 0.5}
CASES = [
    Case(SMALL),
    Case({**BATCH, "gamma": 0.9, "lam": 0.8}),
    Case({**BATCH, "gamma": 1.0, "lam": 1.0}),
    Case({**BATCH, "gamma": 0.9, "lam": 0.0}),
]


@dataclass(frozen=True)
class Variant:
    """A_t = Σ_k decay^k·δ_{t+k}, with ways to get it wrong."""

    discounts_next: bool = True
    sees_next: bool = True
    repeats_last: bool = False  # after the end the last value is taken for the next one
    reads_padding: bool = False
    sign: float = 1.0  # of V_{t+1} − V_t
    gamma_in_decay: bool = True
    lam_in_decay: bool = True
    forwards: bool = False
    plus_values: bool = False

    def __call__(self, rewards: Matrix, values: Matrix, mask: Mask, gamma: float, lam: float) -> Matrix:
        decay = (gamma if self.gamma_in_decay else 1.0) * (lam if self.lam_in_decay else 1.0)
        rows = []
        for reward, value, marks in zip(rewards, values, mask, strict=True):
            count = sum(marks)
            deltas = [reward[t] + self.sign * self._step(value, t, count, gamma) for t in range(count)]
            sums = [
                sum(decay ** abs(s - t) * deltas[s] for s in range(count) if (s <= t if self.forwards else s >= t))
                + (value[t] if self.plus_values else 0.0)
                for t in range(count)
            ]
            rows.append(sums + [0.0] * (len(reward) - count))
        return rows

    def _step(self, value: list[float], t: int, count: int, gamma: float) -> float:
        after = value[t + 1] if t + 1 < (len(value) if self.reads_padding else count) else 0.0
        if self.repeats_last and t + 1 == count:
            after = value[t]
        return (gamma if self.discounts_next else 1.0) * after * self.sees_next - value[t]


gae = Variant()


def _leaking(rewards: Matrix, values: Matrix, mask: Mask, gamma: float, lam: float) -> Matrix:
    """The loop goes through the padding, with the values that stand there, and only the result is masked."""
    masked = [[r * mark for r, mark in zip(row, marks, strict=True)] for row, marks in zip(rewards, mask, strict=True)]
    found = gae(masked, values, [[True] * len(row) for row in mask], gamma, lam)
    return [[a * mark for a, mark in zip(row, marks, strict=True)] for row, marks in zip(found, mask, strict=True)]


def _rewards_alone(rewards: Matrix, values: Matrix, mask: Mask, gamma: float, lam: float) -> Matrix:
    return gae(rewards, [[0.0] * len(row) for row in values], mask, gamma, lam)


EXERCISE = Exercise(
    name="gae",
    title="generalised advantage estimation",
    phase="policy gradients",
    chapter="08-gae.md",
    checks=(
        Compared(
            "gae",
            gae,
            CASES,
            [
                Mistake(
                    Variant(lam_in_decay=False),
                    "λ is not used: the sum of δ is discounted by γ alone, which is the return less the value (λ = 1)",
                ),
                Mistake(
                    Variant(gamma_in_decay=False),
                    "the sum of δ is discounted by λ alone, and should be by γ·λ: a later δ is also a later reward",
                ),
                Mistake(
                    Variant(discounts_next=False),
                    "γ is missing in δ: the value of the next state is worth less, by γ, than if it were here",
                ),
                Mistake(
                    Variant(sees_next=False),
                    "δ lacks the value of the next state: then it compares one reward with all that was still expected",
                ),
                Mistake(
                    Variant(repeats_last=True),
                    "after the last token the last value is taken for the next one: the row has ended, and what "
                    "follows is worth 0",
                ),
                Mistake(
                    Variant(reads_padding=True),
                    "the value at the padding is taken for the next one of the last token: nothing follows it, which "
                    "is worth 0",
                ),
                Mistake(
                    _leaking,
                    "what stands at the padding for values flows into the advantages of real tokens: mask the values, "
                    "not only the result",
                ),
                Mistake(
                    Variant(sign=-1.0),
                    "the signs in δ are exchanged: it is what was got and is now expected, less what was expected "
                    "before",
                ),
                Mistake(
                    Variant(forwards=True),
                    "the sum goes over the past: an advantage is about what came after the token",
                ),
                Mistake(
                    Variant(lam_in_decay=False, gamma_in_decay=False),
                    "the δ are summed without any discount",
                ),
                Mistake(
                    Variant(plus_values=True),
                    "these are the targets of the critic, A + V; the advantage is without V",
                ),
                Mistake(
                    _rewards_alone,
                    "the values are not used: without a critic this is a discounted sum of rewards",
                ),
            ],
        ),
        Compared(
            "value_targets",
            Variant(plus_values=True),
            CASES,
            [
                Mistake(
                    gae,
                    "these are the advantages: a critic that is trained on them learns to predict how wrong it was",
                ),
                Mistake(
                    Variant(lam_in_decay=False, plus_values=True),
                    "these are the returns, A + V with λ = 1: with the same λ as the advantage the target has less "
                    "variance",
                ),
            ],
        ),
    ),
    hints=(
        "First write only δ_t = r_t + γ·V_{t+1} − V_t. What stands for V_{t+1} at the last token of a row?",
        "With λ = 0 the advantage is δ alone, with λ = 1 it is the discounted return less the value. Try both on two "
        "tokens.",
        "A_t = δ_t + γ·λ·A_{t+1}: one running number per row, from the last token to the first.",
        "Padding: let neither its value nor its reward into the loop, e.g. by multiplying both with the mask first.",
    ),
)
