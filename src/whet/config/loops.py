"""The loops that a run can have: online, offline, control, off_policy, and collect, whose schema is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from whet.config import OfflineConfig, OnlineConfig, prompts_of_data
from whet.config.control import ControlConfig
from whet.config.control.off_policy import OffPolicyConfig
from whet.config.model_config import ModelConfig
from whet.config.parts import EngineConfig, RolloutConfig, TaskConfig, refuse_engine
from whet.config.refusals import refuse_token_rewards
from whet.config.reward import RewardConfig
from whet.config.section import Amount, Positive, Section, Seed
from whet.errors import UserError

Select = Literal["pairs", "extremes", "best", "random", "best_overall", "random_overall", "outcomes"]


class CollectConfig(Section):
    """Completions of a model, judged: as preferences, as dialogues to imitate, or as right and wrong ones."""

    loop: Literal["collect"] = "collect"  # makes rows from graded samples
    steps: Positive  # rounds of rollout.prompts prompts
    seed: Seed = 0  # of prompts and sampling
    model: ModelConfig
    task: TaskConfig
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    select: Select = "pairs"  # the rows that are made of each prompt's completions, or of all
    keep: Annotated[float, Field(gt=0, le=1)] = 0.25  # best_overall, random_overall: share of the completions
    gap: Amount = 0.0  # pairs, extremes: the least difference of rewards; a smaller one, or none, makes no pair
    truncated: Literal["drop", "keep"] = "drop"  # imitating them teaches to stop mid-sentence; outcomes keep them
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one

    @model_validator(mode="before")
    @classmethod
    def _prompts_of_data(cls, value: Any) -> Any:
        return prompts_of_data(value)

    @model_validator(mode="after")
    def _sensible(self) -> CollectConfig:
        refuse_engine(self.engine, self.rollout)
        refuse_token_rewards(self.reward)
        if self.select == "outcomes" and not self.task.is_graded:
            raise ValueError(
                "select is outcomes, and the task data has prompts alone, so no completion is right or wrong: set "
                "task.match (e.g. number) to compare completions with the answers of the rows"
            )
        if self.select in ("pairs", "extremes") and self.rollout.group < 2:
            raise ValueError(f"select is {self.select}, which needs two completions of a prompt: raise rollout.group")
        return self


Training = OnlineConfig | OfflineConfig  # of language models
Acting = ControlConfig | OffPolicyConfig  # of policies in environments
Trained = Training | Acting
Config = Trained | CollectConfig
LOOPS: dict[str, type[Config]] = {
    "online": OnlineConfig,
    "offline": OfflineConfig,
    "control": ControlConfig,
    "off_policy": OffPolicyConfig,
    "collect": CollectConfig,
}
WHOLE = {
    "algorithm": "preset",
    "model": "path",
    "task": "name",
    "objective": "name",
    "data": "path",
    "environment": "name",
    "tokens": "mode",
}
NAMED = {
    "optimizer": "name",
    "distributed": "sharding",
}  # a text in place of the section sets this key and leaves the others


def loop_of(value: Any) -> str:
    """The loop of a run that is written down, or that was read already."""
    if isinstance(value, Config):
        return value.loop
    return str(value.get("loop", "online")) if isinstance(value, Mapping) else "online"


def of_language_model(config: Config, where: str) -> Training:
    """The config, if its run trains a language model."""
    if isinstance(config, Acting):
        raise UserError(f"{where} trains a policy of actions, not a language model: its report shows its episodes")
    assert not isinstance(config, CollectConfig)
    return config


AnyConfig = Annotated[
    Annotated[OnlineConfig, Tag("online")]
    | Annotated[OfflineConfig, Tag("offline")]
    | Annotated[ControlConfig, Tag("control")]
    | Annotated[OffPolicyConfig, Tag("off_policy")]
    | Annotated[CollectConfig, Tag("collect")],
    Discriminator(loop_of),
]
