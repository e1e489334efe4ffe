"""What is compared: environments with the hyper-parameters of RL-Zoo, as a recipe of whet has them."""

from __future__ import annotations

from typing import Any

PPO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "steps": 391,
        "algorithm": {"preset": "ppo", "gae": {"gamma": 0.98, "lam": 0.8}},
        "rollout": {"environments": 8, "length": 32},
        "update": {"epochs": 20, "minibatch": 256, "anneal_clip": True},
        "optimizer": {"lr": 1e-3, "schedule": "linear"},
    },
    "Acrobot-v1": {
        "steps": 245,
        "algorithm": {"preset": "ppo", "gae": {"gamma": 0.99, "lam": 0.94}},
        "rollout": {"environments": 16, "length": 256},
        "normalize": {"observations": True, "rewards": True},
        "update": {"epochs": 4, "minibatch": 64},
    },
    "LunarLander-v3": {
        "steps": 62,
        "algorithm": {"preset": "ppo", "gae": {"gamma": 0.999, "lam": 0.98}, "entropy": {"coefficient": 0.01}},
        "rollout": {"environments": 16, "length": 1024},
        "update": {"epochs": 4, "minibatch": 64},
    },
    "HalfCheetah-v5": {
        "steps": 1954,
        "algorithm": {
            "preset": "ppo",
            "gae": {"gamma": 0.98, "lam": 0.92},
            "clip": {"low": 0.1, "high": 0.1},
            "entropy": {"coefficient": 0.000401762},
        },
        "rollout": {"environments": 1, "length": 512},
        "normalize": {"observations": True, "rewards": True},
        "policy": {"widths": [256, 256], "activation": "relu", "log_std": -2.0, "orthogonal": False},
        "update": {"epochs": 20, "minibatch": 64, "max_grad_norm": 0.8},
        "critic": {"coefficient": 1.16192},  # 0.58096 of a squared error without the ½
        "optimizer": {"lr": 2.0633e-5},
    },
}
USUAL: dict[str, Any] = {"loop": "control", "critic": {"coefficient": 1.0}, "track": []}


def recipe(environment: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """The recipe of a case; evaluated before its first step and after its last."""
    case = {**USUAL, **PPO[environment]}
    steps = steps or case["steps"]
    return {
        **case,
        "environment": environment,
        "seed": seed,
        "steps": steps,
        "eval": {"every_steps": steps, "episodes": 100},
        "save": {"every_steps": steps},
    }
