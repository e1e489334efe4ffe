"""What a run remembers: the step_settings of the next step from what the last one showed."""

import json
from typing import Any

import pytest
import torch

from tests.train.scenes import config_of
from whet.train.online.learner import ControllerState, StepOutcome

KL = {"coefficient": 0.5, "estimator": "k1", "place": "reward"}


def seen(**changes: Any) -> StepOutcome:
    made: dict[str, Any] = {"paid": 0.25, "moments": (4.0, 1.0, 2.0), "kl": 0.1, "rollouts": 4}
    return StepOutcome(**{**made, **changes})


def test_draws_are_counted_from_one() -> None:
    memory = ControllerState(kl_coefficient=0.0)
    assert [memory.next_draw() for _ in range(3)] == [1, 2, 3]


def test_the_first_dials_are_those_of_the_recipe() -> None:
    config = config_of({"preset": "rloo", "kl": KL}, sections={"rollout": {"temperature": 0.8}})
    step_settings = ControllerState(kl_coefficient=0.5).step_settings(config, tokens=0)
    assert step_settings.sampling == config.rollout.sampling
    assert (step_settings.kl_coefficient, step_settings.moments, step_settings.history.tolist()) == (
        0.5,
        (0.0, 0.0, 0.0),
        [],
    )


def test_the_history_is_what_was_paid_oldest_first_and_has_an_end() -> None:
    config, memory = config_of({"preset": "rloo"}), ControllerState(kl_coefficient=0.0)
    for paid in (0.5, 0.25, 1.0):
        memory.learn(seen(paid=paid), config)
    step_settings = memory.step_settings(config, tokens=0)
    assert step_settings.history.tolist() == [0.5, 0.25, 1.0]
    assert step_settings.history.dtype == torch.float64
    assert step_settings.moments == (4.0, 1.0, 2.0)
    memory.history = [0.0] * 1000
    memory.learn(seen(paid=7.0), config)
    assert len(memory.history) == 1000
    assert memory.history[-1] == 7.0


def test_the_coefficient_follows_the_kl_towards_its_target() -> None:
    config = config_of({"preset": "rloo", "kl": {**KL, "target": 0.1, "horizon": 40}})
    memory = ControllerState(kl_coefficient=0.5)
    memory.learn(seen(kl=0.11), config)  # 10 % too much: 1 + 0.1 · 4/40
    assert memory.kl_coefficient == pytest.approx(0.5 * 1.01)
    memory.learn(seen(kl=9.0), config)  # far too much: the error counts as 0.2
    assert memory.kl_coefficient == pytest.approx(0.5 * 1.01 * 1.02)
    memory.learn(seen(kl=0.0), config)
    assert memory.kl_coefficient == pytest.approx(0.5 * 1.01 * 1.02 * 0.98)
    assert memory.step_settings(config, tokens=10).kl_coefficient == memory.kl_coefficient
    fixed = ControllerState(kl_coefficient=0.5)
    fixed.learn(seen(kl=9.0), config_of({"preset": "rloo", "kl": KL}))
    assert fixed.kl_coefficient == 0.5


def test_the_coefficient_is_annealed_over_tokens() -> None:
    config = config_of({"preset": "rloo", "kl": {**KL, "anneal_tokens": 200}})
    memory = ControllerState(kl_coefficient=0.5)
    found = [memory.step_settings(config, tokens=tokens).kl_coefficient for tokens in (0, 50, 200, 10_000)]
    assert found == pytest.approx([0.0, 0.125, 0.5, 0.5])


def test_the_temperature_follows_the_spread_of_the_last_rewards() -> None:
    span = {"temperature": 0.8, "adaptive_temperature": {"low": 0.5, "high": 2.0}}
    config, memory = config_of({"preset": "rloo"}, sections={"rollout": span}), ControllerState(kl_coefficient=0.0)
    found = [memory.step_settings(config, tokens=0).sampling.temperature]
    for deviation in (0.5, 1.0, 4.0, 0.1, 0.0):
        memory.deviation = deviation
        found.append(memory.step_settings(config, tokens=0).sampling.temperature)
    assert found == pytest.approx([0.8, 1.6, 0.8, 0.5, 2.0, 2.0])


def test_it_survives_json() -> None:
    config = config_of({"preset": "rloo", "kl": {**KL, "target": 0.1}})
    memory = ControllerState(kl_coefficient=0.5)
    for _ in range(3):
        memory.next_draw()
        memory.learn(seen(paid=1 / 3, moments=(3.0, 0.1, 1e-17)), config)
        memory.deviation = 0.1 + 0.2
    again = ControllerState(kl_coefficient=0.0)
    again.restore(json.loads(json.dumps(memory.numbers())), memory.tensors())
    assert again == memory
    assert again.next_draw() == 4
