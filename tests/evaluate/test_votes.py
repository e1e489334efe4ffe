"""maj@k and best-of-k: by hand, by enumeration of all subsets, and in an evaluation."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import asdict, dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluate.test_evaluation import GREEDY, ReverseTask, ScriptedEngine, _evaluate
from whet.evaluate.measures import measure_of
from whet.evaluate.statistics import majority_at_k, wilson
from whet.records import Example


def test_majorities_by_hand() -> None:
    assert majority_at_k(["a", "a", "b"], [1, 1, 0], 3) == 1
    assert majority_at_k(["a", "b"], [1, 0], 2) == 0.5  # a tie is broken at random
    assert majority_at_k(["a", "b", "c"], [1, 0, 0], 3) == pytest.approx(1 / 3)
    assert majority_at_k([None, None, "a"], [0, 0, 1], 3) == 1  # who does not answer has no vote
    assert majority_at_k([None, None], [0, 0], 2) == 0
    assert majority_at_k(["a", "a", "b"], [1, 1, 0], 1) == pytest.approx(2 / 3)
    # Of three pairs one is a, a and two are ties.
    assert majority_at_k(["a", "a", "b"], [1, 1, 0], 2) == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert majority_at_k(["a", "a", "b"], [1, 0, 0], 3) == 0.5  # an answer that is judged both ways is half right


@pytest.mark.parametrize("k", [0, 4])
def test_k_must_be_within_the_samples(k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= N"):
        majority_at_k(["a"] * 3, [1, 1, 1], k)


def by_enumeration(votes: list[str | None], values: list[int], k: int) -> Fraction:
    worth = {vote: Fraction(sum(v for w, v in zip(votes, values, strict=True) if w == vote), votes.count(vote)) for vote in votes}  # fmt: skip # noqa: E501
    total, subsets = Fraction(0), list(itertools.combinations(votes, k))
    for subset in subsets:
        counts = Counter(vote for vote in subset if vote is not None)
        winners = [vote for vote in counts if counts[vote] == max(counts.values())]
        total += sum((worth[vote] for vote in winners), Fraction(0)) / max(1, len(winners))
    return total / len(subsets)


@given(st.data())
def test_it_is_the_mean_over_all_subsets(data: st.DataObject) -> None:
    votes = data.draw(st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=8))
    values = data.draw(st.lists(st.integers(0, 1), min_size=len(votes), max_size=len(votes)))
    k = data.draw(st.integers(1, len(votes)))
    assert majority_at_k(votes, values, k) == pytest.approx(float(by_enumeration(votes, values, k)))


def test_many_samples_are_no_problem() -> None:
    votes = [str(number % 9) for number in range(128)]
    assert majority_at_k(votes, [float(vote == "0") for vote in votes], 128) == pytest.approx(1 / 2)  # 0 and 1 have 15


@dataclass(frozen=True)
class VotingTask(ReverseTask):
    def vote(self, example: Example, text: str) -> str | None:
        return None if text == "x" else text


SAMPLES = {
    "ab": ["ba", "ba", "ba", "no"],
    "cd": ["dc", "no", "no", "x"],
    "ef": ["fe", "x", "x", "x"],  # one vote, and three that are not cast
    "gh": ["hg", "no", "x", "x"],
}


def test_an_evaluation_with_votes() -> None:
    result = _evaluate(ScriptedEngine(GREEDY, SAMPLES), VotingTask(), samples=4, ks=(1, 4))
    assert result.majority_at == {4: wilson(1 + 0 + 1 + 0.5, 4)}
    assert result.pass_at[4] == wilson(4, 4)
    assert result.metrics()["eval/maj@4"] == 2.5 / 4
    assert measure_of("eval/maj@4").text(0.625) == "62.5%"
    assert [answer.row().get("vote") for answer in result.answers[:5]] == [None, "ba", "ba", "ba", "no"]
    json.dumps(asdict(result))
    assert _evaluate(ScriptedEngine(GREEDY, SAMPLES), ReverseTask(), samples=4, ks=(4,)).majority_at == {}


def test_the_best_of_k_by_a_reward_model() -> None:
    asked: list[tuple[str, str]] = []

    def ranker(examples, texts):
        asked.extend((example.id, text) for example, text in zip(examples, texts, strict=True))
        return [float(text == "no") for text in texts]  # which prefers one wrong answer

    result = _evaluate(ScriptedEngine(GREEDY, SAMPLES), ReverseTask(), samples=4, ks=(1, 4), ranker=ranker)
    assert len(asked) == 16  # the samples and not the greedy answers
    assert result.best_of == {4: wilson(0 + 0 + 0.25 + 0, 4)}  # of four equal scores one in four is right
    assert result.metrics()["eval/best-of-4"] == 0.0625
    best = _evaluate(ScriptedEngine(GREEDY, SAMPLES), ReverseTask(), samples=4, ks=(4,), ranker=lambda examples, texts: [float(e.answer == t) for e, t in zip(examples, texts, strict=True)])  # fmt: skip # noqa: E501
    assert best.best_of == best.pass_at  # the perfect reward model finds every right sample
