"""`check_task` catches each way of breaking a promise: a good task, broken once per test."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.check import TaskProblem, check_task
from whet.tasks.procedural import Arithmetic

GOOD = Arithmetic(level=2)
calls = iter(range(10**9))


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A good task in which any method can be replaced."""

    name: str = "broken"
    alphabet: str = GOOD.alphabet
    drawing: Callable[..., Any] = GOOD.draw
    holding: Callable[..., Any] = GOOD.held_out
    scoring: Callable[..., Any] = GOOD.score
    judging: Callable[..., Any] = GOOD.correct
    changing: Callable[[Example], Example] = field(default=lambda example: example)

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        drawn = self.drawing(count, seed=seed)
        return [self.changing(e) for e in drawn] if isinstance(drawn, list) else drawn

    def held_out(self, count: int) -> list[Example]:
        return [self.changing(e) for e in self.holding(count)]

    def score(self, example: Example, text: str) -> Score:
        return self.scoring(example, text)  # type: ignore[no-any-return]

    def correct(self, example: Example, text: str) -> bool:
        return self.judging(example, text)  # type: ignore[no-any-return]


def fails(_example: Example, text: str) -> Any:
    raise ValueError(f"cannot parse {text!r}")


def parts(**values: Any) -> Callable[[Example, str], Score]:
    return lambda example, text: replace(GOOD.score(example, text), parts=values)


def reward(formula: Callable[[Example, str], float]) -> Callable[[Example, str], Score]:
    return lambda example, text: Score(reward=formula(example, text), parts={})


BREAKAGES: Mapping[str, tuple[Broken, str]] = {
    "random draws": (Broken(drawing=lambda n, seed: GOOD.draw(n, seed=(random.getrandbits(32),))), "for the same seed"),
    "seed ignored": (Broken(drawing=lambda n, seed: GOOD.draw(n, seed=(0,))), "draw ignores the seed"),
    "too few": (Broken(drawing=lambda n, seed: GOOD.draw(n - 1, seed=seed)), "gives 511 examples"),
    "generator": (Broken(drawing=lambda n, seed: iter(GOOD.draw(n, seed=seed))), "not a list"),
    "draw raises": (Broken(drawing=lambda n, seed: [][n]), "draw raises IndexError"),
    "nothing held out": (Broken(holding=lambda n: []), "held_out gives no examples"),
    "too many held out": (Broken(holding=lambda n: GOOD.held_out(n + 1)), "gives 129 examples"),
    "held out twice": (Broken(holding=lambda n: GOOD.held_out(1) * n), "the same example twice"),
    "held out moves": (Broken(holding=lambda n: GOOD.held_out(n + next(calls))[-n:]), "the second time"),
    "held out by count": (Broken(holding=lambda n: GOOD.held_out(n)[::-1]), "is not the beginning of"),
    "leak by id": (Broken(holding=lambda n: GOOD.draw(n, seed=(0,))), "is also drawn for training"),
    "leak by prompt": (
        Broken(holding=lambda n: [replace(e, id="held " + e.id) for e in GOOD.draw(n, seed=(0,))]),
        "the prompt of held-out .* is also drawn",
    ),
    "leak by twin": (
        Broken(holding=lambda n: [replace(e, twin=GOOD.draw(1, seed=(0,))[0].twin) for e in GOOD.held_out(n)]),
        "held-out .* shares its twin",
    ),
    "twin of another type": (Broken(changing=lambda e: replace(e, twin=7)), "twin of .* is not a string"),  # type: ignore[arg-type]
    "ids shared": (Broken(changing=lambda e: replace(e, id=e.id[:-1])), "names two different examples"),
    "id of another type": (Broken(changing=lambda e: replace(e, id=7)), "has the id 7"),  # type: ignore[arg-type]
    "prompt list": (
        Broken(changing=lambda e: replace(e, prompt=[Message(role="user", content="x")])),  # type: ignore[arg-type]
        "neither a string nor a tuple",
    ),
    "prompt empty": (Broken(changing=lambda e: replace(e, prompt="")), "is empty"),
    "answer number": (Broken(changing=lambda e: replace(e, answer=3)), "is not a string"),  # type: ignore[arg-type]
    "columns": (Broken(changing=lambda e: replace(e, columns={"bag": {1}})), "are not JSON"),
    "columns nan": (Broken(changing=lambda e: replace(e, columns={"x": float("nan")})), "not JSON|different examples"),
    "alphabet": (Broken(alphabet="0123456789+"), r"the alphabet lacks \['='\]"),
    "gold wrong": (Broken(judging=lambda e, t: False), "the answer of .* is not correct"),
    "all right": (Broken(judging=lambda e, t: True), "counts as correct"),
    "empty right": (Broken(judging=lambda e, t: e.answer.startswith(t)), "the text '' counts as correct"),
    "correct no bool": (Broken(judging=lambda e, t: 0), "gives a int, not a bool"),
    "correct raises": (Broken(judging=fails), "correct on the text '' raises ValueError"),
    "score raises": (Broken(scoring=fails), "score on the text '' raises ValueError: cannot parse"),
    "score on garbage": (Broken(scoring=lambda e, t: GOOD.score(e, str(int(t)))), "raises ValueError: invalid literal"),
    "score no Score": (Broken(scoring=lambda e, t: 1.0), "gives a float, not a Score"),
    "longer is better": (Broken(scoring=reward(lambda e, t: float(len(t)))), "its own answer only"),
    "repeats are better": (Broken(scoring=reward(lambda e, t: t.count(e.answer))), "its own answer only 1"),
    "score moves": (Broken(scoring=reward(lambda e, t: float(next(calls)))), "differs from one call to the next"),
    "reward nan": (Broken(scoring=reward(lambda e, t: float("nan"))), "gives reward = nan"),
    "reward too large": (Broken(scoring=reward(lambda e, t: 1e16)), r"gives reward = 1e\+16, beyond ±1e\+15"),
    "part infinite": (Broken(scoring=parts(x=float("inf"))), "gives x = inf"),
    "part no number": (Broken(scoring=parts(x="good")), "has a part 'x' that is not a number"),
    "parts list": (Broken(scoring=lambda e, t: Score(reward=0.0, parts=[1.0])), "not a mapping"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_a_broken_promise_is_caught(what: str) -> None:
    task, sentence = BREAKAGES[what]
    with pytest.raises(TaskProblem, match=sentence) as caught:
        check_task(task)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)


def test_the_unbroken_task_passes() -> None:
    check_task(Broken())


def test_a_row_without_an_answer_needs_no_gold() -> None:
    bare = Broken(
        changing=lambda e: replace(e, answer=""), judging=lambda e, t: False, scoring=reward(lambda e, t: float(len(t)))
    )
    check_task(bare)
