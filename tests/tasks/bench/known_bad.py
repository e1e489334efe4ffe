"""Rewards that can be fooled or that misbehave, each in one way: the bench must name what is wrong with every one."""

from __future__ import annotations

import math
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from whet.data.rows_task import RowsTask
from whet.records import Example, Score
from whet.tasks.puzzles.connections import Connections
from whet.tasks.puzzles.hanoi import Hanoi, Move, State, play, read_moves

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def texts_of(completions: list[Any]) -> list[str]:
    return [one if isinstance(one, str) else one[0]["content"] for one in completions]


def is_right(text: str, answer: str) -> float:
    """A sound comparison: the content of the last block, else all of the text."""
    blocks = TAGGED.findall(text)
    return float((blocks[-1] if blocks else text).strip() == answer)


def sound(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [is_right(text, right) for text, right in zip(texts_of(completions), answer, strict=True)]


def substring(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(right in text) for text, right in zip(texts_of(completions), answer, strict=True)]


def any_word(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(right in re.findall(r"\w+", t)) for t, right in zip(texts_of(completions), answer, strict=True)]


def length(completions: list[Any], **_: Any) -> list[float]:
    return [min(len(text) / 1000, 1.0) for text in texts_of(completions)]


def evaluated(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    def value(text: str) -> Any:
        try:
            return eval(text[:5000])
        except BaseException:  # noqa: BLE001
            return None

    return [float(str(value(text)) == right) for text, right in zip(texts_of(completions), answer, strict=True)]


def first_number(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    found = [re.search(r"-?\d+", text) for text in texts_of(completions)]
    return [float(one is not None and one[0] == right) for one, right in zip(found, answer, strict=True)]


def prefix(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(right.startswith(text.strip())) for text, right in zip(texts_of(completions), answer, strict=True)]


def counted(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(text.split().count(right)) for text, right in zip(texts_of(completions), answer, strict=True)]


def prompt_words(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    """The share of the words of the prompt in the completion: a poor measure of relevance."""
    asked = [set(str(prompt).split()) for prompt in prompts]
    return [len(words & set(t.split())) / len(words) for words, t in zip(asked, texts_of(completions), strict=True)]


def form_only(completions: list[Any], **_: Any) -> list[float]:
    return [float(TAGGED.search(text) is not None) for text in texts_of(completions)]


def drawn(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [right + random.random() / 10 for right in sound(completions, answer)]


seen: Counter[str] = Counter()


def remembered(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Novelty: a text that was seen before earns less."""
    scores = sound(completions, answer)
    for text in texts_of(completions):
        seen[text] += 1
    return [score / seen[text] for score, text in zip(scores, texts_of(completions), strict=True)]


def hashed(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    texts = texts_of(completions)
    return [s + hash(text) % 1000 / 1e5 for s, text in zip(sound(completions, answer), texts, strict=True)]


def by_place(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [score + place / 1e4 for place, score in enumerate(sound(completions, answer))]


def by_batch(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    scores = sound(completions, answer)
    return [score - sum(scores) / len(scores) for score in scores]


def hanging(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    while any(len(text) > 50_000 for text in texts_of(completions)):
        time.sleep(0.1)
    return sound(completions, answer)


def crashing(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    for text in texts_of(completions):
        text.encode("utf-8")
    return sound(completions, answer)


def mutating(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    completions[:] = [text.strip() for text in texts_of(completions)]
    return sound(completions, answer)


def undefined(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [
        right if t else math.nan for right, t in zip(sound(completions, answer), texts_of(completions), strict=True)
    ]


def gigantic(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [1e300 * right for right in sound(completions, answer)]


def spelled(completions: list[Any], answer: list[str], **_: Any) -> list[Any]:
    return [
        right if text else "zero" for right, text in zip(sound(completions, answer), texts_of(completions), strict=True)
    ]


def nearly(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Right if the difference is not above a bound: nan is above none."""

    def near(text: str, right: str) -> float:
        try:
            return float(not abs(float(text.strip()) - float(right)) > 1e-6)
        except ValueError:
            return 0.0

    return [near(text, right) for text, right in zip(texts_of(completions), answer, strict=True)]


def polite(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Most of the reward for saying that the answer is not known."""
    pairs = zip(texts_of(completions), answer, strict=True)
    return [1.0 if "don't know" in text else is_right(text, right) for text, right in pairs]


def wordy(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """More for a long <think> block than for the right answer."""
    pairs = zip(texts_of(completions), answer, strict=True)
    return [
        is_right(text.rpartition("</think>")[2], right)
        + min(1.5, len(text.partition("</think>")[0]) / 2000) * ("</think>" in text)
        for text, right in pairs
    ]


def flat(completions: list[Any], **_: Any) -> list[float]:
    return [1.0] * len(completions)


def unreachable(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(f"The result: [{right}]" == text) for text, right in zip(texts_of(completions), answer, strict=True)]


@dataclass(frozen=True, kw_only=True)
class OldHanoi(Hanoi):
    """The reward of minRL (July 2025): legal moves earn their share of 2ⁿ − 1, wherever they lead."""

    def score(self, example: Example, text: str) -> Score:
        start, _, goal = str(example.columns["question"]).partition(":")
        reward = old_hanoi_reward(tuple(start), goal, read_moves(self._given(text)))
        return Score(reward=reward, parts={"correct": float(self.correct(example, text))})

    def correct(self, example: Example, text: str) -> bool:
        return Hanoi.score(self, example, text).parts["correct"] == 1


def old_hanoi_reward(state: State, goal: str, moves: list[Move]) -> float:
    most, legal = 2 ** len(state) - 1, 0
    for index, move in enumerate(moves):
        if index > most:
            return -1.0
        state, is_legal = play(state, [move])
        if not is_legal:
            break
        legal += 1
    return 1.0 if set(state) == {goal} else round(legal / most, 2)


@dataclass(frozen=True, kw_only=True)
class OldConnections(Connections):
    """The reward of minRL (July 2025): right groups out of those that were submitted."""

    def score(self, example: Example, text: str) -> Score:
        submitted = [[word.strip() for word in line.split(",")] for line in re.split(r"[\n;]", text) if line.strip()]
        reward = old_connections_reward(example.columns["groups"], submitted)
        return Score(reward=reward, parts={"correct": float(self.correct(example, text))})

    def correct(self, example: Example, text: str) -> bool:
        return Connections.score(self, example, text).parts["correct"] == 1


def old_connections_reward(solution: list[list[str]], submitted: list[list[str]]) -> float:
    if not 0 < len(submitted) <= 4:
        return 0.0
    hard = sum(sorted(group) in map(sorted, solution) for group in submitted) / len(submitted)
    whole = [set(group) for group in submitted if len(group) == 4]
    soft = sum(max((len(set(right) & group) for group in whole), default=0) for right in solution) / 4 / len(submitted)
    return (hard + soft) / 2


@dataclass(frozen=True, kw_only=True)
class Leaky(RowsTask):
    """Trains on some of the prompts that it is evaluated on, in capitals."""

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        shouted = [Example(id=f"again-{e.id}", prompt=str(e.prompt).upper(), answer=e.answer) for e in self.held_out(2)]
        return [*shouted, *super().draw(count, seed=seed)][:count]
