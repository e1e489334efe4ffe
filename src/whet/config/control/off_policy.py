"""The schema of `loop: off_policy`: SAC and TD3 with a replay buffer, in environments with bounded actions."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from whet.config.control import EnvironmentConfig, EpisodesConfig, NormalizeConfig
from whet.config.parts import BestConfig, EarlyStoppingConfig, OptimizerConfig, SaveConfig
from whet.config.section import Above, Amount, Count, Positive, Section, Seed, Share

USUAL_RATES = {"sac": 3e-4, "td3": 1e-3}  # learning rates by algorithm


class OffPolicyAlgorithmConfig(Section):
    """SAC (Haarnoja et al. 2018) or TD3 (Fujimoto et al. 2018)."""

    shorthand: ClassVar[str] = "preset"
    preset: Literal["sac", "td3"]  # soft actor-critic: a stochastic policy; or TD3: a deterministic one
    gamma: Share = 0.99  # discount
    tau: Share = 0.005  # how far target networks move towards the trained ones at an update
    entropy_coefficient: Above | Literal["auto"] = "auto"  # of sac; auto: learned, to keep the entropy at its target
    target_entropy: float | None = None  # of sac: nats of an action in [−1, 1]; null: −1 for each of its numbers
    policy_delay: Positive = 2  # of td3: updates of the critics for each of the policy and the targets
    target_noise: Amount = 0.2  # of td3: deviation of the noise on the actions of targets, of actions in [−1, 1]
    target_noise_clip: Amount = 0.5  # of td3: the largest such noise
    action_noise: Amount = 0.1  # of td3: deviation of the noise on the actions that are taken


class HindsightConfig(Section):
    """Hindsight experience replay (Andrychowicz et al. 2017): goals in place of the desired ones."""

    goals: Positive = 4  # transitions with another goal for each one with its own
    strategy: Literal["future"] = "future"  # goals that the rest of the same episode achieves


class ReplayConfig(Section):
    """The replay buffer."""

    size: Positive = 1_000_000  # newest transitions that are drawn from
    learning_starts: Count = 100  # environment steps with random actions before the first update
    hindsight: HindsightConfig | None = None  # of environments with goals; null: none


class ActorConfig(Section):
    """The networks of the policy and the critics."""

    kind: ClassVar[str] = "mlp"
    history: ClassVar[int] = 1
    widths: tuple[Positive, ...] = (256, 256)  # of hidden layers
    activation: Literal["tanh", "relu"] = "relu"  # of hidden layers


class StepsBetweenConfig(Section):
    """The environment steps of a step of the loop, after which it logs, evaluates and saves."""

    environments: Positive = 1  # copies
    length: Positive = 1000  # steps in each copy


class UpdatesConfig(Section):
    """The updates between environment steps."""

    batch_size: Positive = 256  # transitions of an update
    every_steps: Positive = 1  # environment steps in each copy between updates
    gradient_steps: Positive = 1  # updates then


class OffPolicyConfig(Section):
    """Learning to act from transitions that older policies collected."""

    loop: Literal["off_policy"] = "off_policy"  # SAC and TD3 in environments (Pendulum, MuJoCo, Fetch …)
    environment: EnvironmentConfig
    steps: Positive  # of rollout.length environment steps in each copy, and the updates between them
    seed: Seed = 0  # of weights, episodes, actions and batches
    algorithm: OffPolicyAlgorithmConfig
    policy: ActorConfig = ActorConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    replay: ReplayConfig = ReplayConfig()
    rollout: StepsBetweenConfig = StepsBetweenConfig()
    update: UpdatesConfig = UpdatesConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=3e-4, beta2=0.999)
    eval: EpisodesConfig = EpisodesConfig(every_steps=5)
    save: SaveConfig = SaveConfig(every_steps=5)
    best: BestConfig = BestConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    track: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ("tensorboard",)  # also log to these
    device: Literal["auto", "cpu", "cuda"] = "cpu"  # small networks are faster on a CPU

    @model_validator(mode="before")
    @classmethod
    def _usual_keys(cls, value: Any) -> Any:
        """Keys of the optimizer that are not written are Adam's, with the rate of the algorithm."""
        if not isinstance(value, dict):
            return value
        algorithm, given = value.get("algorithm"), value.get("optimizer", {})
        preset = algorithm.get("preset") if isinstance(algorithm, dict) else algorithm
        given = {"name": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(preset, str):
            return value
        usual = {"lr": USUAL_RATES.get(preset, USUAL_RATES["sac"]), "beta2": 0.999}
        return {**value, "optimizer": {**usual, **given}}

    @model_validator(mode="after")
    def _can_be(self) -> OffPolicyConfig:
        if self.normalize.rewards:
            raise ValueError(
                "normalize.rewards would give rewards in the replay buffer another scale than new ones: leave it out, "
                "or use loop control"
            )
        if self.early_stopping.kl is not None:
            raise ValueError("early_stopping.kl is of a reference policy, which loop off_policy does not have")
        if self.replay.size < self.rollout.environments:
            raise ValueError(
                f"replay.size {self.replay.size} has no room for a step in each of {self.rollout.environments} "
                "copies (rollout.environments): raise it"
            )
        return self
