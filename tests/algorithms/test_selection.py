"""Which completions are kept: by hand, and what holds for any rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.algorithms.selection import at_random, best, best_overall, extremes, neighbours, random_overall

REWARDS = [[1.0, 3.0, 2.0], [5.0, 5.0, 4.0], [0.0, 0.0, 0.0]]
VALUES = st.sampled_from([-1.5, 0.0, 0.25, 0.5, 2.0])  # few, so that ties are common
GROUPS = st.lists(st.lists(VALUES, min_size=1, max_size=6), min_size=1, max_size=6)
SHARES = st.floats(0.01, 1.0)


def reward(rewards, place):
    return rewards[place[0]][place[1]]


def test_the_best_of_each_prompt_and_of_equals_the_first():
    assert best(REWARDS) == [(0, 1), (1, 0), (2, 0)]


def test_the_best_of_all_completions():
    # Nine rewards in order: 5, 5, 4, 3, 2, 1, 0, 0, 0; a third of nine is three.
    assert best_overall(REWARDS, share=1 / 3) == [(1, 0), (1, 1), (1, 2)]
    assert best_overall(REWARDS, share=4 / 9) == [(0, 1), (1, 0), (1, 1), (1, 2)]
    assert best_overall(REWARDS, share=7 / 9) == [*((0, i) for i in range(3)), *((1, i) for i in range(3)), (2, 0)]
    assert best_overall(REWARDS, share=1e-9) == [(1, 0)]  # at least one


def test_neighbours_are_compared_the_better_first():
    rewards = [[1.0, 2.0, 4.0, 3.0, 9.0], [0.5, 0.5], [7.0]]
    assert neighbours(rewards, gap=0.0) == [((0, 1), (0, 0)), ((0, 2), (0, 3))]  # the fifth has no neighbour


def test_all_of_an_even_number_have_a_neighbour():
    assert neighbours([[1.0, 2.0], [4.0, 3.0, 5.0, 6.0]], gap=0.0) == [
        ((0, 1), (0, 0)),
        ((1, 0), (1, 1)),
        ((1, 3), (1, 2)),
    ]


def test_a_pair_of_neighbours_whose_better_one_may_not_win_is_left_out():
    rewards = [[1.0, 2.0, 4.0, 3.0], [8.0, 7.0, 5.0, 6.0]]
    pairs = neighbours(rewards, gap=0.0)
    better = [pair[0] for pair in pairs]
    assert better == [(0, 1), (0, 2), (1, 0), (1, 3)]
    for barred in [(row, i) for row in range(2) for i in range(4)]:
        may_win = [[(row, i) != barred for i in range(4)] for row in range(2)]
        assert neighbours(rewards, gap=0.0, may_win=may_win) == [pair for pair in pairs if pair[0] != barred]


def test_the_best_that_may_win_against_the_worst_of_all():
    rewards = [[1.0, 3.0, 2.0], [5.0, 6.0, 4.0]]
    assert extremes(rewards, gap=0.0, may_win=[[True, False, True], [True] * 3]) == [((0, 2), (0, 0)), ((1, 1), (1, 2))]
    assert extremes(rewards, gap=0.0, may_win=[[True] * 3, [True, False, True]]) == [((0, 1), (0, 0)), ((1, 0), (1, 2))]
    assert extremes(rewards, gap=0.0, may_win=[[False] * 3, [False, False, True]]) == []  # no winner; the worst itself


def test_the_best_against_the_worst():
    assert extremes(REWARDS, gap=0.0) == [((0, 1), (0, 0)), ((1, 0), (1, 2))]  # the third prompt is one long tie


@pytest.mark.parametrize(("gap", "pairs"), [(0.0, 2), (1.0, 2), (1.5, 1), (2.0, 1), (2.5, 0)])
def test_a_difference_of_exactly_the_gap_is_enough(gap, pairs):
    assert len(extremes(REWARDS, gap=gap)) == pairs  # the differences are 2, 1 and 0


def test_random_choices_are_named_by_their_seed():
    rewards = [[0.0] * 50] * 20
    assert at_random(rewards, seed=1) == at_random(rewards, seed=1) != at_random(rewards, seed=2)
    one, two = (random_overall(rewards, share=0.1, seed=seed) for seed in (1, 2))
    assert one == random_overall(rewards, share=0.1, seed=1) != two
    assert len(one) == len(two) == 100


def test_random_choices_do_not_look_at_rewards():
    low, high = [[0.0, 0.0, 0.0, 0.0]] * 30, [[0.0, 1.0, 2.0, 9.0]] * 30
    assert at_random(low, seed=4) == at_random(high, seed=4)
    assert random_overall(low, share=0.3, seed=4) == random_overall(high, share=0.3, seed=4)
    counts = [sum(place == wanted for _, place in at_random([[0.0] * 4] * 4000, seed=0)) for wanted in range(4)]
    assert all(abs(count - 1000) < 5 * (4000 * 3 / 16) ** 0.5 for count in counts)  # five deviations of a fair draw


@given(rewards=GROUPS)
def test_nothing_beats_the_best(rewards):
    chosen = best(rewards)
    assert [row for row, _ in chosen] == list(range(len(rewards)))
    for row, place in chosen:
        assert rewards[row][place] == max(rewards[row])
        assert rewards[row].index(rewards[row][place]) == place


@given(rewards=GROUPS, share=SHARES)
def test_what_is_left_out_is_no_better_than_what_is_kept(rewards, share):
    everything = [(row, i) for row, group in enumerate(rewards) for i in range(len(group))]
    kept = best_overall(rewards, share=share)
    assert len(kept) == max(1, round(share * len(everything)))
    assert kept == sorted(set(kept))
    rest = [reward(rewards, place) for place in everything if place not in kept]
    assert not rest or max(rest) <= min(reward(rewards, place) for place in kept)


@given(rewards=GROUPS, share=SHARES, seed=st.integers(0, 2**63 - 1))
def test_random_choices_are_completions_that_exist_each_at_most_once(rewards, share, seed):
    everything = {(row, i) for row, group in enumerate(rewards) for i in range(len(group))}
    one_each, some = at_random(rewards, seed=seed), random_overall(rewards, share=share, seed=seed)
    assert [row for row, _ in one_each] == list(range(len(rewards)))
    assert {*one_each, *some} <= everything
    assert len(some) == len(set(some)) == max(1, round(share * len(everything)))
    assert some == sorted(some)


@given(rewards=GROUPS, gap=st.sampled_from([0.0, 0.25, 1.0]))
def test_every_pair_is_of_one_prompt_and_the_right_way_round(rewards, gap):
    for choose in (neighbours, extremes):
        pairs = choose(rewards, gap=gap)
        for better, worse in pairs:
            assert better[0] == worse[0]
            difference = reward(rewards, better) - reward(rewards, worse)
            assert difference > 0
            assert difference >= gap
        used = [place for pair in pairs for place in pair]
        assert len(used) == len(set(used))
    widest = [max(group) - min(group) for group in rewards]
    assert len(extremes(rewards, gap=gap)) == sum(width > 0 and width >= gap for width in widest)
