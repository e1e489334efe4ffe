"""Contract 4 for a chain of runs: killed in any of them and resumed, a pipeline is byte for byte what it would be."""

from pathlib import Path

import pytest

from tests.contracts.command import TASK, Zygote, only_run, write_recipe

STEPS = 12
RUNS = ["stages/sft", "methods/grpo/seed-3"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    new = {"family": "llama", "layers": 1, "heads": 2, "width": 32, "context": 16}
    written = {
        "loop": "pipeline",
        "seed": 3,
        "shared": {
            "task": TASK,
            "track": [],
            "optimizer": {"lr": 1e-2},
            "eval": {"every_steps": 5, "examples": 8, "max_tokens": 6},
            "save": {"every_steps": 3},
        },
        "stages": {"sft": {"loop": "offline", "steps": STEPS, "batch_size": 8, "model": {"new": new}}},
        "methods": {
            "grpo": {
                "algorithm": {"preset": "grpo", "kl": {"coefficient": 0.02}},
                "steps": STEPS,
                "model": "@sft",
                "rollout": {"prompts": 3, "group": 4, "max_tokens": 6},
            }
        },
    }
    return write_recipe(tmp_path_factory.mktemp("pipeline") / "chain.yaml", written)


def outcome(pipeline: Path) -> dict[str, bytes]:
    """What the contract promises of every run; the paths in a config are those of its own pipeline."""
    files = ["metrics.jsonl", "best_model/model.safetensors", "checkpoints/step-000012/model/model.safetensors"]
    return {f"{run}/{file}": (pipeline / run / file).read_bytes() for run in RUNS for file in files}


@pytest.fixture(scope="module")
def whole(zygote: Zygote, recipe: Path) -> dict[str, bytes]:
    zygote.run("train", recipe, "--runs", recipe.parent / "whole")
    return outcome(only_run(recipe.parent / "whole"))


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("victim", RUNS)
def test_killed_and_resumed_is_never_stopped(
    zygote: Zygote, recipe: Path, whole: dict[str, bytes], tmp_path: Path, victim: str
) -> None:
    root = tmp_path / "runs"
    process = zygote.start("train", recipe, "--runs", root)
    process.until(
        lambda: root.is_dir() and any(lines(run / victim / "metrics.jsonl") > 5 for run in root.iterdir()), victim
    )
    process.kill()
    assert process.wait() == -9
    pipeline = only_run(root)
    finished = {run: (pipeline / run / "final_results.json") for run in RUNS}
    assert not finished[victim].exists()
    before = {run: path.stat().st_mtime_ns for run, path in finished.items() if path.exists()}
    resumed = zygote.run("train", pipeline, "--resume")
    assert f"{'stage sft' if victim == RUNS[0] else 'grpo seed 3'}, resumed" in resumed.said()
    assert resumed.said().count("already finished") == len(before)
    assert {run: finished[run].stat().st_mtime_ns for run in before} == before  # what was done is left alone
    assert outcome(pipeline) == whole
