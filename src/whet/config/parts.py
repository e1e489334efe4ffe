"""The sections of a recipe other than algorithm and reward."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from whet.config.section import Above, Amount, Count, Decay, OpenSection, Positive, Section, Share, Url
from whet.records import Sampling

VLLM_COLDEST = 0.01  # vLLM silently raises a temperature below it


class NewModel(Section):
    """A model from scratch."""

    family: str = "gpt2"  # a row of models/decoder/families.py
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

    shorthand: ClassVar[str] = "path"
    path: str = ""
    new: NewModel | None = None
    gradient_checkpointing: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if bool(self.path) == (self.new is not None):
            raise ValueError("give either path (a directory, a pulled name, a run) or new, not both and not neither")
        return self


class TaskConfig(OpenSection):
    """A task by name, or `module:Class`; the other keys are the task's own options."""

    shorthand: ClassVar[str] = "name"
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


class DataConfig(Section):
    """Rows that exist: a file, a directory with rows.jsonl, or the name of a dataset on the hub."""

    shorthand: ClassVar[str] = "path"
    path: str
    format: str = "auto"  # auto: recognised by the columns
    split: str = "train"  # of a dataset on the hub
    subset: str = ""  # of a dataset on the hub
    chat: bool = False  # send a prompt that is plain text as a user's message
    held_out_share: Annotated[float, Field(gt=0, lt=1)] = 0.1  # of the conversations, chosen by their hash
    max_tokens: Positive | None = None  # of a row, the oldest turns go first; None: the model's context
    limit: Positive | None = None  # read only the first so many rows
    max_skipped: Share = 0.01  # share of broken rows above which reading is refused
    ties: Literal["keep", "drop"] = "drop"  # pairs with two equal sides or equal scores
    near_duplicates: Literal["keep", "drop"] = "keep"  # rows that almost repeat an earlier one
    turns: Literal["last", "all"] = "last"  # of a dialogue: the assistant's turns that are imitated


class ObjectiveConfig(OpenSection):
    """The objective of the offline loop by name; the other keys are its options."""

    shorthand: ClassVar[str] = "name"
    name: str


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

    kl: Above | None = None  # KL(policy ‖ reference) budget, nats a rollout on average over a step
    patience: Count = 0  # evaluations in a row in which `metric` stays below its best; 0: never stop for that
    metric: EvalMetric = ""  # empty: the one that selects the best model (best.metric)


class BestConfig(Section):
    """The best model of a run, kept in best_model/."""

    shorthand: ClassVar[str] = "metric"
    metric: EvalMetric = ""  # empty: eval/accuracy, else eval/reward, else that of the rows (pair accuracy, loss)


class ColdStartConfig(Section):
    """Supervised steps on the task's own answers before the first rollout; the reference is what they lead to."""

    steps: Count = 0
    batch_size: Positive = 64  # answers per step
    lr: Above = 1e-3


class TemperatureRange(Section):
    """The temperature follows the spread of rewards: T' = clip(T/σ, low, high), σ that of the step before."""

    low: Above
    high: Above

    @model_validator(mode="after")
    def _ordered(self) -> TemperatureRange:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class RolloutConfig(Section):
    """What is sampled at every step: `prompts` × `group` completions."""

    prompts: Positive = 16
    group: Positive = 8
    max_tokens: Positive = 256
    temperature: Above = 1.0
    adaptive_temperature: TemperatureRange | None = None
    top_k: Count = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Share = 0.0
    stop: tuple[str, ...] = ()
    mask_truncated: bool = False  # do not train on truncated completions
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
        )


class CriticConfig(Section):
    """The value model of an algorithm whose advantage takes `values`."""

    model: Literal["separate", "shared"] = "separate"  # a copy of the policy, or a head on the policy's own trunk
    lr: Above | None = None  # None: optimizer.lr
    warmup_steps: Count = 0  # first steps in which only the critic learns
    coefficient: Above = 0.5  # of the critic's loss beside the policy's: matters where the trunk is shared
    clip: Amount = 0.2  # how far a value may move from the old one in a step; 0: no clipping
    bootstrap_truncated: bool = False  # a rollout truncated by max_tokens: add γ·V after its last token to its reward


class UpdateConfig(Section):
    """How the rollouts of a step become optimizer steps."""

    epochs: Positive = 1
    minibatches: Positive = 1  # optimizer steps per epoch; a group is never split
    micro_batch_tokens: Positive | None = None  # per forward pass, by gradient accumulation; None: auto
    padding_free: bool = True  # sequences packed one behind the other, a group's prompt read once: same result
    max_grad_norm: Above = 1.0  # gradient clipping by global norm
    target_kl: Above | None = None  # approx_kl, nats a token from the step's start, above which its updates end
    mismatch_limit: Above = 0.1  # stop when sampler and trainer disagree by more (mean, nats)


class OptimizerConfig(Section):
    """AdamW and its learning rate."""

    lr: Above = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Count = 0
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Above = 1e-8
    weight_decay: Amount = 0.0


class EvalConfig(Section):
    """Held-out evaluation: greedy accuracy and, with samples, pass@k. Also before the first and after the last step."""

    every_steps: Count = 50  # 0: no evaluation, and the last model is the best
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

    name: Literal["native", "vllm"] = "native"
    max_sequences: Positive | None = None  # sampled at a time: bounds memory, never changes the text; None: auto
    precision: Literal["bf16", "fp32"] = "bf16"  # of native on a GPU; in fp32 texts hardly depend on their batch
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.4  # of the GPU, for vllm in this process while it samples
    url: Url = ""  # of a running `vllm serve` that follows the policy; without one vllm runs in this process
    weights_directory: str = ""  # a folder that this process and the one behind url see; needed on two machines

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

    reference: Offload = "auto"
    reward: Offload = "auto"  # the reward model
    critic: Offload = "auto"
    optimizer: Offload = "auto"  # the moments of policy and critic

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return dict.fromkeys(cls.model_fields, value) if isinstance(value, str) else value
