"""Coefficients and a temperature that follow the run, by hand."""

import pytest

from whet.algorithms.policy_loss import adapted, annealed, entropy_bonus, spread_temperature


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (6.0, 0.1),  # on target
        (6.6, 0.1 * (1 + 0.1 * 256 / 10_000)),  # a tenth too far: up
        (5.4, 0.1 * (1 - 0.1 * 256 / 10_000)),  # a tenth too near: down
        (600.0, 0.1 * (1 + 0.2 * 256 / 10_000)),  # however far: a fifth at most
        (0.0, 0.1 * (1 - 0.2 * 256 / 10_000)),
    ],
)
def test_the_coefficient_rises_while_the_divergence_is_above_its_target(measured, expected):
    assert adapted(0.1, measured, target=6.0, horizon=10_000, count=256) == pytest.approx(expected, rel=1e-12)


def test_more_rollouts_than_the_horizon_count_as_the_horizon():
    assert adapted(0.1, 12.0, target=6.0, horizon=100, count=500) == pytest.approx(0.12)


def test_following_the_divergence_settles_where_it_meets_the_target():
    """A run whose divergence is 1/β: the coefficient must find β = 1/target from both sides."""
    for coefficient in (0.01, 10.0):
        for _ in range(2000):
            coefficient = adapted(coefficient, 1 / coefficient, target=2.0, horizon=1000, count=100)
        assert coefficient == pytest.approx(0.5, rel=1e-3)


def test_the_annealed_coefficient_is_a_straight_line_and_then_constant():
    assert [annealed(0.2, tokens, over=1000) for tokens in (0, 250, 500, 1000, 5000)] == [0.0, 0.05, 0.1, 0.2, 0.2]
    assert annealed(0.2, 0, over=0) == 0.2
    assert [annealed(0.2, tokens, over=1) for tokens in (0, 1)] == [0.0, 0.2]


@pytest.mark.parametrize(
    ("deviation", "expected"),
    [
        (None, 1.0),  # no step yet
        (1.0, 1.0),
        (0.8, 1.25),  # rewards differ less: hotter
        (1.25, 0.8),  # more: colder
        (0.1, 2.0),  # no hotter than high
        (0.0, 2.0),  # all alike: as hot as allowed
        (10.0, 0.5),  # no colder than low
    ],
)
def test_the_temperature_rises_when_rewards_are_alike(deviation, expected):
    assert spread_temperature(1.0, deviation, low=0.5, high=2.0) == pytest.approx(expected)


def test_the_bonus_grows_only_below_the_floor():
    assert entropy_bonus(0.01, 0.7, floor=0.5, floor_coefficient=0.1) == 0.01
    assert entropy_bonus(0.01, 0.5, floor=0.5, floor_coefficient=0.1) == 0.01
    assert entropy_bonus(0.01, 0.2, floor=0.5, floor_coefficient=0.1) == pytest.approx(0.01 + 2 * 0.1 * 0.3)


@pytest.mark.parametrize("entropy", [0.1, 0.3, 0.8])
def test_the_bonus_is_the_slope_of_what_it_stands_for(entropy):
    def objective(h):
        return 0.01 * h - 0.1 * max(0.0, 0.5 - h) ** 2

    slope = (objective(entropy + 1e-6) - objective(entropy - 1e-6)) / 2e-6
    assert entropy_bonus(0.01, entropy, floor=0.5, floor_coefficient=0.1) == pytest.approx(slope, rel=1e-6)
