"""A dozen short CPU runs that together go through every loop, each a recipe as a user would write it."""

from pathlib import Path
from typing import Any

from tests.train import rows_on_disk

NEW = {"family": "gpt2", "layers": 2, "heads": 2, "width": 32, "context": 24}
SMALL = {"new": NEW}
EVAL = {"every_steps": 2, "examples": 12, "max_tokens": 6}
SAVE = {"every_steps": 4, "keep": 1, "rollouts_every_steps": 1}
TASK = {"name": "sorting", "level": 1}
REVIEWS = {"name": "reviews"}


def online(**changes: Any) -> dict[str, Any]:
    """A few steps of a policy gradient."""
    return {
        "loop": "online",
        "steps": 4,
        "seed": 7,
        "model": SMALL,
        "task": TASK,
        "rollout": {"prompts": 6, "group": 4, "max_tokens": 6},
        "optimizer": {"lr": 1e-3, "warmup_steps": 1},
        "eval": EVAL,
        "save": SAVE,
        "device": "cpu",
        "track": [],
        **changes,
    }


def offline(model: Path, data: Path, objective: Any, **changes: Any) -> dict[str, Any]:
    """A few steps on rows."""
    return {
        "loop": "offline",
        "steps": 4,
        "seed": 7,
        "model": str(model),
        "objective": objective,
        "data": {"path": str(data), "held_out_share": 0.25},
        "batch_size": 8,
        "optimizer": {"lr": 1e-3},
        "eval": {"every_steps": 2, "examples": 12, "max_tokens": 6},
        "save": {"every_steps": 4, "keep": 1},
        "device": "cpu",
        "track": [],
        **changes,
    }


def on_a_task() -> dict[str, Any]:
    """SFT on the answers of a task, from random weights."""
    written = offline(Path(), Path(), "sft", task=TASK) | {"model": SMALL}
    del written["data"]
    return written


def pipeline() -> dict[str, Any]:
    """SFT, pairs, reward model, then PPO, GRPO and DPO, and their comparison."""
    optimizer = {"lr": 1e-3}
    return {
        "loop": "pipeline",
        "seed": 3,
        "shared": {"task": REVIEWS, "track": [], "device": "cpu", "optimizer": optimizer},
        "stages": {
            "sft": {
                "loop": "offline",
                "model": {"new": {**NEW, "width": 64, "context": 96}},
                "steps": 120,
                "batch_size": 16,
                "optimizer": {"lr": 4e-3},
                "eval": {"every_steps": 120, "examples": 8, "max_tokens": 16},
            },
            "pairs": {
                "loop": "collect",
                "model": "@sft",
                "select": "pairs",
                "steps": 2,
                "truncated": "keep",
                "rollout": {"prompts": 24, "group": 4, "max_tokens": 40},
            },
            "reward": {
                "loop": "offline",
                "model": "@sft",
                "objective": {"name": "bradley_terry", "centring": 0.01},
                "data": {"path": "@pairs"},
                "steps": 4,
                "batch_size": 8,
                "eval": {"every_steps": 4, "examples": 8, "max_tokens": 16},
            },
        },
        "methods": {
            "ppo": {
                "loop": "online",
                "model": "@sft",
                "algorithm": {"preset": "ppo", "kl": {"coefficient": 0.05}},
                "reward": {"model": "@reward", "normalize": "running"},
                "rollout": {"prompts": 6, "group": 1, "max_tokens": 16},
                "critic": {"lr": 2e-3},
                "steps": 3,
                "eval": {"every_steps": 3, "examples": 4, "max_tokens": 16},
            },
            "grpo": {
                "loop": "online",
                "model": "@sft",
                "algorithm": {"preset": "grpo", "kl": {"coefficient": 0.05}},
                "reward": {"model": "@reward"},
                "rollout": {"prompts": 4, "group": 4, "max_tokens": 16},
                "steps": 3,
                "eval": {"every_steps": 3, "examples": 4, "max_tokens": 16},
            },
            "dpo": {
                "loop": "offline",
                "model": "@sft",
                "objective": {"name": "dpo", "beta": 0.3},
                "data": {"path": "@pairs"},
                "steps": 3,
                "batch_size": 8,
                "eval": {"every_steps": 3, "examples": 4, "max_tokens": 16},
            },
        },
        "compare": {"start": "@sft", "reward": "@reward", "prompts": 6, "samples": 2, "max_tokens": 16},
    }


def recipes(place: Path) -> dict[str, dict[str, Any]]:
    """Every run by its name; the model and the rows that some of them read are put into `place`."""
    model = rows_on_disk.saved_model(place / "model")
    pairs, outcomes = rows_on_disk.pairs(place / "pairs.jsonl"), rows_on_disk.outcomes(place / "outcomes.jsonl")
    traces = rows_on_disk.traces(place / "traces.jsonl")
    many = {"epochs": 2, "minibatches": 2, "micro_batch_tokens": 64}
    return {
        "grpo": online(algorithm={"preset": "grpo", "kl": {"coefficient": 0.02}}, update=many),
        "dapo": online(algorithm={"preset": "dapo"}),
        "ppo": online(algorithm={"preset": "ppo", "kl": {"coefficient": 0.02}}, critic={"lr": 1e-3}, update=many),
        "reinforce": online(algorithm={"preset": "reinforce"}),
        "gspo": online(algorithm={"preset": "gspo"}, update=many),
        "remax": online(algorithm={"preset": "remax"}),
        "sft": offline(model, pairs, "sft"),
        "sft-task": on_a_task(),
        "dpo": offline(model, pairs, "dpo"),
        "kto": offline(model, pairs, "kto"),
        "simpo": offline(model, pairs, "simpo"),
        "bradley-terry": offline(model, pairs, "bradley_terry"),
        "outcome": offline(model, outcomes, "outcome"),
        "process": offline(model, traces, "process", reward_head={"separator": "="}),
        "pipeline": pipeline(),
        "two-ranks": online(algorithm={"preset": "grpo", "kl": {"coefficient": 0.02}}, update=many),
    }
