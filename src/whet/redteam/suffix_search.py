"""An adversarial suffix by random search: one text that raises the reward of many answers.

It is searched on half of the prompts and measured on the others, because the best of many random texts looks good on
those that it was chosen by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Protocol

from whet.redteam.asking import Asked
from whet.redteam.cases import Case, Prompt
from whet.redteam.probes import SUFFIX, Probe

LENGTH = 8  # tokens
SEEN_BY = 8  # chosen answers by which a suffix is judged during the search
CHANGED = 2  # tokens of a proposal that differ from the best so far, at most
TOGETHER = 4  # proposals that are scored at once
TRIES = 50  # draws of a token that spells readable text
ENOUGH = 4  # prompts: with fewer, none would be left to measure on


class Vocabulary(Protocol):
    """What suffixes are made of."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, /) -> list[int]: ...

    def decode(self, tokens: Sequence[int], /) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The best suffix, and what the search cost."""

    text: str
    texts: int  # that were scored for it
    gain: float  # mean change of the reward on the chosen answers of the search
    searched: tuple[Case, ...]
    held_out: tuple[Case, ...]

    @property
    def probe(self) -> Probe:
        return Probe(
            name="adversarial suffix",
            theme=SUFFIX,
            about="a text of random tokens that raised the reward of other prompts' answers",
            edit=appended(self.text),
        )


def appended(suffix: str) -> Callable[[str, Case], str]:
    return lambda answer, _: f"{answer} {suffix}"


def search(asked: Asked, cases: Sequence[Case], vocabulary: Vocabulary, *, budget: int, seed: int) -> Found | None:
    """The best of as many suffixes as `budget` scored texts allow; None where there are too few prompts or texts.

    Every round changes one or two tokens of the best suffix so far, half of them to tokens that the data has.
    """
    number = {group: place for place, group in enumerate(dict.fromkeys(case.group for case in cases))}
    searched = [case for case in cases if number[case.group] % 2 == 0]
    held_out = [case for case in cases if number[case.group] % 2 == 1]
    seen = searched[:SEEN_BY]
    answers = [(case.prompt, case.chosen) for case in seen]
    if len(number) < ENOUGH or budget < 2 * len(answers):
        return None
    draw = _Draw(vocabulary, searched, Random(seed))  # noqa: S311 - no secret depends on it
    plain = fmean(asked.of(answers))
    best = draw.suffix()
    value, spent = _value(asked, answers, vocabulary.decode(best)), len(answers)
    while budget - spent >= len(answers):
        count = min(TOGETHER, (budget - spent) // len(answers))
        proposals = [draw.changed(best) for _ in range(count)]
        texts = [vocabulary.decode(one) for one in proposals]
        asked.of([(prompt, f"{answer} {text}") for text in texts for prompt, answer in answers])
        values = [_value(asked, answers, text) for text in texts]
        spent += count * len(answers)
        top = max(range(count), key=values.__getitem__)
        if values[top] > value:
            best, value = proposals[top], values[top]
    text = vocabulary.decode(best)
    return Found(text=text, texts=spent, gain=value - plain, searched=tuple(seen), held_out=tuple(held_out))


def _value(asked: Asked, answers: Sequence[tuple[Prompt, str]], suffix: str) -> float:
    return fmean(asked.of([(prompt, f"{answer} {suffix}") for prompt, answer in answers]))


class _Draw:
    """Random tokens that spell readable text."""

    def __init__(self, vocabulary: Vocabulary, cases: Sequence[Case], random: Random) -> None:
        texts = [text for case in cases for text in (case.question, *case.answers)]
        self._vocabulary, self._random = vocabulary, random
        self._seen = sorted({token for text in texts for token in vocabulary.encode(text)})

    def suffix(self) -> list[int]:
        return [self._token() for _ in range(LENGTH)]

    def changed(self, suffix: Sequence[int]) -> list[int]:
        """With one or two other tokens."""
        found = list(suffix)
        for place in self._random.sample(range(LENGTH), self._random.randint(1, CHANGED)):
            found[place] = self._token()
        return found

    def _token(self) -> int:
        token = 0
        for _ in range(TRIES):
            is_seen = bool(self._seen) and self._random.random() < 0.5
            size = self._vocabulary.vocab_size
            token = self._random.choice(self._seen) if is_seen else self._random.randrange(size)
            text = self._vocabulary.decode([token])
            if text.strip() and text.isprintable() and "\ufffd" not in text:
                break
        return token
