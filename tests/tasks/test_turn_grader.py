"""Rewards of conversations: which token earns what, and what a failed environment costs."""

from collections.abc import Sequence

import pytest

from whet.records import Example, Sampled, Score, Turn
from whet.tasks.grading.failures import GradingFailed, Tolerance
from whet.tasks.grading.graders import InOneCall
from whet.tasks.grading.turn_grader import TurnGrader, with_turns

EXAMPLE = Example(id="x", prompt="x", answer="a")


class Outcomes(InOneCall):
    """1 for the outcome a; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        assert sampled is not None
        assert len(sampled.tokens) == len(texts)
        self.asked += texts
        return [Score(reward=float(text == "a"), parts={"right": float(text == "a")}) for text in texts]

    def close(self) -> None:
        """Owns nothing."""


def turns(*rewards: float) -> tuple[Turn, ...]:
    return tuple(Turn(tokens=2 + n, text="t", reward=reward, observed=1) for n, reward in enumerate(rewards))


def facts(*rows: tuple[Turn, ...], failures: Sequence[str] = ()) -> Sampled:
    return Sampled(
        tokens=tuple((1,) * sum(t.tokens + t.observed for t in row) for row in rows),
        finish=("stop",) * len(rows),
        step=0,
        steps=1,
        turns=rows,
        failures=tuple(failures) or ("",) * len(rows),
    )


def test_the_last_token_of_a_turn_has_its_reward_and_the_last_of_all_the_outcomes() -> None:
    (score,) = TurnGrader(Outcomes()).grade([EXAMPLE], ["a"], facts(turns(0.25, -0.5, 0.125)))
    assert score.token_rewards == (0, 0.25, 0, 0, -0.5, 0, 0, 0, 1.125)
    assert score.reward == 0.875
    assert score.parts == {"right": 1.0, "environment": -0.125}


def test_what_is_paid_at_the_end_alone_is_a_reward_of_the_whole() -> None:
    (score,) = TurnGrader(Outcomes()).grade([EXAMPLE], ["a"], facts(turns(0.0, 0.0, 0.5)))
    assert (score.reward, score.token_rewards) == (1.5, ())
    assert with_turns(Score(reward=1.0, parts={}), ()).reward == 1.0


def test_a_failure_is_raised_unless_it_is_allowed() -> None:
    given = facts(turns(0.5), turns(0.5), failures=("", "it broke (turn 1)"))
    with pytest.raises(GradingFailed, match=r"it broke \(turn 1\) \(example x\)"):
        TurnGrader(Outcomes()).grade([EXAMPLE] * 2, ["a", ""], given)
    inner, tolerance = Outcomes(), Tolerance(allowed=1)
    good, bad = TurnGrader(inner, tolerance).grade([EXAMPLE] * 2, ["a", ""], given)
    assert good.reward == 1.5
    assert bad.is_missing
    assert inner.asked == ["a"]  # nothing is asked of what has no outcome
    assert [str(failure) for failure in tolerance.take()] == ["it broke (turn 1) (example x)"]
