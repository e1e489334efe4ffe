"""An engine's seconds: by hand, step by step, and as `whet plan` has them where all lengths are alike."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.parts import CLUSTER, SHAPE, speed
from whet.models.decoder.known_shapes import require_shape
from whet.train.plan.durations import rollout_seconds
from whet.train.plan.gpus import GPUS
from whet.train.plan.workload import Models
from whet.train.simulation.engine_rollout import Speed, sample_share

BY_HAND = {1: (1.0, 0.1), 2: (1.5, 0.1)}  # rows → seconds of a step, and of every cached token


def decoding(found: Speed, lengths: list[int], slots: int) -> tuple[float, float]:
    """Seconds of the decode steps, and slot-seconds with a sequence."""
    one = sample_share(found, lengths, slots)
    assert one.tokens == sum(lengths)
    beside = found.begin + found.admission(len(lengths), len(lengths))
    return one.seconds - beside, one.filled - min(slots, len(lengths)) * beside


def test_two_sequences_in_two_slots() -> None:
    """Two steps of both, with 0 and 2 cached tokens; then two steps of the longer one, with 2 and 3."""
    seconds, filled = decoding(speed(BY_HAND), [2, 4], slots=2)
    both, alone = 2 * 1.5 + 0.1 * (0 + 2), 2 * 1.0 + 0.1 * (2 + 3)
    assert seconds == pytest.approx(both + alone)
    assert filled == pytest.approx(2 * both + alone)


def test_two_sequences_in_one_slot() -> None:
    seconds, filled = decoding(speed(BY_HAND), [2, 4], slots=1)
    assert seconds == pytest.approx((2 * 1.0 + 0.1 * 1) + (4 * 1.0 + 0.1 * (1 + 2 + 3)))
    assert filled == pytest.approx(seconds)


def test_a_free_slot_is_taken_at_once() -> None:
    """Lengths 1, 3 and 2 in two slots: the third takes the place of the first, and both end after three steps."""
    seconds, _ = decoding(speed(BY_HAND), [1, 3, 2], slots=2)
    assert seconds == pytest.approx(3 * 1.5 + 0.1 * (0 + 1 + 3))


def step_by_step(found: Speed, lengths: list[int], slots: int) -> float:
    """The same, one decode step after the other."""
    waiting, live, seconds = [*lengths], [], 0.0
    while waiting or live:
        while waiting and len(live) < slots:
            live.append([waiting.pop(0), 0])
        base, each = found.step(len(live))
        seconds += base + each * sum(done for _, done in live)
        live = [[length, done + 1] for length, done in live if done + 1 < length]
    return seconds


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 8))
def test_the_closed_form_is_the_sum_over_steps(lengths: list[int], slots: int) -> None:
    found = speed(shared=4)
    assert decoding(speed(), lengths, slots)[0] == pytest.approx(step_by_step(speed(), lengths, slots))
    one = sample_share(found, lengths, slots)
    prompts = -(-len(lengths) // 4)
    beside = found.begin + found.admission(len(lengths), prompts)
    assert one.seconds - beside == pytest.approx(step_by_step(found, lengths, slots))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=2, max_size=40))
def test_fewer_sequences_are_never_slower(lengths: list[int]) -> None:
    """Twice as many engines with slots for all: each has every second sequence of one of the former."""
    found = speed()
    whole = sample_share(found, lengths, len(lengths))
    halves = [sample_share(found, lengths[first::2], len(lengths)) for first in (0, 1)]
    assert max(half.seconds for half in halves) <= whole.seconds * (1 + 1e-12)
    assert sum(half.tokens for half in halves) == whole.tokens


@pytest.mark.parametrize(("sequences", "slots", "group"), [(64, 64, 8), (96, 32, 8), (40, 16, 1)])
def test_completions_of_one_length_take_what_the_plan_says(sequences: int, slots: int, group: int) -> None:
    """But for the token that a plan's average has half-way: 1 in 500."""
    models = Models(policy=SHAPE)
    planned = rollout_seconds(models, GPUS["h200"], sequences, slots, 100, 500, group)
    found = Speed(models=models, cluster=CLUSTER, prompt=100, shared=group)
    assert sample_share(found, [500] * sequences, slots).seconds == pytest.approx(planned, rel=2e-3)


def test_an_engine_of_several_gpus_is_faster_and_pays_for_sums() -> None:
    models = Models(policy=require_shape("qwen3-14b")[1])
    one, four = speed(models=models), speed(models=models, gpus=4)
    assert four.step(64)[1] == pytest.approx(one.step(64)[1] / 4)
    assert one.step(64)[0] / 4 < four.step(64)[0] < one.step(64)[0]


def test_an_engine_without_sequences_takes_no_time() -> None:
    assert sample_share(speed(), [], 4).seconds == 0
