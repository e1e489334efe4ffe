"""Direct alignment: losses from first principles, the same for every split, against the reference that was named."""

import math

import numpy as np
import pytest
import torch

from tests.contracts.fake_ranks import on_ranks
from tests.train import rows_on_disk as on_disk
from whet.algorithms.preference.preference_table import PREFERENCES
from whet.errors import UserError
from whet.models.load import load_model
from whet.train.optimizers.optimizer import optimizer_tensors
from whet.train.rows import reference_cache

NEAR = 3e-6


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    on_disk.saved_model(tmp_path / "start")
    on_disk.saved_model(tmp_path / "other", seed=7)
    on_disk.pairs(tmp_path / "pairs.jsonl")
    return tmp_path


def logprob(model, row):
    """Of a row's trained tokens together, token by token with a plain forward pass in fp64."""
    tokens = torch.tensor([row.tokens])
    with torch.no_grad():
        logits = model.head(model.hidden(tokens, torch.tensor([len(row.tokens)])))[0].double()
    table = torch.log_softmax(logits, dim=-1)
    return sum(float(table[t - 1, row.tokens[t]]) for t in range(len(row.tokens)) if row.mask[t])


def moved(parts, size=0.05):
    """The policy, a little away from where it started."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in parts.policy.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)


def gradient(parts, trainer, units, **settings):
    """What one step would descend along; the optimizer does not move."""
    trainer.config = trainer.config.model_copy(update={"update": trainer.config.update.model_copy(update=settings)})
    for group in parts.optimizer.param_groups:
        group["lr"] = 0.0
    if "means" in trainer.kept:  # as at the first step
        trainer.kept["means"].restore({"means": [0.0, 0.0]}, {})
    logged, tokens = trainer.fit(units)
    return logged, tokens, [p.grad.clone() for p in parts.policy.parameters()]


def test_before_the_first_step_no_preference_is_known(place):
    _, trainer = on_disk.trainer(place / "start", place / "pairs.jsonl", "dpo")
    logged, _ = trainer.fit(trainer.rows(1))
    assert logged["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert logged["pair_accuracy"] == 0.5  # every pair is a tie
    assert abs(logged["rewards/margin"]) < 1e-4


def test_dpo_by_hand(place):
    parts, trainer = on_disk.trainer(place / "start", place / "pairs.jsonl", {"name": "dpo", "beta": 0.3})
    moved(parts)
    start = load_model(place / "start")
    units = trainer.rows(2)
    gaps = []
    for unit in units:
        ratios = [logprob(parts.policy, row) - logprob(start, row) for row in unit.rows]
        gaps.append(0.3 * (ratios[0] - ratios[1]))
    logged, tokens, _ = gradient(parts, trainer, units)
    assert logged["loss"] == pytest.approx(np.mean([np.log1p(np.exp(-g)) for g in gaps]), rel=1e-5)
    assert logged["rewards/margin"] == pytest.approx(np.mean(gaps), rel=1e-4)
    assert logged["pair_accuracy"] == np.mean([g > 0 for g in gaps])
    assert tokens == sum(sum(row.mask) for unit in units for row in unit.rows)


@pytest.mark.parametrize("name", PREFERENCES)
def test_no_split_or_packing_changes_loss_or_gradient(place, name):
    parts, trainer = on_disk.trainer(place / "start", place / "pairs.jsonl", name)
    moved(parts)
    units = trainer.rows(1)
    whole, _, pull = gradient(parts, trainer, units, micro_batch_tokens=10**6, padding_free=False)
    assert max(float(piece.norm()) for piece in pull) > 1e-3
    for settings in (
        {"micro_batch_tokens": 1, "padding_free": False},
        {"micro_batch_tokens": 60},
        {"micro_batch_tokens": 10**6, "padding_free": True},
    ):
        logged, _, other = gradient(parts, trainer, units, **settings)
        assert logged["loss"] == pytest.approx(whole["loss"], rel=1e-5), settings
        scale = max(float(piece.abs().max()) for piece in pull)
        assert max(float((a - b).abs().max()) for a, b in zip(pull, other, strict=True)) < NEAR * max(1.0, scale), (
            settings
        )


def test_the_reference_is_the_model_that_was_named(place):
    parts, trainer = on_disk.trainer(place / "start", place / "pairs.jsonl", "dpo", reference=str(place / "other"))
    other = load_model(place / "other")
    unit = trainer.rows(1)[0]
    assert unit.refs == pytest.approx([logprob(other, row) for row in unit.rows], rel=1e-5)
    # Without one it is what the policy starts from, whichever policy that is.
    _, plain = on_disk.trainer(place / "other", place / "pairs.jsonl", "dpo")
    assert plain.rows(1)[0].refs == pytest.approx(unit.refs, rel=1e-5)
    assert unit.refs != pytest.approx([logprob(parts.policy, row) for row in unit.rows], rel=1e-2)


def test_reference_logprobs_are_computed_once(place, monkeypatch):
    _, first = on_disk.trainer(place / "start", place / "pairs.jsonl", "dpo")
    (kept,) = reference_cache.cache_directory().glob("*.safetensors")
    monkeypatch.setattr(reference_cache, "_computed", lambda *_: pytest.fail("computed again"))
    _, second = on_disk.trainer(place / "start", place / "pairs.jsonl", "dpo")
    assert [unit.refs for unit in second.rows(1)] == [unit.refs for unit in first.rows(1)]
    monkeypatch.undo()
    monkeypatch.setenv("WHET_HOME", str(place / "home"))
    kept.write_bytes(b"broken")
    _, third = on_disk.trainer(place / "start", place / "pairs.jsonl", "dpo")
    assert [unit.refs for unit in third.rows(1)] == [unit.refs for unit in first.rows(1)]


def test_ktos_point_is_made_of_completions_behind_prompts_of_others(place):
    parts, trainer = on_disk.trainer(place / "start", place / "pairs.jsonl", "kto", reference=str(place / "other"))
    other = load_model(place / "other")
    units = trainer.rows(2)
    mismatched = [unit.rows[1] for unit in units]
    own = {tuple(row.tokens) for unit in trainer.epoch_sampler.rows for row in unit.rows[:1]}
    assert not any(tuple(row.tokens) in own for row in mismatched)  # no completion stands behind its own prompt
    texts = {parts.tokenizer.decode([t for t, on in zip(r.tokens, r.mask, strict=True) if on]) for r in mismatched}
    assert any("h" in text for text in texts)  # rejected ones too
    assert any("h" not in text for text in texts)
    drift = np.mean([logprob(parts.policy, row) - logprob(other, row) for row in mismatched])
    logged, _, _ = gradient(parts, trainer, units)
    assert logged["point"] == pytest.approx(drift, rel=1e-4)
    assert drift > 0.1  # below 0 it would be 0 (tests/algorithms/test_preference.py)


def test_ktos_point_is_that_of_all_ranks(place):
    """Three ranks hold other units each; whoever took the mean of its own would train against another point."""

    def points(world):
        config = on_disk.config(place / "start", place / "pairs.jsonl", "kto", reference=str(place / "other"))
        _, trainer = on_disk.built(config, world)
        return [float(trainer._point(trainer.rows(step))) for step in (2, 3)]

    alone = points(on_disk.ALONE)
    assert min(alone) > 0.1  # the policy is further from the reference than rounding, and the KL is not cut off at 0
    for found in on_ranks(3, points):
        assert found == pytest.approx(alone, abs=1e-5)


def test_what_bco_remembers_goes_with_a_checkpoint(place):
    _, trainer = on_disk.trainer(place / "start", place / "pairs.jsonl", "bco")
    for step in (1, 2, 3):
        trainer.fit(trainer.rows(step))
    numbers = trainer.kept["means"].numbers()
    assert any(value != 0 for value in numbers["means"])
    _, other = on_disk.trainer(place / "start", place / "pairs.jsonl", "bco")
    other.kept["means"].restore(numbers, {})
    assert other.means.means.tolist() == trainer.means.means.tolist()


def test_labelled_completions_need_no_pairs(place):
    rows = [
        {"prompt": f"{'ab' * (1 + i % 3)}{i % 7}=", "completion": "abc"[: 1 + i % 3], "label": bool(i % 2)}
        for i in range(40)
    ]
    data = on_disk.write(place / "labelled.jsonl", rows)
    _, trainer = on_disk.trainer(place / "start", data, "kto")
    logged, _ = trainer.fit(trainer.rows(1))
    assert math.isfinite(logged["loss"])
    with pytest.raises(UserError, match="learns from"):
        on_disk.trainer(place / "start", data, "sft")


def test_a_few_steps_of_dpo_learn_the_rule(place):
    parts, trainer = on_disk.trainer(place / "start", place / "pairs.jsonl", "dpo", steps=30, batch_size=16)
    before = trainer.measure()
    for step in range(1, 31):
        trainer.fit(trainer.rows(step))
    after = trainer.measure()
    assert after["eval/pair_accuracy_low"] > 0.6 > before["eval/pair_accuracy"]
    assert after["eval/margin"] > 0
    assert optimizer_tensors(parts.optimizer, parts.policy)
