"""The trainer's seconds: those of the plan on one GPU; ranks that wait for the longest; what GPUs send each other."""

from dataclasses import replace
from itertools import pairwise
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.parts import CLUSTER, SHAPE
from whet.models.sizes.pass_bytes import BF16
from whet.models.sizes.weight_counts import blocks_weights
from whet.train.plan.durations import Packed, durations, optimizer_seconds, update_seconds
from whet.train.plan.gpus import GPUS
from whet.train.plan.peaks import Choice
from whet.train.plan.placement import placement
from whet.train.plan.workload import Models, Work
from whet.train.simulation.cluster import LATENCY, REACHED, Cluster, cluster_of
from whet.train.simulation.trainer_step import Extra, Trainer

LONG = 30_000  # tokens, enough that products and not their launches take the time
H200 = GPUS["h200"]


def trainer(gpus: int = 1, models: Models | None = None, **more: object) -> Trainer:
    work = Work(loop="online", prompts=8, group=4, prompt=100, completion=300)
    usual = {"models": models or Models(policy=SHAPE), "work": work, "cluster": CLUSTER, "micro_batch_tokens": 4096}
    return Trainer(gpus=gpus, **{**usual, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("models", [Models(policy=SHAPE), Models(policy=SHAPE, reference="copy", recompute=True)])
def test_one_gpu_with_one_length_takes_what_the_plan_says(models: Models, updates: int) -> None:
    work = Work(loop="online", prompts=8, group=4, prompt=100, completion=300, updates=updates, reads_old=True)
    choice = Choice(micro_batch_tokens=4096, slots=32, eval_slots=0, away=frozenset())
    planned = durations(models, work, choice, placement(models), H200).moments
    found = trainer(models=models, work=work).step([[300] * 4] * 8)
    assert found.score == pytest.approx(planned["score"])
    assert found.annotate == pytest.approx(planned["annotate"], rel=0.02)
    assert found.update == pytest.approx(planned["update"], rel=0.02)
    assert found.waiting == found.sending == 0


def test_ranks_wait_for_the_one_with_the_most_tokens() -> None:
    """Two prompts with one completion each on two ranks: the step is that of the longer one."""
    work = Work(loop="online", prompts=2, group=1, prompt=100, completion=LONG)
    found = trainer(2, work=work, micro_batch_tokens=2 * LONG).step([[100], [LONG]])

    def passes(length: int) -> float:
        packed = Packed(tokens=100 + length - 1, trained=length, context=100 + length / 2, passes=1)
        return update_seconds(Models(policy=SHAPE), packed, H200)

    size = placement(Models(policy=SHAPE)).gradients
    sums = 2 * (size / 2 / (REACHED * CLUSTER.link) + LATENCY)
    own = optimizer_seconds(Models(policy=SHAPE), size, H200)
    assert found.update == pytest.approx(passes(LONG) + sums + own)
    assert found.waiting == pytest.approx((passes(LONG) - passes(100)) / 2)
    assert found.sending == pytest.approx(sums)


def test_shards_gather_weights_while_products_are_computed() -> None:
    """A slow link is waited for, as far as a pass is shorter; a fast one is not."""
    work = Work(loop="online", prompts=8, group=4, prompt=100, completion=300)
    draw = [[300] * 4] * 8
    fast = trainer(4, work=work, shards=4).step(draw)
    assert fast.sending == 0
    slow = trainer(4, work=work, shards=4, cluster=replace(CLUSTER, link=1e9)).step(draw)
    held = placement(Models(policy=SHAPE))
    each = (2 * BF16 * blocks_weights(SHAPE) + held.gradients) * 3 / 4 / (REACHED * 1e9) + 3 * LATENCY * log2(4)
    hidden = fast.update - optimizer_seconds(Models(policy=SHAPE), held.gradients / 4, H200)
    assert slow.sending == pytest.approx(each - hidden)


def test_every_optimizer_step_waits_for_itself() -> None:
    """Two minibatches of which each has one long completion: the ranks wait twice."""
    work = Work(loop="online", prompts=4, group=1, prompt=100, completion=LONG, updates=2)
    draw = [[LONG], [100], [100], [LONG]]
    twice = trainer(2, work=work, micro_batch_tokens=2 * LONG).step(draw)
    once = trainer(2, work=replace(work, updates=1), micro_batch_tokens=2 * LONG).step(draw)
    assert once.waiting == pytest.approx(0)  # both ranks have a long one and a short one
    assert twice.waiting > 0.1 * once.seconds


def test_extra_seconds_are_added_where_they_belong() -> None:
    work = Work(loop="online", prompts=8, group=4, prompt=100, completion=300, updates=4)
    draw, extra = [[300] * 4] * 8, Extra(annotate=1.0, update=2.0, optimizer_step=3.0)
    plain, more = (trainer(work=work, extra=one).step(draw) for one in (Extra(), extra))
    assert more.annotate - plain.annotate == pytest.approx(1.0)
    assert more.update - plain.update == pytest.approx(2.0 + 4 * 3.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 900), min_size=4, max_size=4), min_size=8, max_size=8))
def test_twice_the_gpus_are_never_slower(draw: list[list[int]]) -> None:
    """Sequences of a rank are shared by two, on links that cost nothing."""
    free = Cluster(gpu=H200, link=1e30, network=1e30)
    seconds = [trainer(gpus, cluster=free, shards=gpus).step(draw).seconds for gpus in (1, 2, 4, 8)]
    latencies = 1e-3  # of collective operations
    assert all(more <= fewer + latencies for fewer, more in pairwise(seconds))


def test_a_ring_over_nodes_is_as_fast_as_their_network() -> None:
    cluster = cluster_of(H200, network=10e9, node=8)
    assert cluster.bandwidth(1) == float("inf")
    assert cluster.bandwidth(8) == pytest.approx(REACHED * cluster.link)
    assert cluster.bandwidth(16) == pytest.approx(REACHED * 80e9)
    assert cluster.sent(8e9, 16) == pytest.approx(8e9 / (REACHED * 10e9) + 4 * LATENCY)
    assert cluster.gathered(8e9, 1) == cluster.reduced(8e9, 1) == cluster.sent(8e9, 1) == 0
    assert cluster_of(GPUS["4090"]).link == GPUS["4090"].host_bandwidth
