"""One training of Stable-Baselines3, where it is installed: `-m studies.control.side_sb3 ENVIRONMENT SEED [STEPS]`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from studies.control.cases import recipe
from whet.control.seeds import EVALUATION, episode_seed

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}


class Clock(BaseCallback):  # type: ignore[misc]
    """Seconds at the beginning of every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.processor: list[float] = []
        self.wall: list[float] = []
        self.curve: list[list[float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.processor.append(time.process_time())
        self.wall.append(time.perf_counter())

    def _on_rollout_end(self) -> None:
        if self.model.ep_info_buffer:
            mean = float(np.mean([one["r"] for one in self.model.ep_info_buffer]))
            self.curve.append([self.num_timesteps, round(mean, 2)])


def linear(start: float) -> Any:
    return lambda left: left * start


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """The keys of a recipe as Stable-Baselines3 names them; its loss of the critic has no ½."""
    update, algorithm, optimizer = case["update"], case["algorithm"], case.get("optimizer", {})
    policy, clip = case.get("policy", {}), algorithm.get("clip", {}).get("high", 0.2)
    rate = optimizer.get("lr", 3e-4)
    return {
        "n_steps": case["rollout"]["length"],
        "batch_size": update["minibatch"],
        "n_epochs": update["epochs"],
        "gamma": algorithm["gae"]["gamma"],
        "gae_lambda": algorithm["gae"]["lam"],
        "ent_coef": algorithm.get("entropy", {}).get("coefficient", 0.0),
        "vf_coef": case["critic"]["coefficient"] / 2,
        "max_grad_norm": update.get("max_grad_norm", 0.5),
        "learning_rate": linear(rate) if optimizer.get("schedule") == "linear" else rate,
        "clip_range": linear(clip) if update.get("anneal_clip") else clip,
        "policy_kwargs": {
            "net_arch": policy.get("widths", [64, 64]),
            "activation_fn": ACTIVATIONS[policy.get("activation", "tanh")],
            "log_std_init": policy.get("log_std", 0.0),
            "ortho_init": policy.get("orthogonal", True),
        },
    }


def held_out(model: PPO, normalizer: VecNormalize | None, environment: str, seed: int, episodes: int) -> float:
    """The mean return of the episodes that whet evaluates on, with the likeliest actions."""
    world, returns = gym.make(environment), []
    for number in range(episodes):
        observation, _ = world.reset(seed=episode_seed(EVALUATION, seed, number))
        total, is_over = 0.0, False
        while not is_over:
            seen = observation if normalizer is None else normalizer.normalize_obs(observation)
            action, _ = model.predict(seen, deterministic=True)
            observation, reward, terminated, truncated, _ = world.step(action)
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main(environment: str, seed: str, steps: str = "") -> None:
    torch.set_num_threads(1)
    case = recipe(environment, int(seed), int(steps) if steps else None)
    rollout, clock = case["rollout"], Clock()
    worlds: Any = make_vec_env(environment, n_envs=rollout["environments"], seed=int(seed))
    normalizer = None
    if case.get("normalize"):
        worlds = normalizer = VecNormalize(worlds, gamma=case["algorithm"]["gae"]["gamma"])
    model = PPO("MlpPolicy", worlds, device="cpu", seed=int(seed), **arguments(case))
    each = rollout["environments"] * rollout["length"]
    model.learn(case["steps"] * each, callback=clock)
    count = (len(clock.processor) - 2) * each
    result = {
        "side": "sb3",
        "environment": environment,
        "seed": int(seed),
        "steps": model.num_timesteps,
        "held_out": held_out(model, normalizer, environment, int(seed), 100),
        "processor_rate": count / (clock.processor[-1] - clock.processor[1]),
        "wall_rate": count / (clock.wall[-1] - clock.wall[1]),
        "curve": clock.curve[:: max(1, len(clock.curve) // 40)],
    }
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
