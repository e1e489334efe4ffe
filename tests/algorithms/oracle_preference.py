"""Every preference and reward-model loss a second time, in plain Python with floats, from the formulas of the papers.

No formula comes from whet.algorithms: its tables only say what a loss is tried on. Probabilities are multiplied and
divided as the papers write them, so inputs must be moderate; extreme ones have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import exp, log
from typing import Any

import numpy as np

from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS

Number = dict[str, Any]  # the terms of one pair, or of one labelled completion


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def preferred(case: Number, beta: float) -> float:
    """The probability that the chosen wins, by Bradley and Terry: exp(r_w) / (exp(r_w) + exp(r_l))."""
    better = exp(beta * (case["chosen"] - case["chosen_ref"]))
    worse = exp(beta * (case["rejected"] - case["rejected_ref"]))
    return better / (better + worse)


def dpo(case: Number, beta: float = 0.1) -> float:
    return -log(preferred(case, beta))


def cdpo(case: Number, beta: float = 0.1, smoothing: float = 0.1) -> float:
    wins = preferred(case, beta)
    return -(1 - smoothing) * log(wins) - smoothing * log(1 - wins)


def robust_dpo(case: Number, beta: float = 0.1, smoothing: float = 0.1) -> float:
    wins = preferred(case, beta)
    return (-(1 - smoothing) * log(wins) + smoothing * log(1 - wins)) / (1 - 2 * smoothing)


def dpo_norm(case: Number, beta: float = 2.0) -> float:
    better = (case["chosen"] - case["chosen_ref"]) / case["chosen_tokens"]
    worse = (case["rejected"] - case["rejected_ref"]) / case["rejected_tokens"]
    return -log(sigmoid(beta * (better - worse)))


def ipo(case: Number, beta: float = 0.1, per_token: bool = False) -> float:
    better, worse = case["chosen"] - case["chosen_ref"], case["rejected"] - case["rejected_ref"]
    if per_token:
        better, worse = better / case["chosen_tokens"], worse / case["rejected_tokens"]
    return (better - worse - 0.5 / beta) ** 2


def hinge(case: Number, beta: float = 0.1) -> float:
    margin = beta * (case["chosen"] - case["chosen_ref"]) - beta * (case["rejected"] - case["rejected_ref"])
    return 0.0 if margin > 1 else 1 - margin


def simpo(case: Number, beta: float = 2.0, gamma: float = 1.0) -> float:
    better = beta / case["chosen_tokens"] * case["chosen"]
    worse = beta / case["rejected_tokens"] * case["rejected"]
    return -log(sigmoid(better - worse - gamma))


def orpo(case: Number, beta: float = 0.1) -> float:
    likely = [exp(case[side] / case[f"{side}_tokens"]) for side in ("chosen", "rejected")]
    odds = [p / (1 - p) for p in likely]
    return -log(likely[0]) - beta * log(sigmoid(log(odds[0] / odds[1])))


def cpo(case: Number, beta: float = 0.1, nll: float = 1.0) -> float:
    contrast = -log(sigmoid(beta * case["chosen"] - beta * case["rejected"]))
    return contrast - nll * case["chosen"] / case["chosen_tokens"]


def apo_zero(case: Number, beta: float = 0.1) -> float:
    better = sigmoid(beta * (case["chosen"] - case["chosen_ref"]))
    worse = sigmoid(beta * (case["rejected"] - case["rejected_ref"]))
    return 1 - better + worse


def apo_down(case: Number, beta: float = 0.1) -> float:
    return sigmoid(beta * (case["chosen"] - case["chosen_ref"])) + 1 - preferred(case, beta)


def sppo(case: Number, beta: float = 0.1) -> float:
    eta = 1 / beta
    won = case["chosen"] - case["chosen_ref"] - eta * (1 - 0.5)
    lost = case["rejected"] - case["rejected_ref"] - eta * (0 - 0.5)
    return won**2 + lost**2


def kto(case: Number, beta: float = 0.1, desirable: float = 1.0, undesirable: float = 1.0) -> float:
    ratio = case["logprobs"] - case["logprobs_ref"]
    if case["labels"]:
        return desirable - desirable * sigmoid(beta * (ratio - case["point"]))
    return undesirable - undesirable * sigmoid(beta * (case["point"] - ratio))


def bco(case: Number, beta: float = 0.1) -> float:
    likely = sigmoid(beta * (case["logprobs"] - case["logprobs_ref"] - case["point"]))
    return -log(likely) if case["labels"] else -log(1 - likely)


def bradley_terry(case: Number, centring: float = 0.0, smoothing: float = 0.0, use_margins: bool = False) -> float:
    better, worse = case["chosen_scores"], case["rejected_scores"]
    margin = case["margins"] if use_margins else 0.0
    kept = -log(sigmoid(better - worse - margin))
    flipped = -log(sigmoid(worse - better - margin))
    return (1 - smoothing) * kept + smoothing * flipped + centring * (better + worse) ** 2


def outcome(case: Number) -> float:
    right = sigmoid(case["scores"])
    return -log(right if case["labels"] else 1 - right)


def process(case: Number) -> float:
    return -log(exp(case["scores"][case["classes"]]) / sum(exp(score) for score in case["scores"]))


PAIRS = (dpo, cdpo, robust_dpo, dpo_norm, ipo, hinge, simpo, orpo, cpo, apo_zero, apo_down, sppo)
LOSSES: dict[str, Callable[..., float]] = {
    loss.__name__: loss for loss in (*PAIRS, kto, bco, bradley_terry, outcome, process)
}
OPTIONS: dict[str, list[dict[str, Any]]] = {  # settings to try besides the defaults
    "dpo": [{"beta": 0.5}],
    "cdpo": [{"beta": 0.3, "smoothing": 0.25}, {"smoothing": 0.0}],
    "robust_dpo": [{"beta": 0.3, "smoothing": 0.25}, {"smoothing": 0.0}],
    "dpo_norm": [{"beta": 0.7}],
    "ipo": [{"beta": 0.4}, {"per_token": True}],
    "hinge": [{"beta": 0.4}],
    "simpo": [{"beta": 1.3, "gamma": 0.2}, {"gamma": 0.0}],
    "orpo": [{"beta": 1.5}],
    "cpo": [{"beta": 0.4, "nll": 0.3}, {"nll": 0.0}],
    "apo_zero": [{"beta": 0.6}],
    "apo_down": [{"beta": 0.6}],
    "sppo": [{"beta": 0.4}],
    "kto": [{"beta": 0.6, "desirable": 1.5, "undesirable": 0.4}],
    "bco": [{"beta": 0.6}],
    "bradley_terry": [
        {"centring": 0.01},
        {"smoothing": 0.1},
        {"use_margins": True},
        {"centring": 0.3, "smoothing": 0.2, "use_margins": True},
    ],
    "outcome": [],
    "process": [],
}


def pairs(seed: int, count: int = 12) -> dict[str, np.ndarray]:
    """Completions of 1 to 9 tokens under a policy that has moved away from its reference."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for side in ("chosen", "rejected"):
        made[f"{side}_tokens"] = rng.integers(1, 10, count)
        made[side] = -rng.uniform(0.1, 2.5, count) * made[f"{side}_tokens"]
        made[f"{side}_ref"] = made[side] + rng.normal(0.0, 4.0, count)
    return made


def labelled(seed: int, count: int = 12) -> dict[str, np.ndarray]:
    """As many desirable as undesirable completions."""
    rng = np.random.default_rng(seed)
    logprobs = -rng.uniform(0.5, 30.0, count)
    labels = rng.permutation(np.arange(count) % 2 == 0)
    return {
        "logprobs": logprobs,
        "logprobs_ref": logprobs + rng.normal(0.0, 4.0, count),
        "labels": labels,
        "point": np.array(0.7),
    }


def scored(seed: int, count: int = 12) -> dict[str, np.ndarray]:
    """Scores of a reward model for pairs, with margins."""
    rng = np.random.default_rng(seed)
    return {
        "chosen_scores": rng.normal(0.5, 2.0, count),
        "rejected_scores": rng.normal(0.0, 2.0, count),
        "margins": rng.uniform(0.0, 3.0, count),
    }


def judged(seed: int, count: int = 12, classes: int = 0) -> dict[str, np.ndarray]:
    """Scores with labels: one number each, or one per class."""
    rng = np.random.default_rng(seed)
    if classes:
        return {"scores": rng.normal(0.0, 2.0, (count, classes)), "classes": rng.integers(0, classes, count)}
    return {"scores": rng.normal(0.0, 2.0, count), "labels": rng.integers(0, 2, count).astype(bool)}


def cases(name: str, seed: int) -> list[dict[str, np.ndarray]]:
    """The inputs that a loss is tried on, by what it learns from."""
    unit = PREFERENCES[name].unit if name in PREFERENCES else REWARDS[name].kind
    tried = {"pair": [pairs], "label": [labelled], "preference": [scored], "outcome": [judged]}
    tried["process"] = [partial(judged, classes=2), partial(judged, classes=3)]
    return [make(seed) for make in tried[unit]]


def values(name: str, case: Mapping[str, np.ndarray], **options: Any) -> np.ndarray:
    """The oracle's loss of every pair, completion or step."""
    count = max(len(value) for value in case.values() if value.ndim)
    rows = [{key: value[i] if value.ndim else value for key, value in case.items()} for i in range(count)]
    return np.array([LOSSES[name](row, **options) for row in rows])
