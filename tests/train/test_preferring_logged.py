"""What direct alignment logs and remembers, by hand in double precision, on one rank and on several."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.fake_ranks import on_ranks
from tests.train import rows_on_disk as on_disk
from tests.train.scenes import Table
from tests.train.test_preferring import logprob, moved
from whet.algorithms.cells import bind
from whet.algorithms.preference.preference_table import PREFERENCES
from whet.distributed.world import World
from whet.errors import UserError
from whet.train.optimizers.optimizer import NotFinite
from whet.train.rows.preference import Means, Tally, _counted, _shape

BETA = 0.3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("preferring")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHET_HOME", str(path / "home"))
        on_disk.saved_model(path / "start")
        on_disk.saved_model(path / "other", seed=7)
        on_disk.pairs(path / "pairs.jsonl", 40)
        yield path


def trainer_of(place: Any, name: str, world: World = on_disk.ALONE, **changes: Any) -> tuple[Any, Any]:
    """Nothing moves in it, and the policy is a little away from its reference."""
    given = {"name": name, "beta": BETA}
    config = on_disk.config(place / "start", place / "pairs.jsonl", given, **{"seed": 3, "steps": 2, **changes})
    parts, trainer = on_disk.built(config, world)
    if "reference" not in changes:
        moved(parts)
    for group in parts.optimizer.param_groups:  # type: ignore[attr-defined]
        group["lr"] = 0.0
    return parts, trainer


def qualities(parts: Any, trainer: Any, name: str, unit: Any) -> list[float]:
    """Of the rows that the loss reads: log π/π_ref, or SimPO's mean log π."""
    rows = unit.rows[: 2 if name in {"dpo", "simpo"} else 1]
    found = [logprob(parts.policy, row) for row in rows]
    if name == "simpo":
        return [value / sum(row.mask) for value, row in zip(found, rows, strict=True)]
    return [value - ref for value, ref in zip(found, unit.refs, strict=False)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(parts: Any, trainer: Any, name: str, units: Any, point: float = 0.0) -> dict[str, float]:
    """Everything that is logged but for the norm of the gradient."""
    losses, gaps, rewards = [], [], {True: [], False: []}
    logprobs, lengths = ({True: [], False: []} for _ in range(2))
    for unit in units:
        own = [BETA * value for value in qualities(parts, trainer, name, unit)]
        if name in {"dpo", "simpo"}:
            gap = own[0] - own[1]
            rewards[True].append(own[0])
            rewards[False].append(own[1])
            losses.append(-math.log(sigmoid(gap - (0 if name == "dpo" else SIMPO_MARGIN))))
        else:
            gap = (own[0] - BETA * point) * (1 if unit.label else -1)
            rewards[unit.label].append(own[0])
            losses.append(sigmoid(-gap) if name == "kto" else -math.log(sigmoid(gap)))
        gaps.append(gap)
        for row, is_chosen in zip(
            unit.rows, (True, False) if name in {"dpo", "simpo"} else (unit.label,), strict=False
        ):
            logprobs[is_chosen].append(logprob(parts.policy, row))
            lengths[is_chosen].append(sum(row.mask))
    return {
        "loss": np.mean(losses),
        accuracy_of(name): np.mean([gap > 0 for gap in gaps]),
        "rewards/margin": np.mean(gaps),
        "rewards/chosen": np.mean(rewards[True]),
        "rewards/rejected": np.mean(rewards[False]),
        "logprobs/chosen": np.mean(logprobs[True]),
        "logprobs/rejected": np.mean(logprobs[False]),
        "length/chosen": np.mean(lengths[True]),
        "length/rejected": np.mean(lengths[False]),
    }


def accuracy_of(name: str) -> str:
    return "pair_accuracy" if name in {"dpo", "simpo"} else "label_accuracy"


SIMPO_MARGIN = 1.0


def learned(units: Any, name: str) -> int:
    return sum(sum(row.mask) for unit in units for row in unit.rows[: 2 if name in {"dpo", "simpo"} else 1])


@pytest.mark.parametrize("name", ["dpo", "simpo", "kto", "bco"])
def test_a_step_by_hand(place: Any, name: str) -> None:
    parts, trainer = trainer_of(place, name, **({"reference": str(place / "other")} if name == "kto" else {}))
    units = trainer.rows(1)
    assert {unit.label for unit in units} == ({True} if name in {"dpo", "simpo"} else {True, False})
    point = float(trainer._point(units)) if name in {"kto", "bco"} else 0.0
    assert (point > 0.1) == (name == "kto")
    if name == "kto":
        drifts = [logprob(parts.policy, unit.rows[1]) - unit.refs[1] for unit in units]
        assert point == pytest.approx(np.mean(drifts), rel=1e-4)
    logged, tokens = trainer.fit(units)
    assert trainer.means.means.any() == (name == "bco")  # nobody else remembers
    pulled = [parameter.grad for parameter in parts.policy.parameters()]
    wanted = by_hand(parts, trainer, name, units, point)
    assert tokens == learned(units, name)
    norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in pulled))
    clip = trainer.config.update.max_grad_norm
    assert norm == pytest.approx(min(clip, logged.pop("grad_norm")), rel=1e-4)
    assert logged == pytest.approx(wanted | ({"point": point} if name in {"kto", "bco"} else {}), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["dpo", "kto"])
@pytest.mark.parametrize("task", ["data", "sorting"])
def test_the_held_out_side_by_hand(place: Any, name: str, task: str) -> None:
    """Whatever the task calls right has a name of its own, eval/accuracy."""
    changes: dict[str, Any] = {"update": {"micro_batch_tokens": 1}, "eval": {"examples": 7, "max_tokens": 8}}
    if task != "data":
        changes["task"] = {"name": task, "level": 1}
    parts, trainer = trainer_of(place, name, **changes)
    assert len(trainer.evaluation[""]) == 7
    point = float(trainer._point(trainer.evaluation[""])) if name == "kto" else 0.0
    wanted = by_hand(parts, trainer, name, trainer.evaluation[""], point)
    found = trainer.measure()
    assert found["eval/loss"] == pytest.approx(wanted["loss"], rel=1e-4)
    assert found["eval/loss"] != float(np.float32(found["eval/loss"]))  # many are added in double precision
    assert found["eval/margin"] == pytest.approx(wanted["rewards/margin"], rel=1e-4)
    accuracy = accuracy_of(name)
    assert found[f"eval/{accuracy}"] == pytest.approx(wanted[accuracy])
    named = [f"eval/{accuracy}{end}" for end in ("", "_low", "_high")]
    assert list(found) == ["eval/loss", "eval/margin", *named, "eval/rows"]
    assert found["eval/rows"] == 7
    assert all(parameter.grad is None for parameter in parts.policy.parameters())


@pytest.mark.parametrize(("name", "rows"), [("dpo", 2), ("kto", 5), ("bco", 2)])
def test_ranks_log_what_one_process_does(place: Any, name: str, rows: int) -> None:
    """With two rows the third rank has none."""

    def work(world: World) -> Any:
        parts, trainer = trainer_of(place, name, world, batch_size=rows)
        found = [trainer.fit(trainer.rows(step)) for step in (1, 2)]
        return found, [p.grad.clone() for p in parts.policy.parameters()], trainer.means.means.tolist()

    logged, gradient, means = work(on_disk.ALONE)
    for said, pulled, remembered in on_ranks(3, work):
        for (ours, tokens), (theirs, count) in zip(said, logged, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
            assert tokens == count
        assert remembered == pytest.approx(means, abs=1e-6)
        assert max(float((a - b).abs().max()) for a, b in zip(pulled, gradient, strict=True)) < 1e-5


def test_what_bco_remembers_by_hand(place: Any) -> None:
    """A tenth of the mean log-ratio of each kind; a step without one kind leaves its mean; the point is halfway."""
    parts, trainer = trainer_of(place, "bco")
    assert trainer.kept == {"means": trainer.means}
    assert trainer.means.numbers() == {"means": [0.0, 0.0]}
    assert trainer.means.tensors() == {}
    units = trainer.rows(2)

    def mean(label: bool) -> float:
        return float(np.mean([qualities(parts, trainer, "bco", unit)[0] for unit in units if unit.label is label]))

    trainer.fit(units)
    bad, good = 0.1 * mean(False), 0.1 * mean(True)
    assert trainer.means.means.tolist() == pytest.approx([bad, good], rel=1e-4)
    logged, _ = trainer.fit([unit for unit in units if unit.label])
    assert logged["point"] == pytest.approx((bad + good) / 2, rel=1e-4)
    assert logged["rewards/rejected"] == 0.0
    good = 0.9 * good + 0.1 * mean(True)
    assert trainer.means.means.tolist() == pytest.approx([bad, good], rel=1e-4)


@pytest.mark.parametrize("label", [True, False])
def test_one_unit_of_one_kind_by_hand(place: Any, label: bool) -> None:
    parts, trainer = trainer_of(place, "kto")
    unit = next(unit for unit in trainer.rows(1) if unit.label is label)
    point = float(trainer._point([unit]))
    reward = BETA * qualities(parts, trainer, "kto", unit)[0]
    logged, _ = trainer.fit([unit])
    own, other = ("chosen", "rejected") if label else ("rejected", "chosen")
    assert logged[f"rewards/{own}"] == pytest.approx(reward, rel=1e-4)
    assert logged[f"rewards/{other}"] == 0.0
    assert logged["rewards/margin"] == pytest.approx((reward - BETA * point) * (1 if label else -1), rel=1e-4)


def test_only_what_will_be_drawn_has_a_reference(place: Any) -> None:
    notes: list[str] = []
    config = on_disk.config(place / "start", place / "pairs.jsonl", "dpo", steps=2, batch_size=3, seed=3)
    parts, trainer = on_disk.built(config, on_disk.ALONE, notes.append)
    known = [unit for unit in trainer.epoch_sampler.rows if unit.refs]  # type: ignore[attr-defined]
    drawn = [unit for step in (1, 2) for unit in trainer.rows(step)]
    assert len(known) == len(drawn) == 6
    assert all(unit in known for unit in drawn)
    for unit in [*drawn, *trainer.evaluation[""]]:  # type: ignore[attr-defined]
        assert unit.refs == pytest.approx([logprob(parts.policy, row) for row in unit.rows], rel=1e-5)
    count = 2 * (6 + len(trainer.evaluation[""]))  # type: ignore[attr-defined]
    assert f"reference: log-probs of {count} completions under the start" in notes


def test_all_rows_but_one_are_drawn(place: Any) -> None:
    _, trainer = trainer_of(place, "dpo")
    count = len(trainer.epoch_sampler.rows) - 1
    _, trainer = trainer_of(place, "dpo", batch_size=count, steps=1)
    assert all(unit.refs for unit in trainer.rows(1))
    assert trainer.epoch_sampler.rows[-1].refs  # it is not the last one that is left out


def test_a_reference_with_other_ids_is_refused(place: Any, tmp_path: Any) -> None:
    model, tokenizer = on_disk.small_model(vocab=40)
    model.save(tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(UserError, match="has 40 ids and the policy"):
        trainer_of(place, "dpo", reference=str(tmp_path))


def test_without_a_reference_none_is_computed(place: Any) -> None:
    _, trainer = trainer_of(place, "simpo")
    assert all(unit.refs == () for unit in [*trainer.epoch_sampler.rows, *trainer.evaluation[""]])
    assert trainer.kept == {}


def test_a_difference_that_is_rounding_is_a_tie() -> None:
    row = replace(PREFERENCES["dpo"], loss=bind(PREFERENCES["dpo"].loss, {"beta": 1.0}))
    supply = {"chosen_tokens": torch.ones(4), "rejected_tokens": torch.ones(4)}
    ratios = torch.tensor([0.9e-4, -0.9e-4, 1e-4, -1e-4])
    supply |= {"chosen": ratios, **dict.fromkeys(("rejected", "chosen_ref", "rejected_ref"), torch.zeros(4))}
    sums, won = _counted(row, supply)
    assert Tally(4).sums.dtype == torch.float64
    assert won.tolist() == [0.5, 0.5, 1.0, 0.0]
    assert sums.dtype == torch.float64
    assert sums.tolist() == pytest.approx([2, 0, 4, *[0, 0, 4, 4], *[0, 0, 4, 4]], abs=1e-9)


def test_a_loss_that_is_no_number_says_what_it_was_computed_from(place: Any) -> None:
    for name, terms in (("dpo", "chosen"), ("kto", "logprobs")):
        parts, trainer = trainer_of(place, name)
        with torch.no_grad():
            next(parts.policy.parameters()).fill_(math.nan)
        with pytest.raises(NotFinite, match="the loss is nan") as failure:
            trainer.fit(trainer.rows(1))
        assert terms in failure.value.culprit


def test_what_changes_what_a_model_says_besides_its_weights(place: Any) -> None:
    parts, _ = trainer_of(place, "simpo")
    assert _shape(parts.policy) == repr(parts.policy.config)
    assert _shape(Table()) == ""  # type: ignore[arg-type]
    assert _shape(SimpleNamespace(config="x")) == ""  # type: ignore[arg-type]


def test_means_are_put_back() -> None:
    means = Means()
    means.restore({"means": [0.25, -1.5]}, {})
    assert means.numbers() == {"means": [0.25, -1.5]}


def test_the_reference_point_is_a_constant_in_the_loss(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its passes keep no graph in memory."""
    _, trainer = trainer_of(place, "kto")
    read, seen = trainer._read_rows, []
    monkeypatch.setattr(trainer, "_read_rows", lambda *given: (seen.append(torch.is_grad_enabled()), read(*given))[1])
    assert not trainer._point(trainer.rows(2)).requires_grad
    assert seen
    assert not any(seen)


def test_what_is_counted_has_no_gradient() -> None:
    """Sums are kept until the end of a step; with a graph they would keep every pass in memory."""
    sums = {"chosen": torch.tensor([-1.0], requires_grad=True), "rejected": torch.tensor([-2.0], requires_grad=True)}
    counts = {"chosen_tokens": torch.tensor([2.0]), "rejected_tokens": torch.tensor([3.0])}
    refs = {"chosen_ref": torch.tensor([-1.5]), "rejected_ref": torch.tensor([-1.5])}
    total, won = _counted(PREFERENCES["dpo"], {**sums, **counts, **refs})
    assert not total.requires_grad
    assert won.tolist() == [1.0]
