"""Every method a second time, in plain Python with loops, straight from the formulas of the papers.

Nothing here comes from whet.algorithms. `ROWS` says again which formulas make up which method, so a wrong cell in the
table is found as well as a wrong formula. Sums run over `trained(mask)`: what is off the mask is never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import exp, prod, sqrt
from typing import Any

import numpy as np

from .batches import MAX_TOKENS, Array, Case
from .oracle_surrogates import SURROGATES


@dataclass(frozen=True)
class Row:
    """A method by the names of its formulas."""

    advantage: str
    surrogate: str
    weighting: str
    scaling: str = "unscaled"
    kl: str = "k3"
    place: str = "loss"
    importance_correction: str = "uncorrected"
    dynamic_sampling: str = "keep_all"
    options: dict[str, float] = field(default_factory=dict)  # of the surrogate


def paid(advantage: str, surrogate: str, weighting: str, scaling: str = "unscaled") -> Row:
    return Row(advantage, surrogate, weighting, scaling, kl="k1", place="reward")


ROWS = {
    "reinforce": paid("raw", "reinforce", "sequence_sum"),
    "rloo": paid("leave_one_out", "reinforce", "sequence_sum"),
    "remax": paid("over_greedy", "reinforce", "sequence_sum"),
    "opo": paid("over_length", "reinforce", "sequence_sum"),
    "maxrl": Row("max_likelihood", "reinforce", "sequence_sum"),
    "online_dpo": Row("best_over_worst", "reinforce", "sequence_sum"),
    "gpg": Row("over_valid", "reinforce", "token_mean"),
    "ppo": paid("gae", "clip", "token_mean", "whiten"),
    "reinforce_pp": paid("to_go", "clip", "token_mean", "whiten"),
    "reinforce_pp_baseline": paid("center", "clip", "token_mean", "whiten"),
    "grpo": Row("standardize", "clip", "sequence_mean"),
    "dr_grpo": Row("center", "clip", "budget_mean"),
    "dapo": Row("standardize", "clip", "token_mean", dynamic_sampling="drop_zero_variance", options={"high": 0.28}),
    "cispo": Row("standardize", "stopped_ratio", "token_mean"),
    "sapo": Row("standardize", "soft_gate", "sequence_mean"),
    "gspo": Row("standardize", "sequence_clip", "sequence_mean"),
    "gmpo": Row("standardize", "geometric_clip", "sequence_mean"),
}


def trained(mask: Any) -> Iterator[tuple[int, int]]:
    for b in range(len(mask)):
        for t in range(len(mask[b])):
            if mask[b][t]:
                yield b, t


def places(mask: Any, b: int) -> list[int]:
    return [t for t in range(len(mask[b])) if mask[b][t]]


@dataclass(frozen=True)
class Step:
    """Everything of a step that does not depend on the log-probs of the policy, computed once."""

    row: Row
    case: Case
    kl_coefficient: float
    entropy: float
    advantages: Array
    correction: Array
    weights: Array


def prepare(row: Row, case: Case, *, kl_coefficient: float = 0.0, entropy: float = 0.0) -> Step:
    case = kept(row, case)
    correction, weights = np.full(case.mask.shape, np.nan), np.full(case.mask.shape, np.nan)
    for b, t in trained(case.mask):
        correction[b, t] = CORRECTIONS[row.importance_correction](case, b, t)
        weights[b, t] = WEIGHTINGS[row.weighting](case.mask, b)
    advantages = step_advantages(row, case, kl_coefficient)
    return Step(row, case, kl_coefficient, entropy, advantages, correction, weights)


def step_loss(step: Step, new: Array) -> float:
    """The loss of a step at the log-probs `new`; what stops the gradient stays at `case.new`."""
    return sum(row_loss(step, new, b) for b in range(len(new)))


def row_loss(step: Step, new: Array, b: int) -> float:
    """The part of rollout b: it reads no log-probs of other rollouts."""
    row, case, total = step.row, step.case, 0.0
    everything = sum(1 for _ in trained(case.mask))
    for t in places(case.mask, b):
        term = SURROGATES[row.surrogate](new, case, step.advantages, b, t, **row.options) * step.correction[b, t]
        if row.place == "loss":
            term += step.kl_coefficient * KL[row.kl](new[b, t], case.old[b, t], case.ref[b, t])
        total += term * step.weights[b, t] - step.entropy * case.entropies[b, t] / everything
    return total


def kept(row: Row, case: Case) -> Case:
    """A group that the method drops is one that nothing is trained on."""
    mask = case.mask.copy()
    for p, rewards in enumerate(case.rewards.tolist()):
        if row.dynamic_sampling == "drop_zero_variance" and len(set(rewards)) == 1:
            mask[p * len(rewards) : (p + 1) * len(rewards)] = False
    return replace(case, mask=mask)


def step_advantages(row: Row, case: Case, kl_coefficient: float) -> Array:
    """(B, T), NaN off the mask so that no formula can read it by mistake."""
    prompts, group = case.rewards.shape
    in_reward = kl_coefficient if row.place == "reward" else 0.0
    penalty = np.full(case.mask.shape, np.nan)
    for b, t in trained(case.mask):
        penalty[b, t] = in_reward * KL[row.kl](case.old[b, t], case.old[b, t], case.ref[b, t])
    rewards = [
        [
            case.rewards[p, g] - sum(penalty[p * group + g, t] for t in places(case.mask, p * group + g))
            for g in range(group)
        ]
        for p in range(prompts)
    ]
    raw = np.full(case.mask.shape, np.nan)
    last = [max(places(case.mask, b), default=-1) for b in range(prompts * group)]
    earned = [
        [-penalty[b, t] + (t == last[b]) * case.rewards[b // group, b % group] for t in places(case.mask, b)]
        for b in range(prompts * group)
    ]
    for b in range(prompts * group):
        times = places(case.mask, b)
        if row.advantage in TOKEN_ADVANTAGES:
            raw[b, times] = TOKEN_ADVANTAGES[row.advantage](case, b, times, earned)
        else:
            raw[b, times] = ADVANTAGES[row.advantage](case, rewards, b // group, b % group)
    return SCALINGS[row.scaling](raw, case.mask, rewards)


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def deviation(numbers: list[float], lost: int) -> float:
    return sqrt(sum((x - mean(numbers)) ** 2 for x in numbers) / (len(numbers) - lost))


def leave_one_out(case: Case, r: Any, p: int, g: int) -> float:
    return r[p][g] - mean([r[p][j] for j in range(len(r[p])) if j != g])


def standardize(case: Case, r: Any, p: int, g: int) -> float:
    return (r[p][g] - mean(r[p])) / (deviation(r[p], 1) + 1e-6)


def over_length(case: Case, r: Any, p: int, g: int) -> float:
    tokens = [int(n) for n in case.counts[p]]
    return r[p][g] - sum(n * x for n, x in zip(tokens, r[p], strict=True)) / sum(tokens)


def over_valid(case: Case, r: Any, p: int, g: int) -> float:
    valid = sum(len(set(group)) > 1 for group in r)
    return len(r) / valid * (r[p][g] - mean(r[p]))


def max_likelihood(case: Case, r: Any, p: int, g: int) -> float:
    return 0.0 if sum(r[p]) == 0 else (r[p][g] - mean(r[p])) / mean(r[p])


def over_average(case: Case, r: Any, p: int, g: int) -> float:
    recent_first = list(reversed(case.history.tolist()))
    weights = [0.9**k for k in range(len(recent_first))]
    return r[p][g] - sum(w * h for w, h in zip(weights, recent_first, strict=True)) / sum(weights)


def best_over_worst(case: Case, r: Any, p: int, g: int) -> float:
    best, worst = r[p].index(max(r[p])), r[p].index(min(r[p]))
    if g not in (best, worst) or best == worst:
        return 0.0
    rows = [p * len(r[p]) + place for place in (best, worst)]
    better, worse = (sum(case.old[b, t] - case.ref[b, t] for t in places(case.mask, b)) for b in rows)
    return (1 if g == best else -1) * len(r[p]) * 0.1 / (1 + exp(0.1 * (better - worse)))


ADVANTAGES: dict[str, Any] = {
    "raw": lambda case, r, p, g: r[p][g],
    "over_batch": lambda case, r, p, g: r[p][g] - mean([x for group in r for x in group]),
    "over_average": over_average,
    "over_greedy": lambda case, r, p, g: r[p][g] - case.greedy[p],
    "center": lambda case, r, p, g: r[p][g] - mean(r[p]),
    "leave_one_out": leave_one_out,
    "standardize": standardize,
    "over_length": over_length,
    "over_valid": over_valid,
    "max_likelihood": max_likelihood,
    "best_over_worst": best_over_worst,
}


def gae(case: Case, b: int, times: list[int], rewards: list[list[float]]) -> list[float]:
    """Each advantage as its own sum over the later errors, no recursion; the chosen tokens are all there is of time."""
    v = [case.values[b, t] for t in times] + [0.0]
    errors = [rewards[b][k] + v[k + 1] - v[k] for k in range(len(times))]
    return [sum(0.95 ** (j - k) * errors[j] for j in range(k, len(times))) for k in range(len(times))]


def to_go_leave_one_out(
    case: Case, b: int, times: list[int], rewards: list[list[float]], *, gamma: float = 1.0, prefix: bool = True
) -> list[float]:
    """For each token a look at the other rollouts of the group: who has one there, and who said the same before."""
    group = case.rewards.shape[1]
    first = b // group * group
    said = {j: [int(case.tokens[j, t]) for t in places(case.mask, j)] for j in range(first, first + group)}

    def rest(j: int, k: int) -> float:
        return sum(gamma ** (s - k) * rewards[j][s] for s in range(k, len(rewards[j])))

    found = []
    for k in range(len(times)):
        there = [j for j in said if j != b and len(said[j]) > k]
        alike = [j for j in there if said[j][:k] == said[b][:k]]
        compared = alike if prefix and alike else there
        found.append(rest(b, k) - (mean([rest(j, k) for j in compared]) if compared else 0.0))
    return found


TOKEN_ADVANTAGES: dict[str, Any] = {  # of rollout b, of whose group and all others the rewards of tokens are given
    "gae": gae,
    "to_go": lambda case, b, times, rewards: [sum(rewards[b][k:]) for k in range(len(times))],
    "to_go_leave_one_out": to_go_leave_one_out,
}


def whiten(advantages: Array, mask: Any, rewards: Any) -> Array:
    chosen = [advantages[b, t] for b, t in trained(mask)]
    return (advantages - mean(chosen)) / (deviation(chosen, 0) + 1e-8)


def batch_deviation(advantages: Array, mask: Any, rewards: Any) -> Array:
    return advantages / (deviation([x for group in rewards for x in group], 1) + 1e-8)


SCALINGS: dict[str, Any] = {"unscaled": lambda a, *_: a, "whiten": whiten, "batch_deviation": batch_deviation}

KL: dict[str, Any] = {  # of one token: log-probs under the policy, the old policy and the reference
    "k1": lambda new, old, ref: new - ref,
    "k2": lambda new, old, ref: 0.5 * (new - ref) ** 2,
    "k3": lambda new, old, ref: exp(ref) / exp(new) - 1 - (ref - new),
    "unbiased": lambda new, old, ref: exp(new) / exp(old) * (exp(ref) / exp(new) - 1 - (ref - new)),
}


def token_ratio(case: Case, b: int, t: int) -> float:
    return exp(case.old[b, t]) / exp(case.sampled[b, t])


def sequence_ratio(case: Case, b: int, t: int) -> float:
    return prod(token_ratio(case, b, s) for s in places(case.mask, b))


def geometric_ratio(case: Case, b: int, t: int) -> float:
    return sequence_ratio(case, b, t) ** (1 / len(places(case.mask, b)))


def truncated(ratio: Any, high: float) -> Any:
    return lambda case, b, t: min(ratio(case, b, t), high)


def masked(ratio: Any, low: float, high: float) -> Any:
    return lambda case, b, t: ratio(case, b, t) if low <= ratio(case, b, t) <= high else 0.0


CORRECTIONS: dict[str, Any] = {
    "uncorrected": lambda case, b, t: 1.0,
    "token_truncate": truncated(token_ratio, 2.0),
    "sequence_truncate": truncated(sequence_ratio, 2.0),
    "geometric_truncate": truncated(geometric_ratio, 2.0),
    "token_mask": masked(token_ratio, 0.5, 5.0),
    "sequence_mask": masked(sequence_ratio, 0.0, 3.0),
    "geometric_mask": masked(geometric_ratio, 0.99, 1.01),
}


def sequences(mask: Any) -> int:
    return sum(1 for b in range(len(mask)) if places(mask, b))


WEIGHTINGS: dict[str, Any] = {  # of every trained token of row b
    "token_mean": lambda mask, b: 1 / sum(1 for _ in trained(mask)),
    "sequence_mean": lambda mask, b: 1 / len(places(mask, b)) / sequences(mask),
    "sequence_sum": lambda mask, b: 1 / sequences(mask),
    "budget_mean": lambda mask, b: 1 / MAX_TOKENS / sequences(mask),
}
