"""The schema of recipes. Unknown keys are errors; the saved config reproduces the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from whet.algorithms.cells import options, terms
from whet.algorithms.preference.preference_table import RewardObjective
from whet.config.algorithm import AlgorithmBase, AlgorithmConfig
from whet.config.data_config import DataConfig
from whet.config.eval_config import (
    OF_STORED_PROMPTS,
    EvalConfig,
    data_of,
    has_prompts_of,
    tasks_of,
    trained_on_all,
)
from whet.config.model_config import ModelConfig, NewModel, PlacementConfig
from whet.config.objective import objective_row, refuse_objective
from whet.config.parts import (
    AsynchronousConfig,
    BestConfig,
    ColdStartConfig,
    CriticConfig,
    DistributedConfig,
    EarlyStoppingConfig,
    EngineConfig,
    ObjectiveConfig,
    OffloadConfig,
    OptimizerConfig,
    RewardHeadConfig,
    RolloutConfig,
    SaveConfig,
    TaskConfig,
    UpdateConfig,
    refuse_engine,
)
from whet.config.prompt_choice import CurriculumConfig
from whet.config.refusals import (
    refuse,
    refuse_asynchronous,
    refuse_averages,
    refuse_placement,
    refuse_rounded_weights,
    refuse_spread,
    refuse_spread_offloading,
    refuse_unevaluable,
    refuse_untrainable,
)
from whet.config.reward import RewardConfig, RewardModelConfig
from whet.config.section import Above, Count, ModelPath, Positive, Section, Seed
from whet.records import Sampling

__all__ = [
    "CORPUS",
    "AlgorithmBase",
    "AlgorithmConfig",
    "AsynchronousConfig",
    "DataConfig",
    "EarlyStoppingConfig",
    "EngineConfig",
    "NewModel",
    "ObjectiveConfig",
    "OfflineConfig",
    "OnlineConfig",
    "OptimizerConfig",
    "RewardConfig",
    "RolloutConfig",
    "TaskConfig",
    "TrainConfig",
]


DATA_OF_A_TASK = (
    *("path", "sets", "format", "columns", "split", "subset", "chat"),
    *("held_out_share", "held_out_rows", "max_skipped", "limit", "streaming"),
)
CORPUS = "corpus"  # the task that is a text
TASK_OF_DATA = ("match", "pattern", "max_prompt_tokens", "overlong_prompts")  # options that only the task data has


def prompts_of_data(value: Any) -> Any:
    """A recipe with the task data in place of `data`: `data: FILE` names its file, `data.KEY` sets its options.

    For the task corpus, `data` names the text.
    """
    if not isinstance(value, Mapping) or value.get("data") is None:
        return value
    given, task = value["data"], value.get("task", {})
    options = {"sets": given} if isinstance(given, list | tuple) else given
    options = options if isinstance(options, Mapping) else {"path": options}
    named = {"name": task} if isinstance(task, str) else task
    if isinstance(named, Mapping) and named.get("name") == CORPUS:  # its own text in place of the recipe's
        return {**{key: one for key, one in value.items() if key != "data"}, "task": {**named, **options}}
    if (
        not isinstance(named, Mapping)
        or named.get("name", "data") != "data"
        or {"path", "sets"} & named.keys() & options.keys()
    ):
        raise ValueError("both task and data are set: data names the prompts of the task data; leave one out")
    twice = next(iter(named.keys() & options.keys()), None)
    if twice is not None:
        raise ValueError(f"task.{twice} and data.{twice} are both set, and mean the same here: leave one out")
    return {**{key: one for key, one in value.items() if key != "data"}, "task": {"name": "data", **named, **options}}


class TrainConfig(Section):
    """The keys of both training loops."""

    steps: Positive  # training steps
    seed: Seed = 0  # of weights, data order and sampling
    model: ModelConfig
    task: TaskConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    update: UpdateConfig = UpdateConfig()
    engine: EngineConfig = EngineConfig()
    distributed: DistributedConfig = DistributedConfig()
    eval: EvalConfig = EvalConfig()
    save: SaveConfig = SaveConfig()
    best: BestConfig = BestConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    track: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ("tensorboard",)  # also log to these
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one

    @model_validator(mode="before")
    @classmethod
    def _train_on_all(cls, value: Any) -> Any:
        """With evaluation prompts or rows in place of held-out ones, nothing is held out."""
        return trained_on_all(value) if isinstance(value, Mapping) else value

    @property
    def evaluation_tasks(self) -> dict[str, TaskConfig]:
        """Name of the evaluation set → task whose held-out prompts are answered; `PLAIN` is that without a name."""
        return tasks_of(self.eval, self.task, has_files=True)

    @property
    def trainer_engine(self) -> EngineConfig:
        """The engine in the trainer's own process."""
        return self.engine

    @model_validator(mode="after")
    def _trained_weights(self) -> TrainConfig:
        refuse_rounded_weights(self.model, self.optimizer)
        refuse_spread(self.distributed, self.trainer_engine, self.model, self.optimizer)
        return self

    @model_validator(mode="after")
    def _evaluated(self) -> TrainConfig:
        for key, is_set in (
            ("best.metric", self.best.metric),
            ("early_stopping.patience", self.early_stopping.patience),
        ):
            if is_set and not self.eval.every_steps:
                raise ValueError(f"{key} needs evaluations, and eval.every_steps is 0: set eval.every_steps")
        return self


class OnlineConfig(TrainConfig):
    """Learning from rollouts."""

    saved_if_set: ClassVar[tuple[str, ...]] = (
        *("steps", "epochs", "curriculum", "placement", "asynchronous", "distributed"),
    )
    loop: Literal["online"] = "online"  # policy gradients on rollouts (GRPO, PPO …)
    steps: Positive = 0  # 0, if it is not set: given by `epochs`
    epochs: Above | None = None  # passes over the training prompts of the task data or rows, in place of steps
    algorithm: AlgorithmConfig
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    critic: CriticConfig = CriticConfig()
    cold_start: ColdStartConfig = ColdStartConfig()
    curriculum: CurriculumConfig | None = None
    offload: OffloadConfig = OffloadConfig()
    placement: PlacementConfig = PlacementConfig()
    asynchronous: AsynchronousConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _prompts_of_data(cls, value: Any) -> Any:
        return prompts_of_data(value)

    @model_validator(mode="after")
    def _rewarded(self) -> OnlineConfig:
        if self.reward.functions or self.reward.model is not None or self.reward.tokens is not None:
            return self
        if not self.task.is_graded:
            raise ValueError(
                "there is no reward: name reward.functions (rewards.py:f) or reward.model, or set match (e.g. number) "
                "beside the path to compare completions with the answers of the rows"
            )
        for name, task in self.evaluation_tasks.items():
            if not task.is_graded:
                raise ValueError(
                    f"nothing grades the prompts of eval.data{'.' * bool(name)}{name}: use eval.task with a match, "
                    "e.g. {name: data, path: …, match: number}"
                )
        return self

    @property
    def staleness(self) -> int:
        """The most steps by which the weights that sampled are older than those that learn."""
        return 0 if self.asynchronous is None else self.asynchronous.staleness

    @property
    def judge(self) -> RewardModelConfig | None:
        """The reward model, unless it is in workers on CPUs: what the GPUs of a run have to hold."""
        model = self.reward.model
        return None if model is None or (model.workers and not self.placement.reward) else model

    @property
    def trainer_engine(self) -> EngineConfig:
        """Beside workers the trainer only evaluates, with whet's own engine: a vLLM is in each of them."""
        if self.asynchronous is None or self.engine.name == "native":
            return self.engine
        return self.engine.model_copy(update={"name": "native"})

    @property
    def eval_sampling(self) -> Sampling:
        """As in training, except for the length."""
        return replace(self.rollout.sampling, max_tokens=self.eval.max_tokens)

    @model_validator(mode="after")
    def _has_an_end(self) -> OnlineConfig:
        refuse_untrainable("task", self.task.options if self.task.name in OF_STORED_PROMPTS else {})
        if self.eval.every_steps and not self.evaluation_tasks:
            refuse_unevaluable(self.task, None)
        if bool(self.steps) == (self.epochs is not None):
            raise ValueError("say how long to train: either steps, or epochs (passes over the prompts of the task)")
        if self.epochs is not None and self.task.name not in OF_STORED_PROMPTS:
            raise ValueError(
                f"epochs counts passes over the prompts of a file (task {' or '.join(OF_STORED_PROMPTS)}), and task "
                f"{self.task.name} makes its prompts: set steps instead"
            )
        return self

    @model_validator(mode="after")
    def _sensible(self) -> OnlineConfig:
        refuse(self.algorithm, self.rollout, self.update, self.reward)
        refuse_averages(self.model, self.optimizer, self.algorithm)
        refuse_engine(self.engine, self.rollout)
        refuse_asynchronous(
            self.asynchronous, self.algorithm, self.rollout, self.critic, self.engine, self.update, self.steps
        )
        refuse_spread_offloading(self.distributed, self.offload)
        refuse_placement(self.placement, self.distributed, self.model, self.offload)
        if self.algorithm.kl.reference == "random" and self.algorithm.needs_reference and self.model.new is None:
            raise ValueError(
                "algorithm.kl.reference is random, which needs the shape of a model.new: train one, or choose another"
            )
        if self.early_stopping.kl is not None and not self.algorithm.needs_reference:
            raise ValueError(
                "early_stopping.kl is set and the algorithm has no reference model, so the KL to it is not measured: "
                "set algorithm.kl.coefficient above 0, or leave early_stopping.kl out"
            )
        if "values" in terms(self.algorithm.cell("advantage")) and 0 < self.steps <= self.critic.warmup_steps:
            raise ValueError(
                f"critic.warmup_steps {self.critic.warmup_steps} of {self.steps} steps leave the policy none: lower it"
            )
        advantage = self.algorithm.cell("advantage")
        returns = "token_rewards" in terms(advantage) and "gamma" in options(advantage)
        if self.critic.bootstrap_truncated and "values" in terms(advantage) and not returns:
            raise ValueError(
                "critic.bootstrap_truncated adds gamma·V to a token's reward, so the advantage must take token_rewards "
                "and have an option gamma: add both, or leave it out"
            )
        if self.eval.max_tokens < self.rollout.max_tokens:
            raise ValueError(
                f"eval.max_tokens {self.eval.max_tokens} is less than rollout.max_tokens {self.rollout.max_tokens}: "
                "evaluation would truncate answers that training allows; raise eval.max_tokens too"
            )
        return self


class OfflineConfig(TrainConfig):
    """Learning from existing rows: those of `data`, or the task's own answers."""

    saved_if_set: ClassVar[tuple[str, ...]] = ("distributed",)
    loop: Literal["offline"] = "offline"  # training on rows (SFT, preferences, reward models)
    objective: ObjectiveConfig = ObjectiveConfig(name="sft")
    data: DataConfig | None = None
    steps: Count = 0  # optimizer steps; 0: given by `epochs`
    epochs: Above | None = None  # passes over the training rows of `data`, in place of steps
    batch_size: Positive = 64  # per optimizer step, over all ranks: answers, dialogues, pairs, labelled completions
    reward_head: RewardHeadConfig = RewardHeadConfig()
    reference: ModelPath = ""  # the model that preferences are measured against; empty: the run's own start weights

    @property
    def eval_sampling(self) -> Sampling:
        """From the model's own distribution."""
        return Sampling(max_tokens=self.eval.max_tokens)

    @model_validator(mode="before")
    @classmethod
    def _prompts_of_the_data(cls, value: Any) -> Any:
        """Without a task, the run is evaluated on held-out prompts of the data; the task corpus takes its text."""
        if not isinstance(value, Mapping):
            return value
        if "task" in value:
            task = value["task"]
            named = task if isinstance(task, str) else task.get("name") if isinstance(task, Mapping) else ""
            return prompts_of_data(value) if named == CORPUS else value
        data = value.get("data")
        if data is None:
            raise ValueError("nothing to learn from: name data, e.g. data: pairs.jsonl, or a task that has answers")
        if isinstance(data, DataConfig):
            data = data.model_dump(exclude_unset=True)
        given = data if isinstance(data, Mapping) else {"sets" if isinstance(data, list | tuple) else "path": data}
        shared = {key: given[key] for key in DATA_OF_A_TASK if key in given}
        return {**value, "task": {"name": "data", **shared}}

    @property
    def evaluation_tasks(self) -> dict[str, TaskConfig]:
        """As of an online run; if `task` has other prompts than the data, `eval.data` is for the loss alone."""
        return tasks_of(self.eval, self.task, has_files=self.data is None or has_prompts_of(self.task, self.data))

    @property
    def evaluation_data(self) -> dict[str, DataConfig]:
        """Name of the evaluation set → data whose held-out rows are evaluated on."""
        return {} if self.data is None else data_of(self.eval, self.data)

    @model_validator(mode="after")
    def _fits(self) -> OfflineConfig:
        refuse_objective(
            self.objective, has_data=self.data is not None, has_text=self.task.name == CORPUS, reference=self.reference
        )
        refuse_untrainable("data", {} if self.data is None else self.data.model_dump())
        generates = not isinstance(objective_row(self.objective), RewardObjective)
        if self.eval.every_steps and not self.evaluation_data and not (generates and self.evaluation_tasks):
            refuse_unevaluable(self.task, self.data)
        if bool(self.steps) == (self.epochs is not None):
            raise ValueError("say how long to train: either steps (optimizer steps) or epochs (passes over the data)")
        if self.epochs is not None and self.data is None:
            raise ValueError("epochs counts passes over `data`, and a task has no end: set steps instead")
        return self
