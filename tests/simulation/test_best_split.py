"""The proposed split, against every split; outcomes and what is said of them."""

from itertools import pairwise
from math import inf

import pytest

from tests.simulation.parts import deployment
from whet.errors import UserError
from whet.models.decoder.known_shapes import require_shape
from whet.train.plan.gpus import GPUS
from whet.train.plan.placement import placement
from whet.train.plan.workload import Models
from whet.train.simulation.best_split import best_outcomes, possible_splits, schedules
from whet.train.simulation.cluster import cluster_of
from whet.train.simulation.completion_lengths import fixed
from whet.train.simulation.deployment import Split, place
from whet.train.simulation.outcome import Schedule, outcome, preparing


@pytest.mark.parametrize("bound", [1, 4])
@pytest.mark.parametrize("gpus", [2, 5, 8])
def test_no_split_is_much_faster(gpus: int, bound: int) -> None:
    """A split is chosen by where both sides take equally long, so a neighbour may be a little faster."""
    found = deployment(work={"updates": 2})
    (best,) = best_outcomes(found, gpus, [Schedule(staleness=bound)])
    prepare = preparing(found)
    every = [outcome(prepare(one), best.schedule).seconds for one in possible_splits(gpus)]
    assert len(every) == gpus - 1
    assert best.seconds <= 1.03 * min(every)


def test_splits_use_all_gpus_in_whole_engines() -> None:
    for gpus, engine in ((8, 1), (9, 2), (64, 4), (1000, 1), (4096, 8)):
        splits = possible_splits(gpus, engine)
        assert 0 < len(splits) <= 16
        assert all(one.gpus == gpus and one.rollout % engine == 0 and one.trainer > 0 for one in splits)
        assert [one.trainer for one in splits] == sorted(one.trainer for one in splits)


def test_a_given_split_is_kept_and_an_impossible_one_refused() -> None:
    (found,) = best_outcomes(deployment(), 8, [Schedule(staleness=1)], trainer=5)
    assert (found.split.trainer, found.split.rollout) == (5, 3)
    with pytest.raises(UserError, match="cannot be divided between a trainer with 8 and"):
        best_outcomes(deployment(), 8, [Schedule(staleness=1)], trainer=8)
    with pytest.raises(UserError, match="4 GPUs hold no engine of 8"):
        best_outcomes(deployment(engine_gpus=8), 4, [Schedule(colocated=True)])


def test_asynchronous_is_not_slower_on_the_same_split() -> None:
    """With lengths that differ, windows of steps have other draws: there the events themselves are compared."""
    prepare = preparing(deployment(lengths=fixed(300)))
    for split in possible_splits(8):
        seconds = [outcome(prepare(split), Schedule(staleness=bound)).seconds for bound in (0, 1, 4, inf)]
        assert all(more <= fewer * (1 + 1e-9) for fewer, more in pairwise(seconds))


def test_shares_of_idle_seconds() -> None:
    """With completions of one length an engine's slots are full, and synchronous sides are idle in turns."""
    prepare = preparing(deployment(lengths=fixed(300)))
    found = outcome(prepare(Split(trainer=1, rollout=1)), Schedule())
    assert found.slots_idle == pytest.approx(0, abs=1e-9)
    assert found.trainer_idle == pytest.approx(1 - found.training / found.seconds)
    assert found.rollout_idle == pytest.approx(1 - found.sampling / found.seconds)
    assert found.seconds == pytest.approx(
        found.rollout + found.training + found.placed.hand_off.sent + found.placed.hand_off.taken
    )
    assert "wait for each other" in found.bottleneck
    ahead = outcome(prepare(Split(trainer=1, rollout=1)), Schedule(staleness=inf))
    assert ahead.seconds == pytest.approx(max(found.rollout, found.training), rel=0.05)
    colocated = outcome(prepare(Split(trainer=2, rollout=2, colocated=True)), Schedule(colocated=True))
    assert colocated.trainer_idle == colocated.rollout_idle
    assert colocated.staleness == 0


def test_dynamic_sampling_samples_what_it_drops() -> None:
    once, twice = (
        outcome(
            preparing(deployment(lengths=fixed(300), work={"rounds": rounds}))(Split(trainer=1, rollout=1)), Schedule()
        )
        for rounds in (1.0, 2.0)
    )
    assert twice.rollout > 1.2 * once.rollout
    assert twice.training == once.training


def test_what_does_not_fit_on_a_gpu_is_sharded_or_refused() -> None:
    big = Models(policy=require_shape("qwen3-14b")[1], recompute=True)
    alone, eight = (place(deployment(models=big), Split(trainer=count, rollout=1)) for count in (1, 8))
    assert not alone.fits
    assert eight.fits
    assert (alone.trainer.shards, eight.trainer.shards) == (1, 8)
    small = cluster_of(GPUS["4090"])
    engines = [
        place(deployment(models=big, cluster=small, engine_gpus=gpus), Split(trainer=8, rollout=8)) for gpus in (1, 2)
    ]
    assert engines[0].engine_needed > small.gpu.memory > engines[1].engine_needed


def test_shards_divide_what_the_policy_keeps() -> None:
    """Beside its share a GPU has embedding and head in bf16, and of a block two bf16 copies and fp32 gradients."""
    shape = require_shape("qwen3-8b")[1]
    whole, eighth = (placement(Models(policy=shape, shards=count)) for count in (1, 8))
    for part in ("weights", "gradients", "state"):
        assert getattr(eighth, part) == getattr(whole, part) // 8
    outside = 2 * (2 * 151_936 * 4096)
    block = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 12_288
    assert eighth.joined == whole.joined // 8 + outside + 8 * block


def test_a_smaller_micro_batch_makes_it_fit() -> None:
    """8B trains on 14 cards of 24 GB."""
    models = Models(policy=require_shape("qwen3-8b")[1], recompute=True)
    big = deployment(models=models, cluster=cluster_of(GPUS["4090"]))
    found = place(big, Split(trainer=14, rollout=2))
    assert found.fits
    assert found.trainer.shards == 14
    assert found.trainer.micro_batch_tokens <= 4096


def test_adapters_are_handed_over_alone() -> None:
    whole, adapters = (
        place(deployment(models=Models(policy=require_shape("qwen3-8b")[1], storage=storage, adapters=count)), split)
        for storage, count in (("bf16", 0), ("frozen", 43_646_976))
        for split in [Split(trainer=8, rollout=8)]
    )
    assert adapters.hand_off.sent < 0.02 * whole.hand_off.sent
    assert adapters.hand_off.taken == pytest.approx(2 * 43_646_976 / GPUS["h200"].host_bandwidth)


def test_the_schedules_that_are_compared() -> None:
    assert [one.name for one in schedules((1, 4))] == [
        "synchronous, colocated",
        "synchronous, apart",
        "asynchronous, S = 1",
        "asynchronous, S = 4",
    ]
    assert Schedule(staleness=inf).name == "asynchronous, no bound"
