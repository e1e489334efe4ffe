"""Contract 4, for what a run keeps besides the policy: critic, moving reference, and the numbers of its memory."""

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.contracts.command import Zygote, online, only_run, write_recipe
from tests.contracts.here import train_here
from tests.contracts.hooks import whereabouts
from tests.contracts.test_resumption import differing, outcome
from whet.runs.directory import RunDirectory
from whet.runs.layout import by_step
from whet.tasks.procedural import Sorting
from whet.train.online import critic as critic_module
from whet.train.online.critic import WEIGHT, Critic
from whet.train.online.learner import ControllerState
from whet.train.online.reference import Reference

STEPS, GOAL = 10, 5
KL = {"coefficient": 0.05, "estimator": "k1", "place": "reward", "target": 0.01, "horizon": 50}
CHANGES: dict[str, dict[str, Any]] = {
    "ppo": {
        "algorithm": {
            "preset": "ppo",
            "dynamic_sampling": f"{Path(__file__).parents[1] / 'own_cells.py'}:differing",
            "kl": {**KL, "reference": "sync", "sync_steps": 1, "ema": 0.7},
        },
        "critic": {"lr": 3e-3},
        "optimizer": {"name": "muon", "lr": 1e-3, "schedule": "wsd", "warmup_share": 0.2, "weight_decay": 0.1},
        "reward": {"normalize": "running", "functions": [f"{Path(__file__).parent / 'digits.py'}:digits"]},
    },
    "reinforce": {
        "algorithm": {
            "preset": "reinforce",
            "advantage": "over_average",
            "kl": {"coefficient": 0.1, "anneal_tokens": 500},
        },
        "update": {"micro_batch_tokens": 64},
        "cold_start": {"steps": 2, "batch_size": 8},
    },
}


@pytest.fixture(scope="module")
def recipes(beginner: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    examples = Sorting(level=1).draw(20, seed=(1,))
    rows.write_text("".join(json.dumps({"prompt": e.prompt, "answer": e.answer}) + "\n" for e in examples))
    rollout = {"prompts": 4, "group": 2, "max_tokens": 6, "temperature": 0.9, "max_resamples": 2}
    shared = {
        "steps": STEPS,
        "task": {"name": "rows", "path": str(rows)},
        "rollout": {**rollout, "adaptive_temperature": {"low": 0.2, "high": 2.5}},
        "eval": {"every_steps": 4, "examples": 3, "max_tokens": 6},
        "save": {"every_steps": 2, "keep": 2},
    }
    return {name: online(beginner, **shared, **changes) for name, changes in CHANGES.items()}


@pytest.fixture(scope="module")
def wholes(
    zygote: Zygote, recipes: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The runs that are never stopped."""
    made = {}
    for name, recipe in recipes.items():
        root = tmp_path_factory.mktemp("whole")
        zygote.run("train", write_recipe(root / "recipe.yaml", recipe), "--runs", root / "runs")
        made[name] = only_run(root / "runs")
    return made


@pytest.fixture(scope="module")
def killed(
    zygote: Zygote, recipes: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The same runs, killed on their way."""
    made = {}
    for name, recipe in recipes.items():
        root = tmp_path_factory.mktemp("killed")
        note = root / "note"
        note.write_text("")
        path = write_recipe(root / "recipe.yaml", recipe)
        process = zygote.start("train", path, "--runs", root / "runs", hooks={"announce": str(note)})
        process.until(lambda note=note: whereabouts(note) >= (GOAL, ""), f"step {GOAL}")
        process.kill()
        assert process.wait() == -signal.SIGKILL, process.said()
        made[name] = only_run(root / "runs")
        assert GOAL - 1 <= list(by_step(made[name] / "checkpoints"))[-1] < STEPS
    return made


@pytest.mark.parametrize("name", CHANGES)
def test_a_killed_run_goes_on_with_all_that_it_had(
    name: str, zygote: Zygote, wholes: dict[str, Path], killed: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(killed[name], tmp_path / "run")
    process = zygote.run("train", tmp_path / "run", "--resume")
    assert "resumed after step" in process.said()
    assert differing(outcome(tmp_path / "run"), outcome(wholes[name])) == []


def test_the_run_did_use_what_it_keeps(wholes: dict[str, Path]) -> None:
    """Otherwise the comparison above would compare nothing."""
    rows = [row for row in RunDirectory.open(wholes["ppo"], is_writer=False).metrics() if row["step"] > 0]
    assert {row["groups/drawn"] for row in rows} != {4.0}  # some steps drew again
    assert len({row["temperature"] for row in rows}) > 3
    assert len({row["kl_coefficient"] for row in rows}) > 3
    last = wholes["ppo"] / "checkpoints" / f"step-{STEPS:06d}"
    memory = json.loads((last / "state.json").read_text())["kept"]["memory"]
    assert memory["draws"] == sum(row["groups/drawn"] for row in rows) / 4 > STEPS
    assert memory["moments"][0] == sum(min(4, row["groups/kept"] * row["groups/drawn"]) * 2 for row in rows)
    assert len(memory["history"]) == STEPS
    reference, policy = load_file(last / "reference.safetensors"), load_file(last / "model" / "model.safetensors")
    assert reference.keys() == policy.keys()
    assert any(not reference[key].equal(policy[key]) for key in policy)
    coefficients = [
        row["kl_coefficient"] for row in RunDirectory.open(wholes["reinforce"], is_writer=False).metrics()[1:]
    ]
    assert coefficients[0] == 0
    assert coefficients == sorted(coefficients)


@pytest.mark.parametrize("reason", ["every group is dropped", "the critic warms up"])
def test_a_run_that_has_not_taken_a_step_yet_goes_on(
    reason: str, recipes: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """An optimizer that never moved has no moments to save."""
    recipe = {**recipes["ppo"], "steps": 2, "eval": {"every_steps": 2, "examples": 2, "max_tokens": 6}}
    if reason == "the critic warms up":
        recipe["critic"] = {"warmup_steps": 3}
    else:
        recipe["reward"] = {"functions": [f"{Path(__file__).parent / 'digits.py'}:nothing"]}
    train_here({**recipe, "steps": 4}, tmp_path / "whole")
    rows = RunDirectory.open(tmp_path / "whole", is_writer=False).metrics()[1:]
    assert all("grad_norm" not in row for row in rows[:3])
    assert all(("critic/grad_norm" in row) == (reason == "the critic warms up") for row in rows[:3])
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000004")
    assert load_file(tmp_path / "run" / "checkpoints" / "step-000002" / "optimizer.safetensors") == {}
    train_here({**recipe, "steps": 4}, tmp_path / "run")
    assert differing(outcome(tmp_path / "run"), outcome(tmp_path / "whole")) == []


def forget_memory(field: str) -> Any:
    original = ControllerState.restore

    def restore(self: ControllerState, numbers: Mapping[str, Any], tensors: Any) -> None:
        original(self, {**numbers, field: self.numbers()[field]}, tensors)

    return lambda patch: patch.setattr(ControllerState, "restore", restore)


def forget_reference(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reference, "restore", lambda *_: None)


def forget_critic_weights(patch: pytest.MonkeyPatch) -> None:
    original = Critic.restore

    def restore(self: Critic, numbers: Any, tensors: Mapping[str, Any]) -> None:
        own = {key: tensor for key, tensor in self.tensors().items() if key.startswith(WEIGHT)}
        original(self, numbers, {**tensors, **own})

    patch.setattr(Critic, "restore", restore)


def forget_critic_moments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(critic_module, "restore_optimizer", lambda *_: None)


FORGOTTEN = {
    "nothing": ("ppo", lambda _: None),
    "critic weights": ("ppo", forget_critic_weights),
    "critic moments": ("ppo", forget_critic_moments),
    "reference": ("ppo", forget_reference),
    **{field: ("ppo", forget_memory(field)) for field in ("kl_coefficient", "draws", "deviation", "moments")},
    "history": ("reinforce", forget_memory("history")),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_checkpoint_without_one_of_them_would_be_caught(
    what: str,
    recipes: dict[str, dict[str, Any]],
    wholes: dict[str, Path],
    killed: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, forget = FORGOTTEN[what]
    shutil.copytree(killed[name], tmp_path / "run")
    forget(monkeypatch)
    train_here(recipes[name], tmp_path / "run")
    changed = differing(outcome(tmp_path / "run"), outcome(wholes[name]))
    if what == "nothing":
        assert changed == []
    else:
        assert {"metrics.jsonl", f"checkpoints/step-{STEPS:06d}/model/model.safetensors"} <= set(changed)
