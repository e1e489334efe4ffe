"""The schema of `loop: control`: policy gradients in environments whose actions are numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from whet.algorithms.cells import is_per_sequence, name, plain, terms
from whet.algorithms.table import DYNAMIC_SAMPLING, GROUP_STATISTICS
from whet.config.algorithm import AlgorithmConfig
from whet.config.parts import BestConfig, EarlyStoppingConfig, OptimizerConfig, SaveConfig
from whet.config.section import Above, Amount, CodePath, Count, OpenSection, Positive, Section, Seed

# What the loop can supply to an advantage; a policy of actions has no prompts, tokens or reference.
SUPPLIED = {"rewards", "counts", "token_rewards", "values", "logprobs_old", "mask"}


class EnvironmentConfig(OpenSection):
    """The environment by its registered id, or your own `file.py:Class`; the other keys are its own options."""

    shorthand: ClassVar[str] = "name"
    name: CodePath  # e.g. CartPole-v1, package:Name-v0 or file.py:Class
    max_steps: Positive | None = None  # of an episode, which is then truncated; null: the environment's own limit


class PolicyConfig(Section):
    """The networks, and the distribution of actions."""

    kind: Literal["mlp", "cnn", "transformer"] = "mlp"  # cnn: of pictures; transformer: over the newest observations
    widths: tuple[Positive, ...] = (64, 64)  # of hidden layers; of a transformer the first
    activation: Literal["tanh", "relu"] = "tanh"  # of mlp
    shared: bool = False  # one network for actions and values
    orthogonal: bool = True  # orthogonal weights at the start
    log_std: float = 0.0  # of Gaussian actions at the start
    state_std: bool = False  # the deviation of Gaussian actions depends on the state
    squash: bool = False  # Gaussian actions pass through tanh, stretched to their bounds; else they are clipped
    history: Positive = 1  # newest observations that are seen
    layers: Positive = 2  # of a transformer
    heads: Positive = 4  # of a transformer


class NormalizeConfig(Section):
    """Running statistics of observations and returns; they are saved with the policy."""

    observations: bool = False  # (x − mean) / deviation
    rewards: bool = False  # divided by the deviation of discounted returns
    clip: Above = 10.0  # largest normalised observation and reward


class StepsConfig(Section):
    """What is collected at every step."""

    environments: Positive = 8  # copies, or starts that have `group` copies each
    processes: Positive = 1  # that the copies are shared among; 1: they are stepped in turn by this one
    length: Count = 128  # steps in each copy, across episodes; 0: whole episodes, each from a new start
    group: Positive = 1  # episodes from the same start (reset seed), for algorithms that compare a group


class ActorCriticConfig(Section):
    """The critic of an algorithm whose advantage takes `values`."""

    coefficient: Above = 0.5  # of the critic's loss beside the policy's
    clip: Amount = 0.0  # how far a value may move from the old one in a step; 0: no clipping


class DescentConfig(Section):
    """How the steps of a rollout become optimizer steps."""

    epochs: Positive = 1  # passes over the rollout
    minibatch: Count = 0  # actions of an optimizer step; 0: all
    max_grad_norm: Above = 0.5  # gradient clipping by global norm
    target_kl: Above | None = None  # approx_kl, nats an action, above which the updates of a rollout end
    anneal_clip: bool = False  # the options low and high of `clip` fall linearly to 0 over the run


class EpisodesConfig(Section):
    """Evaluation on starts that no training episode has."""

    every_steps: Count = 50  # steps between evaluations; 0: none, and the last policy is the best
    episodes: Positive = 100  # of an evaluation
    deterministic: bool = True  # the likeliest action; else actions are sampled


class ControlConfig(Section):
    """Learning to act from rewards."""

    loop: Literal["control"] = "control"  # policy gradients in environments (CartPole, MuJoCo …)
    environment: EnvironmentConfig
    steps: Positive  # rollouts, each followed by updates
    seed: Seed = 0  # of weights, episodes and actions
    algorithm: AlgorithmConfig
    policy: PolicyConfig = PolicyConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    rollout: StepsConfig = StepsConfig()
    critic: ActorCriticConfig = ActorCriticConfig()
    update: DescentConfig = DescentConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=3e-4, beta2=0.999, epsilon=1e-5)
    eval: EpisodesConfig = EpisodesConfig()
    save: SaveConfig = SaveConfig()
    best: BestConfig = BestConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    track: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ("tensorboard",)  # also log to these
    device: Literal["auto", "cpu", "cuda"] = "cpu"  # small networks are faster on a CPU

    @model_validator(mode="before")
    @classmethod
    def _adam_of_control(cls, value: Any) -> Any:
        """Keys of the optimizer that are not written are those of this loop, not those of language models."""
        if isinstance(value, dict) and isinstance(value.get("optimizer"), dict):
            usual = {"lr": 3e-4, "beta2": 0.999, "epsilon": 1e-5}
            return {**value, "optimizer": {**usual, **value["optimizer"]}}
        return value

    @property
    def needs_values(self) -> bool:
        """Whether a critic is trained."""
        return "values" in terms(self.algorithm.cell("advantage"))

    @model_validator(mode="after")
    def _has_what_the_algorithm_asks(self) -> ControlConfig:
        cells = {kind: self.algorithm.cell(kind) for kind in ("advantage", "scaling", "surrogate")}
        advantage, surrogate = cells["advantage"], cells["surrogate"]
        missing = set(terms(advantage)) - SUPPLIED
        if missing or self.algorithm.needs_reference:
            what = min(missing) if missing else "a reference policy"
            raise ValueError(f"algorithm {self.algorithm.preset} asks for {what}, which loop control does not have")
        if is_per_sequence(surrogate):
            raise ValueError(
                f"{name(surrogate)} has one ratio for a whole sequence: use clip, or another of one action"
            )
        if plain(self.algorithm.cell("dynamic_sampling")) is not DYNAMIC_SAMPLING["keep_all"]:
            raise ValueError("dynamic sampling draws other prompts, and an environment has none: use keep_all")
        if self.algorithm.importance_correction != "uncorrected":
            raise ValueError("importance_correction is for samplers that differ from the policy, and none does here")
        if self.rollout.length and not {"token_rewards", "values"} <= set(terms(advantage)):
            raise ValueError(
                f"{name(advantage)} needs whole episodes, because without a critic nothing stands for what follows a "
                "fragment: set rollout.length=0, or use gae"
            )
        if plain(advantage) in GROUP_STATISTICS and self.rollout.group < 2:
            raise ValueError(f"{name(advantage)} compares the episodes of a group: set rollout.group above 1")
        if self.rollout.length and self.rollout.group > 1:
            raise ValueError("rollout.group is for whole episodes: set rollout.length=0")
        if self.normalize.rewards and not self.rollout.length:
            raise ValueError(
                "normalize.rewards follows returns across rollouts of fragments: set rollout.length above 0"
            )
        if self.early_stopping.kl is not None:
            raise ValueError("early_stopping.kl is of a reference policy, which loop control does not have")
        return self
