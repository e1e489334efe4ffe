"""Rewards of conversations: what the environment gave for each turn, and the score of the outcome.

The reward of a turn stands on its last token, the score of the outcome on the last token of all; `Score.reward` is
their sum. A conversation whose environment failed has no reward, if so many failures are allowed.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from whet.records import NO_SCORE, Example, Sampled, Score, Turn
from whet.tasks.grading.failures import GradingFailed, Tolerance
from whet.tasks.protocol import Awaited, Grader, Task, has_environment

PART = "environment"  # the part of a score that the turns gave


class TurnGrader:
    """Adds the rewards of turns to the scores of another grader, which scores the outcomes."""

    def __init__(self, inner: Grader, tolerance: Tolerance | None = None) -> None:
        self._inner, self._tolerance = inner, tolerance or Tolerance()

    @property
    def inner(self) -> Grader:
        return self._inner

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        return self.submit(examples, texts, sampled)()

    def shares(self, prompts: int) -> list[range]:
        return self._inner.shares(prompts)

    def submit(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> Awaited:
        """Outcomes are scored where the environment did not fail."""
        assert sampled is not None, "turns are of sampled conversations"
        whole = [row for row, failure in enumerate(sampled.failures) if not failure]
        for row, failure in enumerate(sampled.failures):
            if failure:
                message = f"{failure} (example {examples[row].id})"
                text = sampled.turns[row][-1].text
                self._tolerance.add(GradingFailed(message, example=examples[row], text=text))
        some = [examples[row] for row in whole], [texts[row] for row in whole], sampled.rows(whole)
        given = self._inner.submit(*some) if whole else list

        def scores() -> list[Score]:
            found = dict(zip(whole, given(), strict=True))
            return [
                with_turns(found[row], turns) if row in found else NO_SCORE for row, turns in enumerate(sampled.turns)
            ]

        return scores

    def close(self) -> None:
        self._inner.close()


def with_turns(score: Score, turns: Sequence[Turn]) -> Score:
    """The score of an outcome with the rewards of the turns that led to it."""
    if score.is_missing:
        return score
    paid = [turn.reward for turn in turns]
    whole = replace(score, reward=math.fsum([score.reward, *paid]), parts={**score.parts, PART: math.fsum(paid)})
    if not any(paid[:-1]):  # all of it is paid at the end, as the reward of any completion is
        return whole
    rewards: list[float] = []
    for turn in turns:
        rewards += [0.0] * (turn.tokens - 1) + [turn.reward]
    rewards[-1] += score.reward
    return replace(whole, token_rewards=tuple(rewards))


def graded_in_turns(grader: Grader, task: Task, tolerance: Tolerance | None = None) -> Grader:
    """The grader of a task, with the rewards of turns if it is played in turns."""
    return TurnGrader(grader, tolerance) if has_environment(task) else grader
