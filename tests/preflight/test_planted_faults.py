"""The checks before a run: each passes on recipes that work, and fails on the fault that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.distributed.world import World
from whet.recipe import Recipe, read_recipe
from whet.records import Message
from whet.train.preflight import checklist, learning, probabilities, rewards, templates
from whet.train.preflight.results import CheckFailed, NotTried
from whet.train.preflight.subjects import OfflineSubject, OnlineSubject

SMALL = ["rollout.prompts=4", "rollout.group=4"]
CELLS = """
def backwards(logprobs, logprobs_old, advantages):
    return (logprobs - logprobs_old).exp() * advantages
"""
REWARDS = """
def constant(completions, **_):
    return [0.5] * len(completions)
"""


def recipe(*keys: str, name: str = "grpo-sorting") -> Recipe:
    return read_recipe(name, [*(SMALL if name.endswith("sorting") else []), *keys])


def outcomes(*keys: str, name: str = "grpo-sorting") -> dict[str, tuple[str, str]]:
    return {one.check: (one.outcome, one.sentence) for one in checklist.check_recipe(recipe(*keys, name=name))}


@pytest.fixture(scope="module")
def subject() -> Iterator[OnlineSubject]:
    config = recipe().config
    made = OnlineSubject(config, World.alone())  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.mark.parametrize("name", ["grpo-sorting", "ppo-sorting", "reinforce-sorting", "rloo-sorting", "sft-reverse"])
def test_a_recipe_that_works_passes(name: str) -> None:
    found = outcomes(name=name)
    assert [check for check, (outcome, _) in found.items() if outcome == "failed"] == []
    assert found["one batch"][0] == found["gradients"][0] == found["probabilities"][0] == found["log-probs"][0] == "ok"


def test_a_policy_that_is_right_only_after_its_cold_start_is_no_fault() -> None:
    keys = ("rollout.prompts=2", "rollout.group=2")
    outcome, sentence = outcomes(*keys, name="grpo-countdown")["reward"]
    assert outcome == "not tried"
    assert "before the 300 supervised steps of cold_start" in sentence
    outcome, sentence = outcomes(*keys, "cold_start.steps=0", name="grpo-countdown")["reward"]
    assert outcome == "failed"
    assert "a supervised start (cold_start.steps)" in sentence


def test_a_loss_with_the_wrong_sign_fails(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(CELLS)
    outcome, sentence = outcomes(f"algorithm.surrogate={tmp_path / 'cells.py'}:backwards")["direction"]
    assert outcome == "failed"
    assert "its sign is wrong" in sentence


def test_a_constant_reward_fails(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    found = outcomes(f"reward.functions=[{tmp_path / 'rewards.py'}:constant]")
    assert found["reward"][0] == "failed"
    assert "does not depend on what is written" in found["reward"][1]
    assert found["direction"][0] == "not tried"


@pytest.mark.parametrize(("places", "word"), [(1, "before"), (-1, "after")])
def test_shifted_log_probs_fail(
    subject: OnlineSubject, monkeypatch: pytest.MonkeyPatch, places: int, word: str
) -> None:
    right = probabilities._trainer
    assert "against" in probabilities.are_aligned(subject.read())
    monkeypatch.setattr(probabilities, "_trainer", lambda read, rows: right(read, rows).roll(places, dims=1))
    with pytest.raises(CheckFailed, match=f"those of the token {word}"):
        probabilities.are_aligned(subject.read())


def test_log_probs_of_another_temperature_fail(subject: OnlineSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    right = probabilities._trainer
    monkeypatch.setattr(probabilities, "_trainer", lambda read, rows: right(read, rows) * 1.1)
    with pytest.raises(CheckFailed, match="log-probs of the trainer are"):
        probabilities.are_aligned(subject.read())


@pytest.mark.parametrize(("change", "why"), [(-0.01, "not normalised"), (0.5, "which is no probability|add up")])
def test_probabilities_that_do_not_add_up_fail(
    subject: OnlineSubject, monkeypatch: pytest.MonkeyPatch, change: float, why: str
) -> None:
    right = probabilities._trainer
    monkeypatch.setattr(probabilities, "_trainer", lambda read, rows: right(read, rows) + change)
    with pytest.raises(CheckFailed, match=why):
        probabilities.add_up_to_one(subject.read())


def test_a_frozen_weight_fails(subject: OnlineSubject) -> None:
    policy: Any = subject.policy
    name, weight = next(iter(policy.named_parameters()))
    weight.requires_grad_(False)
    try:
        with pytest.raises(CheckFailed, match="1 weights are frozen") as found:
            learning.reach_every_weight(policy, subject.parts.optimizer, subject.step())
    finally:
        weight.requires_grad_(True)
    assert name in str(found.value)


def test_a_weight_that_the_optimizer_lacks_or_the_loss_does_not_read_fails() -> None:
    model = torch.nn.ModuleDict({"read": torch.nn.Linear(2, 1), "idle": torch.nn.Linear(2, 1)})
    inputs = torch.ones(1, 2)

    def step(optimizer: torch.optim.Optimizer) -> float:
        optimizer.zero_grad()
        loss = model["read"](inputs).square().sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    some = torch.optim.SGD(model["read"].parameters(), lr=0.1)
    with pytest.raises(CheckFailed, match=r"the optimizer does not have idle\.weight, idle\.bias"):
        learning.reach_every_weight(model, some, lambda: step(some))
    every = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CheckFailed, match=r"2 of 4 trained weights got no gradient in 2 steps: idle\.weight"):
        learning.reach_every_weight(model, every, lambda: step(every))


@pytest.mark.parametrize("sign", [0.0, -1.0])
def test_a_batch_that_is_not_learned_fails(sign: float) -> None:
    """An optimizer that does nothing, or climbs."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 2)) - 3).square().sum()
        (sign * loss).backward()
        optimizer.step()
        return loss.item()

    with pytest.raises(CheckFailed, match="the loss of one batch is"):
        learning.can_be_overfitted(model, optimizer, step)


def test_advantages_of_another_scale_fail(subject: OnlineSubject) -> None:
    algorithm, batch, group = subject.learner.algorithm, subject.batch, subject.config.rollout.group
    assert "the deviation in a group 1" in rewards.normalised(algorithm, batch, group)
    mask = batch.sequences.mask
    for changed, why in [
        (batch.advantages + 0.5 * mask, "the mean in a group is 0.5"),
        (batch.advantages * 2, "the deviation in a group is 2"),
        (batch.advantages + 1.0 * ~mask, "tokens that are not trained"),
        (batch.advantages * float("nan"), "not a finite number"),
    ]:
        with pytest.raises(CheckFailed, match=why):
            rewards.normalised(algorithm, replace(batch, advantages=changed), group)
    with pytest.raises(NotTried):
        rewards.normalised(algorithm, replace(batch, advantages=batch.advantages * 0), group)


class Letters:
    """A tokenizer of letters with a fault; its control token 0 has no text."""

    has_chat_template, stops, vocab_size = False, frozenset({0}), 200

    def __init__(self, *, loses: str = "", start: tuple[int, ...] = ()) -> None:
        self._loses, self._start = loses, start

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text if letter not in self._loses]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(one) for one in ids if one)

    def prompt(self, prompt: str | tuple[Message, ...]) -> list[int]:
        assert isinstance(prompt, str)
        return [*self._start, *self.encode(prompt)]


def test_text_that_is_lost_fails() -> None:
    assert "same after their ids" in templates.text_comes_back(Letters(), ["a b"])  # type: ignore[arg-type]
    with pytest.raises(CheckFailed, match="loses text"):
        templates.text_comes_back(Letters(loses="b"), ["a b c"])  # type: ignore[arg-type]


def test_two_beginnings_fail() -> None:
    for start in ((), (0,)):
        assert "begin once" in templates.prompts_begin_once(Letters(start=start), ["aab"])  # type: ignore[arg-type]
    with pytest.raises(CheckFailed, match="control token 0 twice"):
        templates.prompts_begin_once(Letters(start=(0, 0)), ["ab"])  # type: ignore[arg-type]


def test_an_offline_recipe_is_read_as_it_is_trained() -> None:
    made = OfflineSubject(recipe(name="sft-reverse").config, World.alone())  # type: ignore[arg-type]
    assert "against" in probabilities.are_aligned(made.read())
    assert made.texts
    made.close()
