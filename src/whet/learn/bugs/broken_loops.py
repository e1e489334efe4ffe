"""Broken loops: accumulation, optimizer steps, episodes, sampling, and a reward that can be fooled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.plain_numbers import Matrix, Vector, mean, softmax

CHAPTER = "25-debugging.md"
PHASE = "bug hunt"

# A model with one weight w and the loss (w·x − y)² per token, so that gradients can be written down.
BATCHES = [[[1.0, 2.0], [2.0, 2.0], [3.0, 1.0]], [[1.0, 0.0]]]


def _slopes(weight: float, batch: Matrix) -> Vector:
    return [2 * x * (weight * x - y) for x, y in batch]


def _accumulated(weight: float, micro_batches: list[Matrix]) -> float:
    return mean([slope for batch in micro_batches for slope in _slopes(weight, batch)])


def _mean_of_means(weight: float, micro_batches: list[Matrix]) -> float:
    return mean([mean(_slopes(weight, batch)) for batch in micro_batches])


def _trained(weight: float, batches: list[Matrix], lr: float, keep: float = 0.0) -> float:
    gradient = 0.0
    for batch in batches:
        gradient = keep * gradient + mean(_slopes(weight, batch))
        weight -= lr * gradient
    return weight


def _episodes(
    rewards: Vector, values: Vector, ends: list[bool], last_value: float, gamma: float, lam: float, *, variant: str = ""
) -> Vector:
    """Advantages of a fragment of several episodes; variants forget the end in δ, in the sum, or in both."""
    running, out = 0.0, []
    following = [*values[1:], last_value]
    for t in reversed(range(len(rewards))):
        goes_on = 0.0 if ends[t] else 1.0
        in_delta = 1.0 if variant in ("value", "both") else goes_on
        in_sum = 1.0 if variant in ("sum", "both") else goes_on
        if variant == "late" and t + 1 < len(ends):  # takes the end of the step after
            in_delta = in_sum = 0.0 if ends[t + 1] else 1.0
        delta = rewards[t] + gamma * following[t] * in_delta - values[t]
        running = delta + gamma * lam * in_sum * running
        out.append(running)
    return out[::-1]


def _variant(variant: str) -> Callable[..., Vector]:
    def advantages(
        rewards: Vector, values: Vector, ends: list[bool], last_value: float, gamma: float, lam: float
    ) -> Vector:
        return _episodes(rewards, values, ends, last_value, gamma, lam, variant=variant)

    return advantages


EPISODES = {
    "rewards": [1.0, 0.0, 2.0, 1.0, 0.5],
    "values": [0.5, 0.4, 1.0, 3.0, 0.2],
    "ends": [False, False, True, False, False],
    "last_value": 0.8,
    "gamma": 0.9,
    "lam": 0.8,
}

TABLE = [[2.0, 0.0, 1.0], [0.0, 1.5, 0.5], [1.0, 0.0, 0.0]]
DRAWS = [0.2, 0.95, 0.5, 0.7]


def _sampled(
    table: Matrix,
    first: int,
    uniforms: Vector,
    temperature: float,
    *,
    drawn: float | None = None,
    said: float | None = None,
) -> tuple[list[int], Vector]:
    """Tokens drawn at one temperature, and their log-probs at another; both are `temperature` if not given."""
    tokens, logprobs, token = [], [], first
    for uniform in uniforms:
        draw = softmax([logit / (drawn or temperature) for logit in table[token]])
        tell = softmax([logit / (said or temperature) for logit in table[token]])
        token = _inverted(draw, uniform)
        tokens.append(token)
        logprobs.append(math.log(tell[token]))
    return tokens, logprobs


def _inverted(probabilities: Vector, uniform: float) -> int:
    total = 0.0
    for token, probability in enumerate(probabilities):
        total += probability
        if uniform < total:
            return token
    return len(probabilities) - 1


def _logprobs(table: Matrix, first: int, uniforms: Vector, temperature: float) -> Vector:
    return _sampled(table, first, uniforms, temperature)[1]


def _untempered(table: Matrix, first: int, uniforms: Vector, temperature: float) -> Vector:
    return _sampled(table, first, uniforms, temperature, said=1.0)[1]


def _cold(table: Matrix, first: int, uniforms: Vector, temperature: float) -> Vector:
    return _sampled(table, first, uniforms, temperature, drawn=1.0, said=1.0)[1]


def _multiplied(table: Matrix, first: int, uniforms: Vector, temperature: float) -> Vector:
    return _sampled(table, first, uniforms, 1 / temperature)[1]


def _reward(completion: str, answer: str) -> float:
    numbers = re.findall(r"-?\d+", completion)
    return float(bool(numbers) and int(numbers[-1]) == int(answer))


def _contains(completion: str, answer: str) -> float:
    return float(answer in completion)


def _any_number(completion: str, answer: str) -> float:
    return float(answer in re.findall(r"-?\d+", completion))


def _first_number(completion: str, answer: str) -> float:
    return float([int(number) for number in re.findall(r"-?\d+", completion)[:1]] == [int(answer)])


LOOPS: tuple[Exercise, ...] = (
    Exercise(
        name="bug-accumulation",
        title="bug hunt: the loss depends on the size of the micro-batches",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "accumulated_gradient",
                _accumulated,
                [
                    Case({"weight": 0.5, "micro_batches": BATCHES}),
                    Case({"weight": 1.5, "micro_batches": [BATCHES[1], BATCHES[0], [[2.0, 2.0], [0.5, 3.0]]]}),
                ],
                [
                    Mistake(
                        _mean_of_means,
                        "the same tokens in other micro-batches have another gradient: a token of a small micro-batch "
                        "counts more than one of a large one. The step should be that of one batch with all of them",
                    ),
                    Mistake(
                        lambda weight, micro_batches: sum(mean(_slopes(weight, batch)) for batch in micro_batches),
                        "the means of the micro-batches are summed: twice as many micro-batches, twice the step",
                    ),
                    Mistake(
                        lambda weight, micro_batches: sum(s for batch in micro_batches for s in _slopes(weight, batch)),
                        "now it is the sum over all tokens: a batch with more tokens takes a longer step",
                    ),
                    Mistake(
                        lambda weight, micro_batches: (
                            sum(s for batch in micro_batches for s in _slopes(weight, batch)) / len(micro_batches)
                        ),
                        "the sum over all tokens is divided by the number of micro-batches, and should be by that of "
                        "tokens",
                    ),
                ],
                tensors=False,
            ),
        ),
        hints=(
            "Three tokens in one micro-batch and one in another: with which weight does each of the four enter?",
            "One number must be known before the first micro-batch: it needs a pass over the lengths alone.",
        ),
    ),
    Exercise(
        name="bug-stale-gradients",
        title="bug hunt: the longer it trains, the longer its steps",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "train",
                _trained,
                [
                    Case({"weight": 0.5, "batches": BATCHES, "lr": 0.1}),
                    Case({"weight": 2.0, "batches": [*BATCHES, BATCHES[0]], "lr": 0.05}),
                ],
                [
                    Mistake(
                        lambda weight, batches, lr: _trained(weight, batches, lr, keep=1.0),
                        "the first step is right and the second is not: it moves along the gradients of both batches. "
                        "`backward` adds to what is there",
                    ),
                    Mistake(
                        lambda weight, batches, lr: weight,
                        "the weight does not move at all: the gradient is gone before the step is made",
                    ),
                    Mistake(
                        lambda weight, batches, lr: _trained(weight, batches, -lr),
                        "the weight goes up the slope: the loss rises",
                    ),
                    Mistake(
                        lambda weight, batches, lr: _trained(weight, batches[:1], lr),
                        "only the first batch is trained on",
                    ),
                ],
                tensors=False,
            ),
        ),
        hints=(
            "Print the gradient before every step, with a learning rate of 0. The weight never changes: should the "
            "gradient?",
            "Where does torch put the result of `backward`, and what does it do with what is already there?",
        ),
    ),
    Exercise(
        name="bug-episodes",
        title="bug hunt: the agent fears the next episode",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "advantages",
                _episodes,
                [
                    Case({**EPISODES, "rewards": [1.0, 1.0], "values": [0.5, 5.0], "ends": [True, False]}),
                    Case(EPISODES),
                    Case({**EPISODES, "ends": [True, False, False, True, True]}),
                ],
                [
                    Mistake(
                        _variant("both"),
                        "the first step ends its episode, and its advantage depends on the episode after it: what "
                        "happens there was not its doing",
                    ),
                    Mistake(
                        _variant("sum"),
                        "the value of the next episode no longer counts, and its advantages still do: two things flow "
                        "back over an end",
                    ),
                    Mistake(
                        _variant("value"),
                        "the sum now stops at an end, and δ still takes the first value of the next episode for the "
                        "one that follows",
                    ),
                    Mistake(
                        _variant("late"),
                        "the end is read one step late: `ends[t]` says that the episode is over after step t",
                    ),
                ],
            ),
        ),
        hints=(
            "Take two episodes of one step each. What should the advantage of the first be? Which numbers enter yours?",
            "Information comes from the future by two ways: the next value, and the running sum.",
        ),
    ),
    Exercise(
        name="bug-temperature",
        title="bug hunt: the ratio is not 1 before the first update",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "sample",
                lambda table, first, uniforms, temperature: _sampled(table, first, uniforms, temperature)[0],
                [
                    Case({"table": TABLE, "first": 0, "uniforms": DRAWS, "temperature": 1.0}),
                    Case({"table": TABLE, "first": 0, "uniforms": DRAWS, "temperature": 0.5}),
                    Case({"table": TABLE, "first": 1, "uniforms": DRAWS, "temperature": 2.0}),
                ],
                [
                    Mistake(
                        lambda table, first, uniforms, temperature: _sampled(table, first, uniforms, 1.0)[0],
                        "the tokens no longer depend on the temperature: they were drawn right before",
                    ),
                    Mistake(
                        lambda table, first, uniforms, temperature: _sampled(table, first, uniforms, 1 / temperature)[
                            0
                        ],
                        "the logits are multiplied by the temperature: hot is now cold",
                    ),
                ],
                reading=lambda answer: [int(token) for token in answer[0]],
            ),
            Compared(
                "sample",
                _logprobs,
                [
                    Case({"table": TABLE, "first": 0, "uniforms": DRAWS, "temperature": 1.0}),
                    Case({"table": TABLE, "first": 0, "uniforms": DRAWS, "temperature": 0.5}),
                    Case({"table": TABLE, "first": 1, "uniforms": DRAWS, "temperature": 2.0}),
                ],
                [
                    Mistake(
                        _untempered,
                        "tokens are drawn at one temperature, and their log-probs are those of another distribution: "
                        "these are not the probabilities with which the tokens were drawn, so the ratio of a policy "
                        "to itself is not 1",
                    ),
                    Mistake(_cold, "log-probs and tokens both ignore the temperature now"),
                    Mistake(_multiplied, "the logits are multiplied by the temperature, and should be divided by it"),
                ],
                reading=lambda answer: [float(number) for number in answer[1]],
            ),
        ),
        hints=(
            "At temperature 1 nothing is wrong. What does the temperature change, and what does it not?",
            "The log-prob of a sampled token is the logarithm of the probability with which it was drawn.",
        ),
    ),
    Exercise(
        name="bug-easy-reward",
        title="bug hunt: the reward rises, and the answers are lists of numbers",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "reward",
                _reward,
                [
                    Case({"completion": "12 + 30 = 42", "answer": "42"}, "a right answer is not paid"),
                    Case({"completion": "the answer is 7", "answer": "42"}, "a wrong answer is paid"),
                    Case({"completion": "it is 142", "answer": "42"}, "142 is not 42"),
                    Case({"completion": "40 41 42 43 44", "answer": "42"}, "a list of numbers is paid"),
                    Case({"completion": "42, no: 41", "answer": "42"}, "the last number is the answer: here it is 41"),
                    Case({"completion": "I do not know", "answer": "42"}, "no number at all is a wrong answer"),
                    Case({"completion": "3 - 5 = -2", "answer": "-2"}, "a number may be negative"),
                    Case(
                        {"completion": "007", "answer": "7"}, "007 is the number 7: compare numbers, not their spelling"
                    ),
                ],
                [
                    Mistake(
                        _contains,
                        "a completion that lists many numbers is paid, and so is 142 for 42: whoever is paid for "
                        "having the answer somewhere writes everything",
                    ),
                    Mistake(
                        _any_number,
                        "142 is no longer taken for 42, but a list of all numbers is still paid: which one is the "
                        "answer?",
                    ),
                    Mistake(_first_number, "the first number counts now: in a calculation that is not the answer"),
                    Mistake(
                        lambda completion, answer: float(completion.strip().endswith(answer)),
                        "what ends with the right digits is paid: 142 is not 42",
                    ),
                ],
                tensors=False,
            ),
        ),
        hints=(
            "What is the laziest completion that this function pays?",
            "A completion is right if its last number is the answer. What is a number, as a pattern? Signs belong to "
            "it.",
            "No number at all is a wrong answer, and no error.",
        ),
    ),
)
