"""The sections of a recipe other than algorithm and reward."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from whet.config.prompt_choice import PassRateRange
from whet.config.section import (
    Above,
    Amount,
    CodePath,
    Count,
    Decay,
    Folder,
    OpenSection,
    Positive,
    Seconds,
    Section,
    Share,
    Url,
    absolute_file,
)
from whet.records import Sampling

ROUNDING = 1e-9  # 0.07 · 100 is a little more than 7 in floating point
LIKE_A_PATH = re.compile(r"/|\.\w+$")
VLLM_COLDEST = 0.01  # vLLM silently raises a temperature below it


MIXTURE = "mixture"  # the task that is several tasks


class TaskConfig(OpenSection):
    """A task by name, or `module:Class`; the other keys are the task's own options."""

    shorthand: ClassVar[str] = "name"
    name: CodePath  # a packaged task (see `whet tasks`), or your own as file.py:Class

    @property
    def is_graded(self) -> bool:
        """Whether the task judges completions itself; `data` without `match` is prompts alone."""
        if self.name == MIXTURE:
            return all(task.is_graded for task in self.mixed)
        return self.name != "data" or bool(self.options.get("match"))

    @property
    def mixed(self) -> list[TaskConfig]:
        """The tasks of a mixture; of another task none."""
        tasks = self.options.get("tasks") if self.name == MIXTURE else None
        return [_member(one)[0] for one in tasks or () if _is_member(one)]

    @model_validator(mode="before")
    @classmethod
    def _absolute_paths(cls, value: Any) -> Any:
        """Options that name an existing file: `path`, also of `sets`; of a user's task what looks like a path."""
        if not isinstance(value, Mapping):
            return value
        if value.get("name") == MIXTURE and isinstance(value.get("tasks"), list | tuple):
            return {**value, "tasks": [_absolute_member(one) for one in value["tasks"]]}
        if ":" in str(value.get("name")):
            return {key: option if key == "name" else _absolute_paths(option, key) for key, option in value.items()}
        sets = value.get("sets")
        several = [_absolute_set(one) for one in sets] if isinstance(sets, list | tuple) else sets
        return {**_absolute_set(value), **({} if sets is None else {"sets": several})}

    @model_validator(mode="after")
    def _plain_options(self) -> TaskConfig:
        try:
            json.dumps(self.options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"an option is neither text nor a finite number, a list or a mapping of them: {error}"
            ) from None
        return self


def _is_member(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, Mapping) and isinstance(value.get("name"), str))


def _member(value: Any) -> tuple[TaskConfig, dict[str, Any]]:
    """A task of a mixture, and its keys there."""
    given = {"name": value} if isinstance(value, str) else dict(value)
    own = {key: given.pop(key) for key in ("weight", "label") if key in given}
    return TaskConfig(**given), own


def _absolute_member(value: Any) -> Any:
    """A task of a mixture with absolute paths; what is none is refused where the mixture is made."""
    if not _is_member(value):
        return value
    task, own = _member(value)
    return {"name": task.name, **own, **task.options}


def _absolute_set(value: Any) -> Any:
    """A data set, which is a path or a mapping that has one."""
    if isinstance(value, str):
        return absolute_file(value)
    path = value.get("path") if isinstance(value, Mapping) else None
    return {**value, "path": absolute_file(path)} if isinstance(path, str) else value


def _absolute_paths(option: Any, key: str) -> Any:
    """What looks like the path of an existing file in an option, also inside of lists and mappings."""
    if isinstance(option, str):
        return absolute_file(option) if key == "path" or LIKE_A_PATH.search(option) else option
    if isinstance(option, Mapping):
        return {inner: _absolute_paths(one, str(inner)) for inner, one in option.items()}
    return [_absolute_paths(one, key) for one in option] if isinstance(option, list | tuple) else option


class ObjectiveConfig(OpenSection):
    """The objective of the offline loop by name; the other keys are its options."""

    shorthand: ClassVar[str] = "name"
    name: CodePath  # sft, a preference loss, a reward-model loss, or your own as file.py:function


class RewardHeadConfig(Section):
    """The scores of a reward model, and at which tokens they are given."""

    every_token: bool = True  # outcome: learned at every token of a completion; else at its last one
    classes: Literal[2, 3] = 3  # process: bad, neither, good; or bad, fine
    separator: str = "\n"  # process: ends each step
    aggregation: Literal["product", "min", "last"] = "product"  # process: of the steps to one number


def _of_an_evaluation(metric: str) -> str:
    if metric and not metric.startswith("eval/"):
        raise ValueError(f"{metric!r} is not measured by evaluations: use e.g. eval/accuracy or eval/reward")
    return metric


EvalMetric = Annotated[str, AfterValidator(_of_an_evaluation)]


class EarlyStoppingConfig(Section):
    """Early stopping: when a run ends before its last step."""

    saved_if_set: ClassVar[tuple[str, ...]] = ("alarm",)
    kl: Above | None = None  # KL(policy ‖ reference) budget, nats a rollout on average over a step
    patience: Count = 0  # evaluations in a row without an improvement of `metric`, after which the run ends; 0: never
    metric: EvalMetric = ""  # empty: the one that selects the best model (best.metric)
    alarm: Literal["never", "critical", "warning"] = "never"  # the run ends when the doctor finds a fault of this level


class BestConfig(Section):
    """The best model of a run, kept in best_model/; equal ones are told apart by their other measures."""

    shorthand: ClassVar[str] = "metric"
    metric: EvalMetric = ""  # empty: eval/accuracy, else eval/reward, else that of the rows (pair accuracy, loss)


class ColdStartConfig(Section):
    """Supervised steps on the task's own answers before the first rollout; the reference is what they lead to."""

    steps: Count = 0  # supervised steps; 0: none
    batch_size: Positive = 64  # answers per step
    lr: Above = 1e-3  # constant


class TemperatureRange(Section):
    """The temperature follows the spread of rewards: T' = clip(T/σ, low, high), σ that of the step before."""

    low: Above  # lowest temperature
    high: Above  # highest temperature

    @model_validator(mode="after")
    def _ordered(self) -> TemperatureRange:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class RolloutConfig(Section):
    """What is sampled at every step: `prompts` × `group` completions."""

    saved_if_set: ClassVar[tuple[str, ...]] = ("min_tokens", "repetition_penalty", "pass_rate", "max_turns")
    prompts: Positive = 16  # prompts of a step, over all ranks
    group: Positive = 8  # completions of each prompt
    max_tokens: Positive = 256  # longest completion; with an environment, the policy's tokens of all turns together
    max_turns: Positive | None = None  # of a conversation with the task's environment; null: no limit but max_tokens
    temperature: Above = 1.0  # of sampling; log-probs are those of this distribution
    adaptive_temperature: TemperatureRange | None = None
    top_k: Count = 0  # sample from the k most likely tokens; 0: all
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # sample from the most likely tokens of this mass (nucleus)
    min_p: Share = 0.0  # drop tokens below this share of the likeliest one's probability
    stop: tuple[str, ...] = ()  # texts that end a completion; they are part of it
    min_tokens: Count = 0  # of a completion: tokens that end it are not sampled before
    repetition_penalty: Above = 1.0  # above 1: tokens of the prompt and the completion so far become less likely
    mask_truncated: bool = False  # do not train on truncated completions
    pass_rate: PassRateRange | None = None
    max_resamples: Count = 4  # at most so many rounds of new prompts for the groups that dynamic sampling drops

    @cached_property
    def sampling(self) -> Sampling:
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            stop=self.stop,
            min_tokens=self.min_tokens,
            repetition_penalty=self.repetition_penalty,
        )

    @model_validator(mode="after")
    def _min_tokens_fit(self) -> RolloutConfig:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}: lower it")
        if self.min_tokens and self.stop:
            raise ValueError(
                "min_tokens holds back stop tokens and cannot hold back stop strings: leave out one of the two"
            )
        return self


class CriticConfig(Section):
    """The value model of an algorithm whose advantage takes `values`."""

    model: Literal["separate", "shared"] = "separate"  # a copy of the policy, or a head on the policy's own trunk
    lr: Above | None = None  # null: optimizer.lr
    warmup_steps: Count = 0  # first steps in which only the critic learns
    coefficient: Above = 0.5  # of the critic's loss beside the policy's: matters where the trunk is shared
    clip: Amount = 0.2  # how far a value may move from the old one in a step; 0: no clipping
    bootstrap_truncated: bool = False  # a rollout truncated by max_tokens: add γ·V after its last token to its reward


class UpdateConfig(Section):
    """How the rollouts of a step become optimizer steps."""

    epochs: Positive = 1  # passes over the rollouts of a step (PPO epochs)
    minibatches: Positive = 1  # optimizer steps per epoch; a group is never split
    micro_batch_tokens: Positive | None = None  # per forward pass, by gradient accumulation; null: auto
    padding_free: bool = True  # sequences packed one behind the other, a group's prompt read once: same result
    max_grad_norm: Above = 1.0  # gradient clipping by global norm
    target_kl: Above | None = None  # approx_kl, nats a token from the step's start, above which its updates end
    mismatch_limit: Above = 0.1  # stop when sampler and trainer disagree by more (mean, nats)


class OptimizerConfig(Section):
    """The optimizer, its learning rate and its weight decay."""

    shorthand: ClassVar[str] = "name"
    saved_if_set: ClassVar[tuple[str, ...]] = (
        *("name", "master_weights", "warmup_share", "decay_share", "min_lr_share", "momentum", "weight_decay_on"),
    )
    name: Literal["adamw", "adamw_bf16", "adamw_8bit", "lion", "muon"] = "adamw"  # bf16, 8 bits: the moments
    lr: Above = 1e-5  # peak learning rate; `lr=` for short
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"  # wsd: warm-up, stable, linear decay
    warmup_steps: Count = 0  # the rate rises linearly over so many steps
    warmup_share: Share = 0.0  # of the steps, in place of warmup_steps
    decay_share: Share = 0.2  # of the steps, at the end of wsd
    min_lr_share: Decay = 0.0  # share of lr that linear, cosine and wsd fall to
    beta1: Decay = 0.9  # decay of the mean gradient
    beta2: Decay = 0.95  # decay of the mean squared gradient
    epsilon: Above = 1e-8  # of AdamW, in the denominator
    momentum: Decay = 0.95  # of muon
    weight_decay: Amount = 0.0  # decoupled, of the weights that weight_decay_on names
    weight_decay_on: Literal["matrices", "hidden", "all"] = "matrices"  # hidden: matrices but embeddings and heads
    master_weights: Literal["fp32", "bf16", "offload"] = "fp32"  # on a GPU; offload: in host memory, with the moments

    @model_validator(mode="after")
    def _one_warmup(self) -> OptimizerConfig:
        if self.warmup_steps and self.warmup_share:
            raise ValueError("warmup_steps and warmup_share are both set: leave one out")
        return self

    @model_validator(mode="after")
    def _master_weights_of_adamw(self) -> OptimizerConfig:
        if self.master_weights != "fp32" and self.name not in ("adamw", "adamw_bf16"):
            raise ValueError(
                f"master_weights {self.master_weights} with name {self.name}: it is for adamw and adamw_bf16"
            )
        return self

    def warmup(self, steps: int) -> int:
        """Steps of warm-up in a run of so many steps."""
        return self.warmup_steps or ceil(self.warmup_share * steps - ROUNDING)


SavedOptimizer = Literal["exact", "bf16", "8bit", "none"]


class SaveConfig(Section):
    """Checkpoints (also at the end and on Ctrl-C), and which steps' rollouts are kept."""

    saved_if_set: ClassVar[tuple[str, ...]] = ("top_tokens", "optimizer", "delete_old")
    every_steps: Positive = 50  # steps between checkpoints
    keep: Positive = 2  # newest checkpoints that are kept; the best model is kept besides
    rollouts_every_steps: Positive = 1  # steps between those whose rollouts are kept
    top_tokens: Annotated[int, Field(ge=0, le=100)] = 0  # likeliest tokens, with log-probs, in the place of each token
    optimizer: SavedOptimizer = "exact"  # the optimizer's moments in checkpoints; only exact resumes bit for bit
    delete_old: Literal["after", "before"] = "after"  # the new checkpoint is complete; before: less room, not safe

    def keeps_rollouts(self, step: int, steps: int) -> bool:
        """Whether those of a step are kept; those of the last of all steps are."""
        return step % self.rollouts_every_steps == 0 or step == steps


class DistributedConfig(Section):
    """How the processes of `torchrun` hold the models of a run."""

    shorthand: ClassVar[str] = "sharding"
    sharding: Literal["none", "fsdp2", "zero3"] = "none"  # none: whole on every GPU; else spread over them
    cpu_offload: bool = False  # of fsdp2: weights and moments in host memory until a block computes
    replicas: Positive = 1  # of fsdp2: groups of GPUs that each hold all weights, e.g. one for each node


class EngineConfig(Section):
    """Where completions come from."""

    name: Literal["native", "vllm"] = "native"  # the sampler: that of whet, or vLLM
    max_sequences: Positive | None = None  # sampled at a time: bounds memory, never changes the text; null: auto
    precision: Literal["bf16", "fp32"] = "bf16"  # of native on a GPU; in fp32 texts hardly depend on their batch
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.4  # of the GPU, for vllm in this process while it samples
    url: Url = ""  # of a running `vllm serve` that follows the policy; without one vllm runs in this process
    weights_directory: Folder = ""  # a folder that this process and the one behind url see; needed on two machines

    @model_validator(mode="after")
    def _one_place(self) -> EngineConfig:
        if self.url and self.name != "vllm":
            raise ValueError(
                f"url is for a vLLM server and name is {self.name!r}: set name to vllm, or leave the url out"
            )
        if self.weights_directory and not self.url:
            raise ValueError("weights_directory is for a server and there is no url: leave it out")
        return self


def refuse_engine(engine: EngineConfig, rollout: RolloutConfig) -> None:
    """Raises a ValueError where an engine would not draw from the distribution that the trainer thinks of."""
    if engine.name != "vllm":
        return
    if rollout.min_tokens or rollout.repetition_penalty != 1:
        raise ValueError(
            "rollout.min_tokens or rollout.repetition_penalty with engine.name vllm, whose log-probs under them are "
            "not verified to be the trainer's: use engine.name native, or leave them out"
        )
    if rollout.top_p < 1 and rollout.min_p > 0:
        raise ValueError(
            "rollout.top_p and rollout.min_p with engine.name vllm, which applies them in the other order, so that "
            "it keeps other tokens than the trainer: use one of the two"
        )
    low = rollout.temperature if rollout.adaptive_temperature is None else rollout.adaptive_temperature.low
    if low < VLLM_COLDEST:
        raise ValueError(
            f"a temperature of {low:g} with engine.name vllm, which samples at {VLLM_COLDEST:g} or above: raise it"
        )


Offload = Literal["auto", "never", "always"]


class OffloadConfig(Section):
    """On a GPU: `always` keeps a model in the host's memory until it is used, `never` keeps it on the GPU.

    auto: offloaded only if together they would take most of the GPU's memory. It never changes a result. A plain value
    is that of all four.
    """

    reference: Offload = "auto"  # the reference model
    reward: Offload = "auto"  # the reward model
    critic: Offload = "auto"  # the value model
    optimizer: Offload = "auto"  # the moments of policy and critic

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return dict.fromkeys(cls.model_fields, value) if isinstance(value, str) else value


class AsynchronousConfig(Section):
    """Workers sample the rollouts of later steps while the trainer updates. Timing never changes a result."""

    shorthand: ClassVar[str] = "staleness"
    saved_if_set: ClassVar[tuple[str, ...]] = (
        *("parts", "in_flight_updates", "segment_tokens"),
        *("hand_off", "hand_off_seconds"),
    )
    staleness: Count = 1  # at most so many steps older are the weights that sampled; 0: the synchronous run
    workers: Positive = 1  # number of workers, each with a copy of the policy, parts × (S + 1) at most
    parts: Positive = 1  # into which the prompts of a draw are divided; a worker samples one at a time
    in_flight_updates: bool = False  # later tokens of a completion are sampled with newer weights than its first ones
    segment_tokens: Positive | None = None  # with the same weights, then; null: rollout.max_tokens / S
    pool: Literal["processes", "ray"] = "processes"  # of this machine, or actors of a Ray cluster
    ticket_seconds: Above = 1800.0  # for a part of a draw; a worker that takes longer is killed and started again
    threads: Positive | None = None  # CPU threads of a worker; null: as many as the trainer has
    weights_directory: Folder = ""  # where weights are handed over; all nodes must see it; empty: in the run directory
    hand_off: Literal["files", "broadcast"] = "files"  # how the weights of a version reach the workers
    hand_off_seconds: Seconds = 300.0  # for a broadcast; then it is called off, and made again to those that answer
