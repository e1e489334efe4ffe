"""The grader of a run: the task or the user's functions and, where a recipe names one, a reward model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from whet.config import RewardConfig, TaskConfig
from whet.models.download.model_hub import resolve_model
from whet.models.reward.reward_model import RewardModel
from whet.models.reward.scoring import Scorer, load_scorer
from whet.records import Example, Score
from whet.tasks.grading.graders import GradingFailed, make_grader
from whet.tasks.protocol import Grader, is_reward, too_large
from whet.train.setup.offloading import OffloadedModels


class ModelGrader:
    """Adds a reward model's score to what functions give; what the task itself thinks is only noted beside it."""

    def __init__(self, inner: Grader, scorer: Scorer, *, weight: float, has_functions: bool) -> None:
        self._inner, self._scorer, self._weight, self._has_functions = inner, scorer, weight, has_functions

    @property
    def model(self) -> RewardModel:
        """The reward model."""
        return self._scorer.model

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        """A score for each completion; parts: `model`, and what the others gave."""
        given = self._inner.grade(examples, texts)
        found = self._scorer.score([example.prompt for example in examples], texts)
        scores = [self._joined(score, number) for score, number in zip(given, found, strict=True)]
        for row, score in enumerate(scores):
            if not all(is_reward(value) for value in (score.reward, score.parts["model"])):
                raise self._too_large(score, examples[row], texts[row])
        return scores

    def close(self) -> None:
        """Ends the inner one."""
        self._inner.close()

    def _joined(self, given: Score, number: float) -> Score:
        own = self._weight * number
        if self._has_functions:
            return Score(reward=given.reward + own, parts={**given.parts, "model": number})
        return Score(reward=own, parts={**given.parts, "task": given.reward, "model": number})

    def _too_large(self, score: Score, example: Example, text: str) -> GradingFailed:
        number = score.parts["model"]
        worst = score.reward if is_reward(number) else number
        return GradingFailed(
            f"the reward model gave {number:g}, which with weight {self._weight:g} makes a reward of {score.reward:g} "
            f"for example {example.id}{too_large(worst)} (reward.model.weight)",
            example=example,
            text=text,
        )


def held_out_judge(
    grader: Grader, offloaded: OffloadedModels
) -> Callable[[Sequence[Example], Sequence[str]], list[float]] | None:
    """What a reward model thinks of held-out answers, where training has one."""
    if not isinstance(grader, ModelGrader):
        return None

    def judge(examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        with offloaded.present("reward"):
            return [score.reward for score in grader.grade(examples, texts)]

    return judge


def build_grader(task: TaskConfig, reward: RewardConfig, device: torch.device) -> Grader:
    """Everything that gives a reward, loaded now, so that a wrong name shows at once."""
    inner = make_grader(
        task.name,
        task.options,
        *reward.plain(),
        memory_limit_gb=reward.memory_limit_gb,
        environment=reward.environment,
        may_abstain=reward.model is not None,
    )
    if reward.model is None:
        return inner
    scorer = load_scorer(resolve_model(reward.model.path), device)
    return ModelGrader(inner, scorer, weight=reward.model.weight, has_functions=bool(reward.functions))
