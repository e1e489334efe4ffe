"""Schedules: by hand, against a clock that ticks, and the promises of the ticket rule for any lengths."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.parts import share, speed, training
from whet.train.simulation.completion_lengths import log_normal
from whet.train.simulation.schedules import HandOff, Timeline, drawn, in_turn, shared_out, simulate

FREE = HandOff()


def run(
    shares: Sequence[Sequence[float]], steps: Sequence[float], staleness: float, hand_off: HandOff = FREE
) -> Timeline:
    """`shares` by draw and engine, `steps` of the trainer, in seconds."""
    return simulate(
        lambda number: tuple(share(one) for one in shares[number - 1]),
        lambda number: training(steps[number - 1]),
        hand_off,
        staleness=staleness,
        steps=len(steps),
    )


def test_synchronous_is_rollout_plus_update() -> None:
    hand_off = HandOff(sent=1.0, taken=0.5)
    found = run([[5.0, 3.0]] * 4, [2.0] * 4, 0, hand_off)
    assert found.ends == pytest.approx([8.0, 16.5, 25.0, 33.5])  # the first draw needs no new weights
    assert found.staleness == (0, 0, 0, 0)


def test_one_step_ahead_overlaps() -> None:
    """Rollouts of 5, steps of 2: draw 2 begins at 5 with the first weights, draw 3 at 10 with those of step 1."""
    found = run([[5.0]] * 4, [2.0] * 4, 1)
    assert found.ends == pytest.approx([7, 12, 17, 22])
    assert found.versions == (0, 0, 1, 2)
    assert found.staleness == (0, 1, 1, 1)


def test_without_a_bound_the_longer_side_counts() -> None:
    for rollout, step in ((5.0, 2.0), (2.0, 5.0)):
        found = run([[rollout]] * 50, [step] * 50, inf)
        assert found.ends[-1] / 50 == pytest.approx(max(rollout, step), rel=0.02)
        assert set(found.versions) == {0}


def test_an_engine_with_short_answers_goes_on() -> None:
    """Engines take 1 and 9, then 9 and 1: the second draw is ready at 10, not at 18."""
    found = run([[1.0, 9.0], [9.0, 1.0]], [0.0, 0.0], 1)
    assert found.ends == pytest.approx([9, 10])


def test_a_checkpoint_keeps_the_trainer() -> None:
    found = run([[1.0]] * 4, [1.0] * 4, 0, HandOff(checkpoint=10.0, every=2))
    assert found.ends == pytest.approx([2, 14, 15, 27])
    assert [event.number for event in found.events if event.kind == "checkpoint written"] == [2, 4]


def ticking(  # noqa: C901 - a clock without the library's shortcuts
    shares: Sequence[Sequence[int]], steps: Sequence[int], staleness: int, sent: int, taken: int
) -> list[int]:
    """The same in whole seconds, by a clock: every second each engine and the trainer look whether they may begin."""
    count, engines = len(steps), range(len(shares[0]))
    next_draw, busy = [1 for _ in engines], [0 for _ in engines]
    done = [[False for _ in engines] for _ in range(count + 1)]
    version, next_step, left, phase, time, ends = 0, 1, 0, "free", 0, []
    while len(ends) < count:
        moved = True
        while moved:
            moved = False
            if phase != "free" and left == 0:
                phase, left = ("sending", sent) if phase == "training" else ("free", 0)
                if phase == "free":
                    version, next_step = version + 1, next_step + 1
                    ends.append(time)
                moved = True
            for one in engines:
                if busy[one] == 0 and next_draw[one] <= count:
                    draw = next_draw[one]
                    wanted = max(0, draw - 1 - staleness)
                    if done[draw][one]:
                        next_draw[one], moved = draw + 1, True
                    elif version >= wanted:
                        busy[one] = shares[draw - 1][one] + (taken if wanted else 0)
                        done[draw][one], moved = True, True
            if phase == "free" and next_step <= count:
                ready = all(done[next_step][one] and (busy[one] == 0 or next_draw[one] > next_step) for one in engines)
                if ready:
                    phase, left, moved = "training", steps[next_step - 1], True
        time += 1
        busy, left = [max(0, one - 1) for one in busy], max(0, left - 1)
    return ends


SECONDS = st.integers(1, 6)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2))
def test_a_clock_that_ticks_agrees(data: st.DataObject, engines: int, staleness: int, sent: int, taken: int) -> None:
    steps = data.draw(st.lists(SECONDS, min_size=1, max_size=6))
    shares = [data.draw(st.lists(SECONDS, min_size=engines, max_size=engines)) for _ in steps]
    found = run(shares, [*map(float, steps)], staleness, HandOff(sent=sent, taken=taken))
    assert found.ends == pytest.approx(ticking(shares, steps, staleness, sent, taken))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.floats(0, 3), st.floats(0, 3))
def test_the_promises_of_the_tickets(data: st.DataObject, engines: int, sent: float, taken: float) -> None:
    number = st.floats(0.0, 10.0)
    steps = data.draw(st.lists(number, min_size=1, max_size=12))
    shares = [data.draw(st.lists(number, min_size=engines, max_size=engines)) for _ in steps]
    hand_off = HandOff(sent=sent, taken=taken, checkpoint=1.0, every=3)
    before: Timeline | None = None
    for bound in (0, 1, 2, 4, inf):
        found = run(shares, steps, bound, hand_off)
        assert max(found.staleness) <= bound
        times = [event.time for event in found.events]
        assert times == sorted(times)
        ended = {(event.kind, event.number, event.engine): event.time for event in found.events}
        for draw in range(1, len(steps) + 1):
            version = found.versions[draw - 1]
            for engine in range(engines):
                assert ended["share ends", draw, engine] <= ended["step begins", draw, -1] + 1e-9
                if version:
                    assert ended["weights sent", version, -1] <= ended["share begins", draw, engine] + 1e-9
        if before is not None and bound != inf:  # nothing ends later with a larger bound
            assert all(now <= earlier + 1e-9 for now, earlier in zip(found.ends, before.ends, strict=True))
        before = found


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 12), st.integers(0, 99))
def test_tokens_are_conserved_and_runs_are_repeated(prompts: int, group: int, engines: int, seed: int) -> None:
    lengths = log_normal(50, 1.0, 400)
    draws = drawn(lambda number, count: lengths.draw(number, count, seed), prompts, group)
    shares = shared_out(speed(), engines, 4, draws)
    again = shared_out(speed(), engines, 4, draws)
    for number in (1, 2):
        assert sum(one.tokens for one in shares(number)) == sum(map(sum, draws(number)))
        assert shares(number) == again(number)


def test_sequences_are_taken_in_turn() -> None:
    assert in_turn([[1, 2, 3], [4, 5], [6]]) == [1, 4, 6, 2, 5, 3]
