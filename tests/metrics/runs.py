"""Small runs of every loop, in this process, that together log every metric."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.here import save_small
from tests.rollout_pool.here import in_threads
from tests.train import rows_on_disk as on_disk
from whet.cli.progress import SilentProgress
from whet.metrics.metric import Loop
from whet.recipe import Recipe, validate
from whet.runs.directory import RunDirectory
from whet.train.start import start_run

NEW = {"new": {"family": "llama", "layers": 1, "heads": 2, "width": 16, "context": 16}}
REWARDS = """
def correct(prompts, completions, log_metric, **_):
    log_metric("characters", sum(map(len, completions)))
    if any(prompt.startswith("1") for prompt in prompts):
        raise ValueError("no prompt may begin with 1")
    return [float(text.startswith("2")) for text in completions]

def short(completions, **_):
    return [-len(text) for text in completions]
"""
COMMON: dict[str, Any] = {"steps": 2, "seed": 3, "model": NEW, "track": [], "device": "cpu"}
ONLINE: dict[str, Any] = {
    **COMMON,
    "task": {"name": "sorting", "level": 1},
    "algorithm": "grpo",
    "rollout": {"prompts": 4, "group": 4, "max_tokens": 3},
    "update": {"epochs": 2, "minibatches": 2},
    "optimizer": {"lr": 1e-3},
    "eval": {"every_steps": 1, "examples": 6, "max_tokens": 3},
}
CONTROL: dict[str, Any] = {
    "loop": "control",
    "environment": {"name": f"{Path(__file__).parents[1] / 'control' / 'probes.py'}:AimedReward"},
    "steps": 2,
    "algorithm": "ppo",
    "rollout": {"environments": 2, "length": 8},
    "policy": {"widths": [8]},
    "eval": {"every_steps": 1, "episodes": 4},
    "track": [],
}
OFF_POLICY: dict[str, Any] = {
    **CONTROL,
    "loop": "off_policy",
    "algorithm": "sac",
    "replay": {"learning_starts": 4},
    "update": {"batch_size": 4},
}
OFFLINE: dict[str, Any] = {
    **COMMON,
    "loop": "offline",
    "batch_size": 4,
    "optimizer": {"lr": 1e-3},
    "eval": {"every_steps": 1, "examples": 6, "max_tokens": 3},
}


def logged(folder: Path) -> Iterator[tuple[Loop, set[str]]]:
    """What each run logged, with the loop that it is of; `folder` is empty."""
    (folder / "rewards.py").write_text(REWARDS)
    asked = [{"prompt": f"{n}>", "answer": str(n % 2 + 2)} for n in range(40)]
    on_disk.write(folder / "rows.jsonl", [row if n % 3 else {"prompt": row["prompt"]} for n, row in enumerate(asked)])
    on_disk.write(folder / "answers.jsonl", asked)
    (folder / "text.txt").write_text("to be or not to be, that is the question: " * 30)
    on_disk.pairs(folder / "pairs.jsonl", 24)
    on_disk.outcomes(folder / "outcomes.jsonl", 24)
    on_disk.traces(folder / "traces.jsonl", 24)
    model = str(save_small(folder / "small"))
    corpus = {"name": "corpus", "path": str(folder / "text.txt"), "prompt_characters": 6, "answer_characters": 4}
    for number, (loop, recipe) in enumerate(recipes(folder, model, corpus)):
        yield loop, names(recipe, folder / f"run-{number}")


def recipes(folder: Path, model: str, corpus: Mapping[str, Any]) -> Iterator[tuple[Loop, dict[str, Any]]]:
    rows = {"name": "rows", "path": str(folder / "rows.jsonl"), "held_out_rows": 12}
    functions = [f"{folder / 'rewards.py'}:{name}" for name in ("correct", "short")]
    yield (
        "online",
        {  # a critic, a reference, functions that log and fail, votes, rows without an answer
            **ONLINE,
            "task": rows,
            "model": model,
            "algorithm": {"preset": "ppo", "kl": {"coefficient": 0.1}, "importance_correction": "token_truncate"},
            "reward": {"functions": functions, "allowed_failures": 1000},
            "rollout": {"prompts": 4, "group": 8, "max_tokens": 2, "adaptive_temperature": {"low": 0.5, "high": 2.0}},
            "eval": {"every_steps": 1, "examples": 12, "max_tokens": 3, "samples": 4, "ks": [1, 4]},
        },
    )
    yield "online", {**ONLINE, "curriculum": {"to_level": 2, "promote_at": 0.5, "window": 8}}
    yield (
        "online",
        {
            **ONLINE,
            "model": model,
            "task": {"name": "rows", "path": str(folder / "answers.jsonl"), "held_out_rows": 8},
            "rollout": {**ONLINE["rollout"], "pass_rate": {}},
        },
    )
    yield (
        "online",
        {
            **ONLINE,
            "algorithm": {"preset": "grpo", "importance_correction": "token_truncate"},
            "asynchronous": {"staleness": 2, "in_flight_updates": True, "segment_tokens": 2},
        },
    )
    yield "online", {**ONLINE, "task": corpus, "reward": {"tokens": {}}}
    yield "online", {**ONLINE, "task": {"name": "reviews"}, "model": {"new": {**NEW["new"], "context": 96}}}
    yield "online", {**ONLINE, "task": {"name": "guessing"}}
    yield "control", CONTROL
    yield "off_policy", OFF_POLICY
    yield "sft", {**OFFLINE, "task": {"name": "sorting", "level": 1}}
    yield "lm", {**OFFLINE, "task": corpus, "objective": "lm"}
    yield "denoise", {**OFFLINE, "task": corpus, "objective": "denoise"}
    pairs = {"path": str(folder / "pairs.jsonl"), "held_out_rows": 8}
    for objective in ("dpo", "kto"):
        yield "preference", {**OFFLINE, "model": model, "objective": objective, "data": pairs}
    for objective, name in (("bradley_terry", "pairs"), ("outcome", "outcomes"), ("process", "traces")):
        yield (
            "reward",
            {
                **OFFLINE,
                "model": model,
                "objective": objective,
                "data": {"path": str(folder / f"{name}.jsonl"), "held_out_rows": 8},
                "reward_head": {"separator": "+"},
            },
        )
    yield (
        "collect",
        {
            **{key: value for key, value in ONLINE.items() if key in ("steps", "seed", "rollout", "device")},
            "loop": "collect",
            "model": model,
            "task": {"name": "rows", "path": str(folder / "answers.jsonl"), "held_out_rows": 8},
            "select": "best",
            "reward": {"functions": functions, "allowed_failures": 1000},
        },
    )


def names(recipe: Mapping[str, Any], path: Path) -> set[str]:
    """The names of all metrics and timings of a run of this recipe."""
    config = validate(recipe, where="test")
    with pytest.MonkeyPatch.context() as patch:
        in_threads(patch)  # workers that sample ahead
        start_run(Recipe(name="small", config=config, written={}), path.parent, lambda *_: SilentProgress(), path=path)
    run = RunDirectory.open(path, is_writer=False)
    return {name for row in (*run.metrics(), *run.timings()) for name in row} - {"step"}
