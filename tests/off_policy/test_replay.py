"""The replay buffer: what it forgets, what ends an episode, goals in hindsight, and blocks that bring it back."""

import numpy as np
import pytest

from whet.control.off_policy import replay
from whet.control.off_policy.hindsight import Goals
from whet.control.off_policy.replay import ReplayBuffer

# A row is (achieved, desired, copy, time); what is achieved after a step is unique to it.
ACHIEVED, DESIRED, COPY, TIME = range(4)


def judge(achieved, desired, _info):
    return -(np.abs(achieved - desired)[:, 0] > 0.5).astype(np.float32)


GOALS = Goals(slice(ACHIEVED, ACHIEVED + 1), slice(DESIRED, DESIRED + 1), (1,), judge)


def unique(copy, time):
    return 1000 * copy + time


def filled(capacity, copies, ends, *, buffer=None, first=0):
    """A buffer after `ends`: for every time and copy 0 (goes on), 1 (terminated) or 2 (truncated)."""
    buffer = buffer or ReplayBuffer(capacity, copies, width=4, actions=1)
    for time, row in enumerate(ends, start=first):
        before = np.array([[unique(copy, time), -1, copy, time] for copy in range(copies)], np.float32)
        buffer.add(
            observations=before,
            actions=before[:, TIME:],
            rewards=np.full(copies, -1.0),
            next_observations=before + np.array([1, 0, 0, 1], np.float32),
            terminated=np.array(row) == 1,
            ended=np.array(row) > 0,
        )
    return buffer


def random_ends(rng, times, copies, often=0.15):
    return rng.choice([0, 1, 2], p=[1 - often, often / 2, often / 2], size=(times, copies))


@pytest.mark.parametrize(("capacity", "copies", "times"), [(10, 1, 7), (10, 1, 35), (12, 3, 9), (13, 3, 40)])
def test_the_newest_transitions_are_drawn_and_no_others(capacity, copies, times):
    buffer = filled(capacity, copies, np.zeros((times, copies), int))
    drawn = buffer.draw(2000, np.random.default_rng(0))
    kept = min(capacity // copies, times)
    expected = {(copy, time) for copy in range(copies) for time in range(times - kept, times)}
    assert set(zip(drawn.observations[:, COPY], drawn.observations[:, TIME], strict=True)) == expected
    assert buffer.size == len(expected)
    # Equally often, within five deviations.
    counts = np.unique(drawn.observations[:, COPY] * 1000 + drawn.observations[:, TIME], return_counts=True)[1]
    assert np.abs(counts - 2000 / len(expected)).max() < 5 * np.sqrt(2000 / len(expected))


def test_an_episode_ends_with_its_own_observation_and_only_termination_is_marked():
    """Rows 2 (truncated) and 4 (terminated) end episodes: what follows a step is its own, not the next start's."""
    buffer = filled(20, 1, [[0], [0], [2], [0], [1], [0]])
    drawn = buffer.draw(500, np.random.default_rng(1))
    times = drawn.observations[:, TIME].astype(int)
    assert np.array_equal(drawn.terminated, times == 4)
    assert np.array_equal(drawn.next_observations[:, TIME], times + 1)


def episodes_of(ends):
    """(copy, time) → the last time of its episode, of finished ones."""
    last = {}
    for copy in range(ends.shape[1]):
        began = 0
        for end in np.flatnonzero(ends[:, copy]).tolist():
            last |= {(copy, time): end for time in range(began, end + 1)}
            began = end + 1
    return last


@pytest.mark.parametrize("seed", range(6))
def test_goals_in_hindsight_are_of_the_same_episode_and_later(seed):
    rng = np.random.default_rng(seed)
    copies, capacity, times = int(rng.integers(1, 4)), int(rng.integers(20, 80)), int(rng.integers(40, 120))
    ends = random_ends(rng, times, copies)
    buffer, last = filled(capacity, copies, ends), episodes_of(ends)
    kept = capacity // copies
    there = {(copy, time) for copy, time in last if time >= times - kept}
    drawn = buffer.draw_hindsight(3000, rng, GOALS, share=0.8)
    places = list(zip(drawn.observations[:, COPY].astype(int), drawn.observations[:, TIME].astype(int), strict=True))
    assert set(places) == there
    assert np.array_equal(drawn.observations[:, DESIRED], drawn.next_observations[:, DESIRED])
    assert (drawn.observations[2400:, DESIRED] == -1).all()  # a fifth keeps its goal and its reward
    seen = set()
    for place, goal, reward in zip(places, drawn.observations[:2400, DESIRED], drawn.rewards, strict=False):
        copy, reached = divmod(int(goal), 1000)
        later = reached - 1  # achieved by the step of this time
        assert copy == place[0]
        assert place[1] <= later <= last[place]
        assert reward == (0.0 if later == place[1] else -1.0)
        seen.add((place, later))
    # Every later step of every episode is a goal at some time, where there are few.
    possible = sum(last[place] - place[1] + 1 for place in there)
    assert len(seen) > 0.8 * min(possible, 2400 * 0.4)


def test_an_episode_under_way_is_not_drawn_in_hindsight():
    buffer = filled(20, 1, [[0], [0], [0]])
    assert buffer.can_draw(finished=False)
    assert not buffer.can_draw(finished=True)
    filled(20, 1, [[2]], buffer=buffer, first=3)
    assert buffer.can_draw(finished=True)
    assert buffer.last_episode(0).observations[:, TIME].tolist() == [0, 1, 2, 3]


def test_an_episode_longer_than_the_buffer():
    buffer = filled(5, 1, [*[[0]] * 17, [1]])
    drawn = buffer.draw_hindsight(200, np.random.default_rng(0), GOALS, share=1.0)
    assert set(drawn.observations[:, TIME]) == {13, 14, 15, 16, 17}
    assert (drawn.observations[:, DESIRED] <= 18).all()
    assert len(buffer.last_episode(0).rewards) == 5


@pytest.mark.parametrize("seed", range(8))
def test_blocks_bring_a_buffer_back(seed, monkeypatch):
    """Saved at any moment, the copy draws the same now and after more steps; full blocks do not change."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(replay, "BLOCK", int(rng.integers(3, 30)))
    copies, capacity = int(rng.integers(1, 4)), int(rng.integers(5, 60))
    ends = random_ends(rng, 150, copies)
    ends[3] = 1
    whole, known = ReplayBuffer(capacity, copies, width=4, actions=1), {}
    for first in range(0, 150, 30):
        filled(capacity, copies, ends[first : first + 30], buffer=whole, first=first)
        again = ReplayBuffer(capacity, copies, width=4, actions=1)
        for number in whole.blocks():
            block = {name: one.copy() for name, one in whole.read_block(number).items()}
            again.write_block(number, block)
            if whole.is_full(number):
                before = known.setdefault(number, block)
                assert all(np.array_equal(before[name], block[name]) for name in block)
        assert (again.count, again.size) == (whole.count, whole.size)
        if first + 60 <= 150:  # and both go on alike
            for one in (again,):
                filled(capacity, copies, ends[first + 30 : first + 45], buffer=one, first=first + 30)
            later = ReplayBuffer(capacity, copies, width=4, actions=1)
            filled(capacity, copies, ends[: first + 45], buffer=later)
            same_draws(again, later, seed)
        else:
            same_draws(again, whole, seed)


def same_draws(one, two, seed):
    for draw in (
        lambda buffer: buffer.draw(40, np.random.default_rng(seed)),
        lambda buffer: buffer.draw_hindsight(40, np.random.default_rng(seed), GOALS, share=0.5),
    ):
        if one.can_draw(finished=True):
            left, right = draw(one), draw(two)
            for name in left.__slots__:
                assert np.array_equal(getattr(left, name), getattr(right, name)), name
