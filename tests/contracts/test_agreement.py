"""Contract 3. Before the first update of a step every ratio is 1; where sampler and trainer disagree, the run stops."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.command import online
from tests.contracts.here import save_small, train_here
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed
from whet.models.logprobs import read_tokens, token_logprobs
from whet.records import Batch, Sampling
from whet.train.online import loop as online_module
from whet.train.online import update as update_module
from whet.train.online.learner import Learner
from whet.train.session import held_out as held_out_module

SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
}


def recipe(model: Path, *, steps: int = 3, lr: float = 1e-3, **sampling: Any) -> dict[str, Any]:
    changed = online(model, steps=steps, optimizer={"lr": lr}, algorithm="grpo")
    changed["rollout"] = {"prompts": 5, "group": 6, "max_tokens": 8, **sampling}
    changed["eval"] = {"every_steps": 100, "examples": 2, "max_tokens": 8}
    return changed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("small") / "model")


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_ratio_is_one_before_the_first_update(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worst: list[float] = []
    original = online_module.update

    def watched(learner: Learner, batch: Batch, *, step: int, record: Any) -> Any:
        s = batch.sequences
        logprobs, _ = token_logprobs(learner.policy, s.tokens, s.lengths, s.mask, learner.config.rollout.sampling)
        worst.append(float(torch.expm1(logprobs.detach() - batch.logprobs_old).abs().max()))
        return original(learner, batch, step=step, record=record)

    monkeypatch.setattr(online_module, "update", watched)
    run = train_here(recipe(model, **SAMPLINGS[name]), tmp_path / "run")
    measured = [row["mismatch/max"] for row in run.metrics() if row["step"] > 0]
    assert len(measured) == len(worst) == 3
    assert max(measured) < 1e-5  # sampler against trainer
    assert max(worst) < 1e-5  # trainer, in micro-batches without a gradient, against trainer with one
    assert run.metrics()[-1]["approx_kl"] > 1e-7  # and yet the updates moved the policy: it is not 1 by standing still


def test_a_temperature_that_follows_the_rewards_is_that_of_both(model: Path, tmp_path: Path) -> None:
    """The sampler and the trainer read the same dial; it moves from step to step."""
    written = recipe(model, steps=4, temperature=0.8, adaptive_temperature={"low": 0.2, "high": 3.0})
    written["reward"] = {"functions": [f"{Path(__file__).parent / 'digits.py'}:digits"]}
    written["update"] = {"micro_batch_tokens": 64}  # one update a step: it is measured before the policy moves
    run = train_here(written, tmp_path / "run")
    rows = [row for row in run.metrics() if row["step"] > 0]
    temperatures = [row["temperature"] for row in rows]
    expected = [0.8, *(min(3.0, max(0.2, 0.8 / row["reward/std"])) for row in rows[:-1])]
    assert temperatures == pytest.approx(expected, rel=1e-5)
    assert len(set(temperatures)) == 4
    assert max(row["mismatch/max"] for row in rows) < 1e-5
    assert max(row["approx_kl"] for row in rows) < 1e-9  # and it is that of the update too


def test_an_engine_with_stale_weights_stops_the_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(self: NativeEngine, policy: Any, *, version: int) -> None:
        """Keeps the weights that it was first given."""
        if self.version == 0 and version == 0:
            self.policy = copy.deepcopy(policy)
        self.version = version

    monkeypatch.setattr(NativeEngine, "sync", sync)
    with pytest.raises(RunFailed) as failure:
        train_here(recipe(model, steps=30, lr=2e-2), tmp_path / "run")
    message = str(failure.value)
    assert "sampler and trainer disagree by" in message
    step = int(message.removeprefix("step ").partition(":")[0])
    assert 1 < step < 30
    assert "the engine's weights are not those of the policy" in message


def test_every_evaluation_samples_with_the_weights_of_its_step(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: list[int] = []
    original = held_out_module.evaluate

    def watched(engine: NativeEngine, *arguments: Any, **named: Any) -> Any:
        versions.append(engine.version)
        return original(engine, *arguments, **named)

    monkeypatch.setattr(held_out_module, "evaluate", watched)
    written = recipe(model, steps=4)
    written["eval"]["every_steps"] = 2
    train_here(written, tmp_path / "run")
    assert versions == [0, 2, 4]


def test_a_trainer_that_forgets_the_temperature_is_caught(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_temperature_one(policy: Any, tokens: Any, lengths: Any, mask: Any, sampling: Sampling, **more: Any) -> Any:
        return read_tokens(policy, tokens, lengths, mask, replace(sampling, temperature=1.0), **more)

    monkeypatch.setattr(update_module, "read_tokens", at_temperature_one)
    with pytest.raises(RunFailed, match="step 1: sampler and trainer disagree"):
        train_here(recipe(model, temperature=0.6), tmp_path / "run")


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_a_trainer_that_forgets_what_was_cut_off_is_caught(
    cut: dict[str, Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uncut(policy: Any, tokens: Any, lengths: Any, mask: Any, sampling: Sampling, **more: Any) -> Any:
        return read_tokens(policy, tokens, lengths, mask, Sampling(max_tokens=1), **more)

    monkeypatch.setattr(update_module, "read_tokens", uncut)
    changed = recipe(model, **cut)
    changed["update"] = {"mismatch_limit": 1e-3}
    with pytest.raises(RunFailed, match="step 1: sampler and trainer disagree"):
        train_here(changed, tmp_path / "run")
