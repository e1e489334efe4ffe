"""What a recipe may say. Unknown keys are errors; the saved config reproduces the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import field_validator, model_validator

from whet.algorithms.cells import terms
from whet.algorithms.table import OBJECTIVES
from whet.config.algorithm import AlgorithmBase, AlgorithmConfig
from whet.config.parts import (
    ColdStartConfig,
    CriticConfig,
    EngineConfig,
    EvalConfig,
    ModelConfig,
    NewModel,
    OptimizerConfig,
    RewardConfig,
    RolloutConfig,
    SaveConfig,
    TaskConfig,
    UpdateConfig,
    refuse_engine,
)
from whet.config.refusals import refuse
from whet.config.section import Positive, Section, Seed, one_of
from whet.records import Sampling

__all__ = [
    "AlgorithmBase",
    "AlgorithmConfig",
    "EngineConfig",
    "NewModel",
    "OfflineConfig",
    "OnlineConfig",
    "OptimizerConfig",
    "RewardConfig",
    "RolloutConfig",
    "TrainConfig",
]


class TrainConfig(Section):
    """What both loops need."""

    steps: Positive
    seed: Seed = 0
    model: ModelConfig
    task: TaskConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    update: UpdateConfig = UpdateConfig()
    engine: EngineConfig = EngineConfig()
    eval: EvalConfig = EvalConfig()
    save: SaveConfig = SaveConfig()
    track: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @field_validator("model", mode="before")
    @classmethod
    def _model_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("task", mode="before")
    @classmethod
    def _task_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class OnlineConfig(TrainConfig):
    """Learning from rollouts."""

    loop: Literal["online"] = "online"
    algorithm: AlgorithmConfig
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    critic: CriticConfig = CriticConfig()
    cold_start: ColdStartConfig = ColdStartConfig()

    @property
    def eval_sampling(self) -> Sampling:
        """As in training, but for the length."""
        return replace(self.rollout.sampling, max_tokens=self.eval.max_tokens)

    @model_validator(mode="after")
    def _sensible(self) -> OnlineConfig:
        refuse(self.algorithm, self.rollout, self.update, self.reward)
        refuse_engine(self.engine, self.rollout)
        if self.algorithm.kl.reference == "random" and self.algorithm.needs_reference and self.model.new is None:
            raise ValueError(
                "algorithm.kl.reference is random, which needs the shape of a model.new: train one, or choose another"
            )
        if "values" in terms(self.algorithm.cell("advantage")) and self.critic.warmup_steps >= self.steps:
            raise ValueError(
                f"critic.warmup_steps {self.critic.warmup_steps} of {self.steps} steps leave the policy none: lower it"
            )
        if self.eval.max_tokens < self.rollout.max_tokens:
            raise ValueError(
                f"eval.max_tokens {self.eval.max_tokens} is less than rollout.max_tokens {self.rollout.max_tokens}: "
                "evaluation would cut off answers that training allows; raise eval.max_tokens too"
            )
        return self


class OfflineConfig(TrainConfig):
    """Learning from rows that exist: here, the task's own answers."""

    loop: Literal["offline"] = "offline"
    objective: str = "sft"
    rows: Positive = 64  # per optimizer step

    @property
    def eval_sampling(self) -> Sampling:
        """From the model's own distribution."""
        return Sampling(max_tokens=self.eval.max_tokens)

    @field_validator("objective")
    @classmethod
    def _known(cls, value: str) -> str:
        return one_of(value, OBJECTIVES)
