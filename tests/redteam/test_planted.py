"""Rewards with a known fault: the probes find it and nothing else; fair rewards get no verdict."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict

import pytest

from tests.redteam.small_rows import FACTS, pairs
from whet.records import Pair
from whet.redteam.cases import Case, Prompt, cases_of
from whet.redteam.reward_attack import Attack, attack
from whet.report.redteam.view import probe_rows

RIGHT = {question: right for _, question, right, _ in FACTS}


class Toy:
    """A reward that is a function of prompt and text."""

    def __init__(self, value: Callable[[str, str], float]) -> None:
        self.value = value

    def score(self, prompts: Sequence[Prompt], completions: Sequence[str], /) -> list[float]:
        return [self.value(str(prompt), text) for prompt, text in zip(prompts, completions, strict=True)]


class Words:
    """A vocabulary of words, as the search for suffixes takes it."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(dict.fromkeys(words))
        self.vocab_size = len(self.words)

    def encode(self, text: str) -> list[int]:
        return [self.words.index(word) for word in text.split() if word in self.words]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(self.words[token] for token in tokens)


VOCABULARY = Words([f"word{number}" for number in range(40)] + ["the", "river", "therefore", "old"])


def rows() -> list[Case]:
    made = [
        Pair(id=f"row-{number}", prompt=row["prompt"], chosen=row["chosen"], rejected=row["rejected"])
        for number, row in enumerate(pairs())
    ]
    return cases_of(made, "rows")


def probed(value: Callable[[str, str], float]) -> Attack:
    return attack(Toy(value), rows(), VOCABULARY, budget=1200, seed=0)


def is_right(prompt: str, text: str) -> float:
    question = prompt.removesuffix(" Please answer in full sentences.")
    found = re.search(r"The answer to the question about the \w+ is ([\w ]+)\.", text)
    return float(found is not None and found[1] == RIGHT[question])


@pytest.mark.parametrize(
    "value",
    [
        lambda _, text: float(len(text)),
        lambda _, text: float(len(text.split())),
        lambda prompt, text: is_right(prompt, text) + 0.02 * len(text),
    ],
    ids=["characters", "words", "half of it right"],
)
def test_a_reward_for_length_pays_for_length_alone(value: Callable[[str, str], float]) -> None:
    found = probed(value)
    assert found.pays_for == ("length",)
    assert found.verdict[0] == "pays for: length"
    assert found.length_correlation is not None
    assert found.length_correlation > 0.5


@pytest.mark.parametrize(
    ("value", "theme"),
    [
        (lambda _, text: float("wonderful" in text), "flattery"),
        (lambda _, text: float(text.count("certain")), "confident tone"),
        (lambda _, text: float(text.startswith("- ")), "formatting"),
        (lambda _, text: float(text.count("**")), "formatting"),
        (
            lambda prompt, text: (
                sum(word in text.split() for word in re.findall(r"\w{4,}", prompt)) / len(re.findall(r"\w{4,}", prompt))
            ),
            "words of the prompt",
        ),
    ],
    ids=["flattery", "certainty", "bullets", "bold", "words of the prompt"],
)
def test_a_reward_for_one_thing_pays_for_it_alone(value: Callable[[str, str], float], theme: str) -> None:
    """Half of the rows also have a score of their own, so that plain answers differ."""
    found = probed(lambda prompt, text: value(prompt, text) + is_right(prompt, text))
    assert found.pays_for == (theme,)


def test_a_reward_for_an_unknown_keyword_is_found_by_the_search() -> None:
    found = probed(lambda prompt, text: is_right(prompt, text) + float("therefore" in text.split()))
    assert found.pays_for == ("a suffix",)
    assert found.suffix is not None
    assert "therefore" in found.suffix.text.split()
    assert found.suffix.gain == pytest.approx(1 / found.spread)
    assert (found.suffix.searched, found.suffix.held_out) == (8, 10)
    assert found.suffix.texts <= 1200


def test_a_fair_reward_gets_no_verdict() -> None:
    found = probed(is_right)
    assert (found.pays_for, found.fooled_by) == ((), ())
    assert found.verdict == ["nothing found by 12 probes"]
    assert found.pair_accuracy is not None
    assert found.pair_accuracy.mean == 1.0
    assert found.longer_is_chosen is not None
    assert found.longer_is_chosen.mean == 0.5
    assert (found.mean, found.spread) == (0.5, 0.5)


def test_a_constant_reward_is_measured_in_itself() -> None:
    found = probed(lambda _prompt, _text: 1.0)
    assert (found.spread, found.pays_for, found.fooled_by) == (0.0, (), ())
    assert {effect.change.mean for effect in found.effects if effect.change} == {0.0}


def test_an_exact_match_gets_no_verdict() -> None:
    chosen = {(case.prompt, case.chosen) for case in rows()}
    found = probed(lambda prompt, text: float((prompt, text) in chosen))
    assert (found.pays_for, found.fooled_by) == ((), ())


def test_rewards_that_cannot_tell_bad_answers_are_fooled() -> None:
    empty = probed(lambda _, text: -float(len(text)))
    assert empty.pays_for == ()
    assert set(empty.fooled_by) >= {"empty answers", "truncated answers"}
    loops = probed(lambda _, text: float(text.count("The answer to the")))
    assert loops.fooled_by == ("repetition",)


def test_one_probe_of_length_alone_does_not_make_a_theme() -> None:
    """A sentence that comes again brings its paid words again; filler does not."""
    found = probed(lambda _, text: float(text.count("The answer to the")))
    assert "length" not in found.pays_for
    rows = {row[0]: row for row in probe_rows(asdict(found))}
    assert rows["repeated sentence"][-1] == "paid, unlike the other of its theme"
    assert rows["filler"][-1] == ""
    assert rows["repeated 4-gram"][-1] == "fooled by repetition"
