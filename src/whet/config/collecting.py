"""Schema of recipes that make rows instead of training a model (`loop: collect`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from whet.config.parts import EngineConfig, ModelConfig, RolloutConfig, TaskConfig, refuse_engine
from whet.config.reward import RewardConfig
from whet.config.section import Amount, Positive, Section, Seed

Select = Literal["pairs", "extremes", "best", "random", "best_overall", "random_overall", "outcomes"]


class CollectConfig(Section):
    """Completions of a model, judged: as preferences, as dialogues to imitate, or as right and wrong ones."""

    loop: Literal["collect"] = "collect"
    steps: Positive  # rounds of rollout.prompts prompts
    seed: Seed = 0
    model: ModelConfig
    task: TaskConfig
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    select: Select = "pairs"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.25  # best_overall, random_overall: share of the completions
    gap: Amount = 0.0  # pairs, extremes: the least difference of rewards; a smaller one, or none, makes no pair
    truncated: Literal["drop", "keep"] = (
        "drop"  # cut off at their limit: to imitate them is to end there; outcomes keep them
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _sensible(self) -> CollectConfig:
        refuse_engine(self.engine, self.rollout)
        if self.select in ("pairs", "extremes") and self.rollout.group < 2:
            raise ValueError(f"select is {self.select}, which needs two completions of a prompt: raise rollout.group")
        return self
