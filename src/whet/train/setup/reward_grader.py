"""The grader of a run: the task or reward functions, and a reward model if the recipe names one."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from whet.config import RewardConfig, TaskConfig
from whet.evaluate.evaluation import HeldOutScorer
from whet.models.download.model_hub import resolve_model
from whet.models.reward.reward_model import RewardModel
from whet.models.reward.scoring import Scorer, load_scorer
from whet.records import Example, Score
from whet.tasks.grading.graders import DirectGrader, GradingFailed, make_grader
from whet.tasks.protocol import Grader, Task, is_reward, too_large
from whet.train.setup.offloading import Present


class ModelGrader:
    """Adds a reward model's score to that of reward functions; without functions, the task's score is only logged."""

    def __init__(self, inner: Grader, scorer: Scorer, *, weight: float, has_functions: bool, is_graded: bool) -> None:
        self._inner, self._scorer, self._weight, self._has_functions = inner, scorer, weight, has_functions
        self._is_graded = is_graded  # whether the task has a score of its own

    @property
    def model(self) -> RewardModel:
        return self._scorer.model

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        """Scores completions; `parts` holds the scores of the reward model, of functions and of the task."""
        given = self._inner.grade(examples, texts)
        found = self._scorer.score([example.prompt for example in examples], texts)
        scores = []
        for score, number, example, text in zip(given, found, examples, texts, strict=True):
            reward = self._weight * number + (score.reward if self._has_functions else 0.0)
            task = {"task": score.reward} if self._is_graded and not self._has_functions else {}
            if not is_reward(reward) or not is_reward(number):
                raise GradingFailed(
                    f"the reward model gave {number:g}, which with weight {self._weight:g} makes a reward of "
                    f"{reward:g} for example {example.id}{too_large(reward if is_reward(number) else number)} "
                    "(reward.model.weight)",
                    example=example,
                    text=text,
                )
            scores.append(Score(reward=reward, parts={**score.parts, **task, "model": number}))
        return scores

    def around(self, inner: Grader) -> "ModelGrader":
        """The same reward model with another grader inside."""
        same = {"has_functions": self._has_functions, "is_graded": self._is_graded}
        return ModelGrader(inner, self._scorer, weight=self._weight, **same)

    def close(self) -> None:
        self._inner.close()


def held_out_scorers(
    grader: Grader, reward: RewardConfig, training: Task, evaluation: Mapping[str, Task], present: Present
) -> dict[str, HeldOutScorer]:
    """Evaluation set → a function that scores its completions with the rewards of training.

    Reward functions are the same for all; a task scores the completions of its own prompts.
    """
    is_shared = bool(reward.functions)
    graders = {
        name: grader if is_shared or task is training else _of_another_task(grader, task)
        for name, task in evaluation.items()
    }
    return {name: partial(_score, one, present) for name, one in graders.items()}


def _score(grader: Grader, present: Present, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
    with present("reward"):
        return grader.grade(examples, texts)


def _of_another_task(grader: Grader, task: Task) -> Grader:
    return grader.around(DirectGrader(task)) if isinstance(grader, ModelGrader) else DirectGrader(task)


def build_grader(config: TaskConfig, reward: RewardConfig, device: torch.device, task: Task) -> Grader:
    """The grader around a built task; loads reward functions and models now, so that a wrong name fails at once."""
    inner = make_grader(
        config.name,
        config.options,
        *reward.plain(),
        memory_limit_gb=reward.memory_limit_gb,
        environment=reward.environment,
        may_abstain=reward.model is not None,
        task=task,
    )
    if reward.model is None:
        return inner
    scorer = load_scorer(resolve_model(reward.model.path), device)
    functions = bool(reward.functions)
    return ModelGrader(inner, scorer, weight=reward.model.weight, has_functions=functions, is_graded=config.is_graded)
