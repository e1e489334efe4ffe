"""What a recipe may say. Unknown keys are errors; the saved config reproduces the run.

Options of an algorithm's cell stand under the cell's name (`algorithm.clip.high`) and come from its signature, so a
new cell needs no change here. A preset is resolved into its cells when the recipe is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, create_model, field_validator, model_validator

from whet.algorithms.cells import Cell, name, options, terms
from whet.algorithms.table import (
    ADVANTAGES,
    ALGORITHMS,
    GROUP_STATISTICS,
    KL_ESTIMATORS,
    OBJECTIVES,
    SURROGATES,
    WEIGHTINGS,
)
from whet.records import Sampling

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch's generators take


class Section(BaseModel):
    """A part of a recipe: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts True as 1, and `steps: yes` would be one step.
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float):
            raise ValueError(f"must be a number, not {str(value).lower()}")
        return value


class NewModel(Section):
    """A model from scratch."""

    family: Literal["gpt2", "llama", "qwen2", "qwen3", "olmo2"] = "gpt2"
    layers: Positive = 4
    heads: Positive = 4
    width: Positive = 128
    context: Positive = 256
    tokenizer: str = "characters"  # of the task's alphabet; or `tiktoken:gpt2`, or the directory of a saved tokeniser

    @model_validator(mode="after")
    def _divisible(self) -> NewModel:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class ModelConfig(Section):
    """A directory, a pulled name or a run; or a new model."""

    path: str = ""
    new: NewModel | None = None
    gradient_checkpointing: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if bool(self.path) == (self.new is not None):
            raise ValueError("give either path (a directory, a pulled name, a run) or new, not both and not neither")
        return self


class TaskConfig(BaseModel):
    """A task by name, or `module:Class`; the other keys are the task's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="after")
    def _plain_options(self) -> TaskConfig:
        try:
            json.dumps(self.options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"an option is neither text nor a finite number, a list or a mapping of them: {error}"
            ) from None
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class RewardFunction(Section):
    """A function of the user's that scores completions: `module:function` or `file.py:function`."""

    use: str
    weight: float = 1.0

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value


class RewardConfig(Section):
    """Where the training reward comes from: the task itself unless functions are named."""

    functions: tuple[RewardFunction, ...] = ()
    time_limit_seconds: Annotated[float, Field(gt=0)] = 60.0  # for all completions of a step

    def plain(self) -> tuple[list[tuple[str, float]], float]:
        """(spec, weight) of each function, and the time limit."""
        return [(function.use, function.weight) for function in self.functions], self.time_limit_seconds


class KlConfig(Section):
    """KL(policy ‖ reference): the reference is the model that the run starts from."""

    coefficient: Annotated[float, Field(ge=0)] = 0.0
    estimator: str = "k3"
    place: Literal["loss", "reward"] = "loss"

    @field_validator("estimator")
    @classmethod
    def _known(cls, value: str) -> str:
        return _one_of(value, KL_ESTIMATORS)

    @model_validator(mode="after")
    def _regularises(self) -> KlConfig:
        """What does not pull the policy towards the reference, by enumeration (tests/algorithms/test_kl.py)."""
        if self.coefficient > 0 and self.place == "loss" and self.estimator == "k1":
            raise ValueError("k1 in the loss has an expected gradient of zero: use k2 or k3, or place: reward")
        if self.coefficient > 0 and self.place == "reward" and self.estimator != "k1":
            raise ValueError(
                f"only k1 in the reward has the gradient of the KL, not {self.estimator}: use estimator: k1"
            )
        return self


class AlgorithmBase(Section):
    """A preset, resolved into its cells; any cell may be replaced by name."""

    preset: str = "custom"
    advantage: str
    surrogate: str
    weighting: str
    kl: KlConfig = KlConfig()

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Any:
        value = {"preset": value} if isinstance(value, str) else value
        if not isinstance(value, Mapping) or value.get("preset", "custom") == "custom":
            return value
        row = ALGORITHMS[_one_of(str(value["preset"]), ALGORITHMS)]
        cells = {"advantage": row.advantage, "surrogate": row.surrogate, "weighting": row.weighting}
        resolved: dict[str, Any] = {key: name(cell) for key, cell in cells.items()}
        resolved |= {name(cell): options(cell) for cell in cells.values() if options(cell)}
        resolved["kl"] = {"coefficient": row.kl_coefficient, "estimator": name(row.kl), "place": row.kl_place}
        return _merge(resolved, value)

    @model_validator(mode="after")
    def _cells_exist(self) -> AlgorithmBase:
        _one_of(self.advantage, ADVANTAGES)
        _one_of(self.surrogate, SURROGATES)
        _one_of(self.weighting, WEIGHTINGS)
        return self

    def options_of(self, cell: str) -> dict[str, Any]:
        """The options that stand under a cell's name."""
        section: dict[str, Any] = self.model_dump().get(cell, {})
        return section


def _option_sections() -> dict[str, Any]:
    """One section per cell that has options, from its signature."""
    cells: list[Cell] = [*ADVANTAGES.values(), *SURROGATES.values(), *WEIGHTINGS.values()]
    sections: dict[str, Any] = {}
    for cell in cells:
        if options(cell):
            # A clip range, a temperature, a tolerance: no option so far means anything below zero.
            fields: dict[str, Any] = {
                key: (Annotated[type(value), Field(ge=0)], value) for key, value in options(cell).items()
            }
            section = create_model(f"{name(cell).title()}Options", __base__=Section, **fields)
            sections[name(cell)] = (section, section())
    return sections


AlgorithmConfig = create_model("AlgorithmConfig", __base__=AlgorithmBase, **_option_sections())


class RolloutConfig(Section):
    """What is sampled at every step: `prompts` × `group` completions."""

    prompts: Positive = 16
    group: Positive = 8
    max_tokens: Positive = 256
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Count = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Share = 0.0
    stop: tuple[str, ...] = ()

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            stop=self.stop,
        )


class UpdateConfig(Section):
    """How the rollouts of a step become optimizer steps."""

    epochs: Positive = 1
    minibatches: Positive = 1  # optimizer steps per epoch; groups are kept whole
    micro_tokens: Positive = 4096  # padded tokens per forward pass: bounds memory, never changes the result
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    mismatch_limit: Annotated[float, Field(gt=0)] = 0.1  # stop when sampler and trainer disagree by more (mean, nats)


class OptimizerConfig(Section):
    """AdamW and its learning rate."""

    lr: Annotated[float, Field(gt=0)] = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Count = 0
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class EvalConfig(Section):
    """Held-out evaluation: greedy accuracy and, with samples, pass@k. Also before the first and after the last step."""

    every_steps: Positive = 50
    examples: Positive = 200
    max_tokens: Positive = 256
    samples: Count = 0
    ks: tuple[Positive, ...] = ()

    @model_validator(mode="after")
    def _enough_samples(self) -> EvalConfig:
        if self.ks and max(self.ks) > self.samples:
            raise ValueError(f"pass@{max(self.ks)} needs at least {max(self.ks)} samples, not {self.samples}")
        return self


class SaveConfig(Section):
    """Checkpoints (also at the end and on Ctrl-C), and which steps' rollouts are kept."""

    every_steps: Positive = 50
    keep: Positive = 2
    rollouts_every_steps: Positive = 1


class EngineConfig(Section):
    """Where completions come from."""

    name: Literal["native"] = "native"
    max_sequences: Positive = 256  # sampled at a time: bounds memory, never changes the text


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
    algorithm: AlgorithmConfig  # type: ignore[valid-type]
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()

    @property
    def eval_sampling(self) -> Sampling:
        """As in training, but for the length."""
        return replace(self.rollout.sampling, max_tokens=self.eval.max_tokens)

    @model_validator(mode="after")
    def _sensible(self) -> OnlineConfig:
        algorithm: AlgorithmBase = self.algorithm
        if self.rollout.group == 1 and ADVANTAGES[algorithm.advantage] in GROUP_STATISTICS:
            raise ValueError(
                f"rollout.group is 1 and advantage {algorithm.advantage!r} compares the rollouts of a group: "
                "set rollout.group to 2 or more, or algorithm.advantage=raw"
            )
        updates = self.update.epochs * self.update.minibatches
        if updates > 1 and "logprobs_old" not in terms(SURROGATES[algorithm.surrogate]):
            raise ValueError(
                f"{updates} updates per rollout with surrogate {algorithm.surrogate!r}, which has no ratio and is only "
                "right for the first: set update.epochs and update.minibatches to 1, or algorithm.surrogate=clip"
            )
        rollout = self.rollout
        if algorithm.kl.coefficient > 0 and (rollout.top_k or rollout.top_p < 1 or rollout.min_p):
            raise ValueError(
                "algorithm.kl with rollout.top_k, top_p or min_p: policy and reference lose different tokens, "
                "so their KL is not one; leave one of them out"
            )
        if self.eval.max_tokens < rollout.max_tokens:
            raise ValueError(
                f"eval.max_tokens {self.eval.max_tokens} is less than rollout.max_tokens {rollout.max_tokens}: "
                "evaluation would cut off answers that training allows; raise eval.max_tokens too"
            )
        if self.update.minibatches > self.rollout.prompts:
            raise ValueError(
                f"update.minibatches {self.update.minibatches} is more than rollout.prompts {self.rollout.prompts}: "
                "groups are kept whole, so each minibatch needs a prompt"
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
        return _one_of(value, OBJECTIVES)


def _one_of(value: str, table: Mapping[str, Any]) -> str:
    if value not in table:
        raise ValueError(f"unknown name {value!r}; known: {', '.join(table)}")
    return value


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins; nested mappings are merged key by key."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
