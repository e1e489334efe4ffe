"""Streaming: its limits by hand, a trainer that takes what ends first, tokens conserved, staleness bounded."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.streaming import Stream, Streamed, Streaming
from tests.simulation.parts import speed, training
from whet.train.simulation.completion_lengths import log_normal
from whet.train.simulation.engine_rollout import sample_share
from whet.train.simulation.trainer_step import Draw, Training

FREE = speed()


def run(
    lengths: Callable[[int], list[int]], stream: Stream, seconds: float, *, engines: int = 1, steps: int = 4
) -> tuple[Streamed, list[Draw]]:
    """What came of it, and what was trained on."""
    trained: list[Draw] = []

    def train(draw: Draw) -> Training:
        trained.append(draw)
        return training(seconds)

    return Streaming(FREE, engines, stream, lengths, train).run(steps), trained


def test_without_staleness_sides_take_turns() -> None:
    """One engine, four prompts a step: the seconds of an engine's share, of a step and of an exchange."""
    stream = Stream(prompts=4, staleness=0.0, at_a_time=4, pause=0.5)
    found, _ = run(lambda _: [200], stream, 3.0)
    rollout = sample_share(FREE, [200] * 4, 4).seconds - FREE.begin
    each = rollout + 3.0 + 0.5
    assert found.ends == pytest.approx([each * number for number in (1, 2, 3, 4)], rel=1e-6)
    assert found.staleness == (0, 0, 0, 0)


def test_a_slow_trainer_never_waits() -> None:
    found, _ = run(lambda _: [50], Stream(prompts=4, staleness=1.0, at_a_time=4), 30.0, steps=6)
    gaps = [later - earlier for earlier, later in zip(found.ends, found.ends[1:], strict=False)]
    assert gaps == pytest.approx([30.0] * 5)
    assert found.waited[1:] == pytest.approx([0.0] * 5)


def test_a_long_answer_is_trained_on_when_it_ends() -> None:
    """Prompt 0 has 900 tokens and is passed by later ones of 20."""
    found, trained = run(
        lambda prompt: [900 if prompt == 0 else 20], Stream(prompts=2, staleness=8.0, at_a_time=3), 0.0, steps=6
    )
    assert all([900] not in draw for draw in trained[:3])
    assert found.ends[0] < sample_share(FREE, [900], 1).seconds


def test_a_group_is_taken_whole() -> None:
    _, trained = run(lambda prompt: [10, 400, 30], Stream(prompts=2, at_a_time=2), 1.0)
    assert trained[0] == [[10, 400, 30]] * 2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 4), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), st.integers(1, 3))
def test_promises(seed: int, engines: int, staleness: float, between: int) -> None:
    """Each prompt is trained on once; times rise; no more prompts begin than the bound allows."""
    lengths = log_normal(60, 1.0, 500)
    seen: dict[int, list[int]] = {}

    def group(prompt: int) -> list[int]:
        return seen.setdefault(prompt, lengths.draw(prompt, 2, seed))

    stream = Stream(prompts=3, steps=between, staleness=staleness, at_a_time=4 * engines, pause=0.1)
    found, trained = run(group, stream, 0.2, engines=engines, steps=6)
    assert [*found.ends] == sorted(found.ends)
    used = sorted(map(tuple, (one for draw in trained[:6] for one in draw)))
    drawn = sorted(map(tuple, seen.values()))
    assert all(drawn.count(one) >= used.count(one) for one in set(used))
    exchanges = len(found.ends) // between
    assert len(seen) <= (1 + staleness + exchanges) * 3 * between + 1e-9
    assert min(found.waited) >= 0
    again, _ = run(group, stream, 0.2, engines=engines, steps=6)
    assert again == found
