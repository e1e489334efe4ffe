"""The recipe of the whole-step measurements: GRPO, one optimizer step for each rollout, no KL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bench.job import SEED, Job
from whet.config import OnlineConfig
from whet.recipe import read_recipe

NEVER = 10**9  # steps between evaluations and checkpoints: only before the first and after the last
LEARNING_RATE = 1e-6
LORA_ALPHA = 32


def task_options(job: Job) -> dict[str, Any]:
    """Options of `bench.task:Words` for the job's prompts."""
    return {"words": job.workload.prompt_tokens[1], "size": job.words}


def step_config(job: Job, directory: Path) -> OnlineConfig:
    """What `whet train` would make of the recipe; it is left in `directory`."""
    new = job.workload.new_tokens[1]
    written = {
        "steps": job.runs,
        "seed": SEED,
        "model": job.model,
        "task": {"name": "bench.task:Words", **task_options(job)},
        "algorithm": "grpo",
        "optimizer": {"lr": LEARNING_RATE},
        "rollout": {
            "prompts": job.workload.prompts,
            "group": job.workload.group,
            "max_tokens": new,
            "temperature": job.workload.temperature,
        },
        "engine": {"max_sequences": job.workload.sequences},
        "eval": {"every_steps": NEVER, "examples": 1, "max_tokens": new},
        "save": {"every_steps": NEVER, "rollouts_every_steps": NEVER},
        "track": [],
        "device": job.device,
    }
    path = directory / "recipe.yaml"
    path.write_text(yaml.safe_dump(written, sort_keys=False), "utf-8")
    adapters = [f"model.lora.rank={job.lora}", f"model.lora.alpha={LORA_ALPHA}"] if job.lora else []
    config = read_recipe(str(path), [*adapters, *job.overrides]).config
    assert isinstance(config, OnlineConfig)
    return config
