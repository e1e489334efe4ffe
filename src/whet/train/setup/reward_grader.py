"""The grader of a run: the task or reward functions, and a reward model if the recipe names one; or the tokens."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import torch

from whet.config import OnlineConfig, RewardConfig, RolloutConfig, TaskConfig
from whet.config.reward import RewardModelConfig
from whet.models.decoder.decoder import Decoder
from whet.models.download.model_hub import resolve_model
from whet.models.model_shape import is_adapter_of
from whet.models.protocol import Tokenizer
from whet.models.reward.reward_model import RewardModel
from whet.models.reward.scoring import Scorer, TextScorer, load_scorer
from whet.records import Completion, Example, Sampled, Score
from whet.rollout import sampled
from whet.tasks.grading.failures import GradingFailed, Tolerance
from whet.tasks.grading.graders import DirectGrader, make_grader
from whet.tasks.grading.pool import WorkerPool
from whet.tasks.grading.reward_functions import part_name
from whet.tasks.grading.turn_grader import TurnGrader, graded_in_turns
from whet.tasks.protocol import Awaited, Grader, Task, is_reward, too_large
from whet.train.reward_workers.pooled_scorer import Note, PassPool, PooledScorer
from whet.train.setup.offloading import Present, own_device
from whet.train.setup.token_grader import TokenGrader

MODEL_PART = "model"  # the part of a score that a reward model gives
PLACE = "placement.reward"


class ModelGrader:
    """Adds a reward model's score to that of reward functions; without functions, the task's score is only logged."""

    def __init__(
        self, inner: Grader, scorer: TextScorer, *, weight: float, has_functions: bool, is_graded: bool
    ) -> None:
        self._inner, self._scorer, self._weight, self._has_functions = inner, scorer, weight, has_functions
        self._is_graded = is_graded  # whether the task has a score of its own

    @property
    def model(self) -> RewardModel | None:
        """The reward model in this process; None if workers have it."""
        return self._scorer.model if isinstance(self._scorer, Scorer) else None

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        """Scores completions; `parts` holds the scores of the reward model, of functions and of the task."""
        found = self._scorer.begin([example.prompt for example in examples], texts)
        return self._together(self._inner.grade(examples, texts, sampled), found(), examples, texts)

    def shares(self, prompts: int) -> list[range]:
        return self._inner.shares(prompts)

    def submit(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> Awaited:
        """Functions and workers with a reward model may run beside other work; one here runs when it is asked for."""
        given = self._inner.submit(examples, texts, sampled)
        found = self._scorer.begin([example.prompt for example in examples], texts)
        return lambda: self._together(given(), found(), examples, texts)

    def _together(
        self, given: Sequence[Score], found: Sequence[float], examples: Sequence[Example], texts: Sequence[str]
    ) -> list[Score]:
        scores = []
        for score, number, example, text in zip(given, found, examples, texts, strict=True):
            if score.is_missing:
                scores.append(score)
                continue
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
            scores.append(replace(score, reward=reward, parts={**score.parts, **task, MODEL_PART: number}))
        return scores

    def around(self, inner: Grader) -> "ModelGrader":
        """The same reward model with another grader inside."""
        same = {"has_functions": self._has_functions, "is_graded": self._is_graded}
        return ModelGrader(inner, self._scorer, weight=self._weight, **same)

    def follow(self, wanted: Callable[[], int | None], note: Note) -> None:
        """As `follow_wanted`: the workers of functions, and as many with the reward model."""
        if not isinstance(self._scorer, PooledScorer):
            follow_wanted(self._inner, wanted, note)
            return
        pool = self._scorer.pool
        pool.report(note)

        def for_both() -> int | None:
            if (number := wanted()) is not None:
                pool.resize(number)
            return number

        if isinstance(self._inner, WorkerPool):
            self._inner.follow(for_both)
        else:
            pool.follow(wanted)

    def close(self) -> None:
        self._inner.close()
        if isinstance(self._scorer, PooledScorer):
            self._scorer.pool.close()


def follow_wanted(grader: Grader, wanted: Callable[[], int | None], note: Note) -> None:
    """Has a grader with several workers ask before every batch for another number of them; others have none.

    `note` is told what happens to workers.
    """
    inner = grader.inner if isinstance(grader, TurnGrader) else grader
    if isinstance(inner, ModelGrader):
        inner.follow(wanted, note)
    elif isinstance(inner, WorkerPool):
        inner.follow(wanted)


class StepScorer(Protocol):
    """Scores completions of held-out examples with the rewards of training, after a step."""

    def __call__(self, examples: Sequence[Example], completions: Sequence[Completion], *, step: int) -> list[Score]: ...


def held_out_scorers(
    grader: Grader,
    config: OnlineConfig,
    training: Task,
    evaluation: Mapping[str, Task],
    present: Present,
    evaluating: Callable[[int], AbstractContextManager[None]],
) -> dict[str, StepScorer]:
    """Evaluation set → a function that scores its completions with the rewards of training, within `evaluating(step)`.

    Reward functions and token rewards are the same for all; a task scores the completions of its own prompts.
    """

    def score(
        grader: Grader, examples: Sequence[Example], completions: Sequence[Completion], *, step: int
    ) -> list[Score]:
        with present("reward"), evaluating(step):
            return score_completions(grader, examples, completions, step=step, steps=config.steps)

    is_shared = bool(config.reward.functions) or config.reward.tokens is not None
    graders = {
        name: grader if is_shared or task is training else _of_another_task(grader, task)
        for name, task in evaluation.items()
    }
    return {name: partial(score, one) for name, one in graders.items()}


def score_completions(
    grader: Grader, examples: Sequence[Example], completions: Sequence[Completion], *, step: int, steps: int
) -> list[Score]:
    """The scores of held-out completions after `step` of `steps` steps."""
    facts = sampled(completions, step=step, steps=steps)
    return grader.grade(examples, [completion.text for completion in completions], facts)


def _of_another_task(grader: Grader, task: Task) -> Grader:
    inner = grader.inner if isinstance(grader, TurnGrader) else grader
    own = inner.around(DirectGrader(task)) if isinstance(inner, ModelGrader) else DirectGrader(task)
    return graded_in_turns(own, task)


@cache
def part_weights(reward: RewardConfig) -> Mapping[str, float]:
    """Part of a score → its weight in the reward; empty where a task, or token rewards, put a reward together."""
    weights: dict[str, float] = {}
    for spec, weight in reward.plain()[0]:
        weights[part_name(spec, set(weights))] = weight
    return weights if reward.model is None else {**weights, MODEL_PART: reward.model.weight}


class Rewarded(Protocol):
    """The sections of a config that say how completions are rewarded."""

    @property
    def task(self) -> TaskConfig: ...

    @property
    def reward(self) -> RewardConfig: ...

    @property
    def rollout(self) -> RolloutConfig: ...


def build_grader(
    config: Rewarded,
    device: torch.device,
    task: Task,
    tokenizer: Tokenizer,
    tolerance: Tolerance | None = None,
    frozen_base: tuple[Path, Decoder] | None = None,
) -> Grader:
    """The grader around a built task; loads reward functions and models now, so that a wrong name fails at once.

    A reward model that is an adapter on the policy's frozen base shares its weights, unless it has a device of its
    own, or workers.
    """
    reward = config.reward
    if reward.tokens is not None:
        return TokenGrader(tokenizer=tokenizer, settings=reward.tokens, horizon=config.rollout.max_tokens)
    inner = make_grader(
        config.task.name,
        config.task.options,
        *reward.plain(),
        memory_limit_gb=reward.memory_limit_gb,
        environment=reward.environment,
        may_abstain=reward.model is not None,
        task=task,
        workers=reward.workers,
        prompts_per_call=reward.prompts_per_call,
        tolerance=tolerance,
    )
    if reward.model is None:
        return graded_in_turns(inner, task, tolerance)
    scorer = _scorer_of(config, reward.model, device, frozen_base, inner)
    functions, graded = bool(reward.functions), config.task.is_graded
    grader = ModelGrader(inner, scorer, weight=reward.model.weight, has_functions=functions, is_graded=graded)
    return graded_in_turns(grader, task, tolerance)


def _scorer_of(
    config: Rewarded,
    model: RewardModelConfig,
    device: torch.device,
    frozen_base: tuple[Path, Decoder] | None,
    inner: Grader,
) -> TextScorer:
    """The reward model, here or in workers; those of `inner` are ended if it cannot be loaded."""
    places = config.placement.reward if isinstance(config, OnlineConfig) else ()
    directory = resolve_model(model.path)
    try:
        if not model.workers:
            own = own_device(places, PLACE)
            shared = frozen_base if own is None and frozen_base and is_adapter_of(directory, frozen_base[0]) else None
            return load_scorer(directory, own or device, base=shared[1] if shared else None)
        for place in places:
            own_device((place,), PLACE)  # refuses one that is not here
        pool = PassPool(
            directory,
            places or ("cpu",),
            model.workers,
            threads=model.threads or torch.get_num_threads(),
            limit_seconds=model.pass_seconds,
        )
        return PooledScorer(pool, directory)
    except BaseException:
        inner.close()
        raise
