"""Keys without effect: each is changed in a real run, and not a byte of its metrics or its weights changes."""

import json
from pathlib import Path

import pytest

from whet.cli.progress import SilentProgress
from whet.recipe import parse_yaml, read_recipe
from whet.train.explain.unused_keys import keys_without_effect, written_keys
from whet.train.start import start_run

RECIPE = """
steps: 3
model: {new: {layers: 1, heads: 1, width: 8, context: 16}}
task: {name: sorting, level: 1}
algorithm: grpo
reward: {length_penalty: 0.1}
rollout: {prompts: 3, group: 4, max_tokens: 6}
optimizer: {lr: 1e-2}
eval: {every_steps: 3, examples: 2, max_tokens: 6}
track: []
device: cpu
"""
KL = "algorithm.kl={coefficient: 0.1}"
MOVING = "algorithm.kl={coefficient: 0.1, reference: sync}"
TWICE = "update.epochs=2"
OWN = "algorithm.surrogate=losses.py:anchored"
LOSSES = "def anchored(logprobs, logprobs_ref, advantages):\n    return -advantages * (logprobs - logprobs_ref)\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the recipe with overrides; returns its metrics and the weights it ends with."""
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    (tmp_path / "losses.py").write_text(LOSSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("whet.train.start.write_report", lambda path: None)  # pictures take longer than the training

    def train(*overrides: str) -> tuple[bytes, bytes]:
        recipe = read_recipe(str(path), overrides)
        directory = start_run(recipe, tmp_path / "runs", lambda config, run: SilentProgress())
        (weights,) = sorted(directory.glob("checkpoints/*/model/*.safetensors"))[-1:]
        return (directory / "metrics.jsonl").read_bytes(), weights.read_bytes()

    return train


def listed(tmp_path: Path, *overrides: str) -> dict[str, str]:
    return keys_without_effect(read_recipe(str(tmp_path / "mine.yaml"), overrides))


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ((), "algorithm.clip.high=0.9"),
        (("algorithm.surrogate=dual_clip",), "algorithm.dual_clip.bound=1.5"),
        (("algorithm.surrogate=geometric_clip",), "algorithm.geometric_clip.low=0.05"),
        (("algorithm=cispo",), "algorithm.stopped_ratio.high=0.3"),
        ((TWICE,), "algorithm.soft_gate.positive=3"),
        ((TWICE,), "algorithm.whiten.epsilon=1"),
        ((TWICE,), "algorithm.token_mask.high=1.01"),
        ((), "update.target_kl=0.002"),
        ((TWICE, KL), "algorithm.kl.horizon=3"),
        ((TWICE, KL), "algorithm.kl.sync_steps=1"),
        ((TWICE, KL), "algorithm.kl.ema=0.5"),
        ((TWICE, MOVING), "algorithm.kl.ema=0.5"),
        ((TWICE,), "algorithm.kl.reference=uniform"),
        ((TWICE,), "algorithm.kl.place=reward"),
        ((TWICE,), "algorithm.kl.estimator=k2"),
        ((TWICE,), "algorithm.kl.anneal_tokens=10"),
        ((OWN,), "algorithm.kl.place=reward"),
        ((TWICE,), "algorithm.entropy.floor_coefficient=7"),
        ((TWICE, "algorithm.entropy.floor_coefficient=0"), "algorithm.entropy.floor=5"),
        ((TWICE,), "reward.overlong_penalty=9"),
        ((TWICE, "reward.overlong_penalty=0"), "reward.overlong_tokens=3"),
        ((TWICE,), "rollout.max_resamples=1"),
        ((TWICE,), "critic.lr=0.5"),
        ((TWICE,), "critic.warmup_steps=1"),
        (("algorithm=ppo", "rollout.mask_truncated=true"), "critic.bootstrap_truncated=true"),
        ((TWICE,), "reward.time_limit_seconds=3"),
        ((TWICE,), "reward.memory_limit_gb=null"),
        ((TWICE,), "reward.workers=3"),
        ((TWICE,), "reward.prompts_per_call=1"),
        ((TWICE,), "reward.repetition_ngram=2"),
        ((TWICE,), "reward.environment=[PATH]"),
        ((TWICE, KL), "offload=always"),
        ((TWICE, KL), "offload.reward=always"),
    ],
    ids=str,
)
def test_it_is_listed_and_changes_nothing(run, tmp_path: Path, given: tuple[str, ...], change: str) -> None:
    key = change.partition("=")[0]
    assert key in listed(tmp_path, *given, change)
    assert run(*given, change) == run(*given)


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ((TWICE,), "algorithm.clip.high=0.0001"),
        (("algorithm=sapo",), "algorithm.soft_gate.positive=3"),  # not the gradient, but the loss that is logged
        ((TWICE,), "update.target_kl=1e-9"),
        ((TWICE, "algorithm.kl={coefficient: 0.1, target: 1e-3}"), "algorithm.kl.horizon=3"),
        ((TWICE, "algorithm.kl={coefficient: 0.1, reference: sync, sync_steps: 1}"), "algorithm.kl.ema=0.5"),
        ((TWICE, MOVING), "algorithm.kl.sync_steps=1"),
        ((OWN,), "algorithm.kl.reference=uniform"),
        (("algorithm.advantage=best_over_worst",), "algorithm.kl.reference=uniform"),
        ((TWICE, "algorithm.entropy.floor=5"), "algorithm.entropy.floor_coefficient=7"),
        ((TWICE, "reward.overlong_tokens=5"), "reward.overlong_penalty=9"),
        (("algorithm=dapo",), "rollout.max_resamples=0"),
        (("algorithm=ppo", TWICE), "critic.lr=0.5"),
        (("algorithm=ppo", TWICE), "critic.clip=1e-6"),
        (("algorithm=ppo",), "critic.bootstrap_truncated=true"),
    ],
    ids=str,
)
def test_what_changes_something_is_not_listed(run, tmp_path: Path, given: tuple[str, ...], change: str) -> None:
    """The other side of the list: the same keys where they matter."""
    assert change.partition("=")[0] not in listed(tmp_path, *given, change)
    assert run(*given, change) != run(*given)


def test_the_recipe_learns(run) -> None:
    """Otherwise nothing would change anything."""
    metrics = [json.loads(line) for line in run()[0].splitlines()[1:]]
    assert all(step["grad_norm"] > 0.1 for step in metrics)


@pytest.mark.parametrize(
    "uncertain",
    ["algorithm.clip.low=0.001", "algorithm.dual_clip.bound=1.001", "update.target_kl=1e-6"],
)
def test_what_rounding_could_show_is_not_listed(run, tmp_path: Path, uncertain: str) -> None:
    surrogate = ("algorithm.surrogate=dual_clip",) if "dual_clip" in uncertain else ()
    assert listed(tmp_path, *surrogate, uncertain) == {}


def test_dotted_keys_of_a_recipe() -> None:
    written = parse_yaml("a: 1\nb: {c: [1, 2], d: {e: null}}\nf: {}\n", where="test")
    assert list(written_keys(written)) == ["a", "b.c", "b.d.e"]


def test_keys_of_a_reward_model_in_workers_and_of_one_without(run, tmp_path: Path) -> None:
    alone = listed(tmp_path, "reward.model=RM", "reward.model.pass_seconds=9")
    assert alone == {"reward.model.pass_seconds": "reward.model.workers is 0"}
    workers = ("reward.model=RM", "reward.model.workers=2", "reward.model.threads=3", "offload.reward=never")
    found = listed(tmp_path, *workers)
    assert found == {"offload.reward": "reward.model.workers have the reward model"}
