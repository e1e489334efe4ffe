"""Rows in epochs: every one before any again, in orders that only the seed and the epoch name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.tasks.space import fingerprint, permutation
from whet.train.setup import epochs as module
from whet.train.setup.epochs import EpochSampler

SIZES = st.integers(1, 40)
COUNTS = st.integers(1, 25)


@settings(deadline=None, max_examples=80)
@given(size=SIZES, count=COUNTS, seed=st.integers(0, 2**40))
def test_no_row_comes_again_before_all_have_come(size, count, seed):
    epoch_sampler = EpochSampler(range(size), seed=seed)
    steps = -(-3 * size // count)
    drawn = [row for step in range(1, steps + 1) for row in epoch_sampler.draw(count, step=step)]
    assert len(drawn) == steps * count
    for start in range(0, 3 * size, size):
        assert sorted(drawn[start : start + size]) == list(range(size))


@settings(deadline=None, max_examples=80)
@given(size=SIZES, count=COUNTS, steps=st.integers(1, 6), seed=st.integers(0, 99))
def test_what_is_needed_is_what_will_be_drawn(size, count, steps, seed):
    epoch_sampler = EpochSampler(range(size), seed=seed)
    drawn = {row for step in range(1, steps + 1) for row in epoch_sampler.draw(count, step=step)}
    assert epoch_sampler.needed(count, steps=steps) == sorted(drawn)


def test_a_step_is_the_same_in_whatever_order_it_is_asked_for():
    one, two = EpochSampler("abcdefghij", seed=3), EpochSampler("abcdefghij", seed=3)
    forwards = [one.draw(4, step=step) for step in range(1, 9)]
    backwards = [two.draw(4, step=step) for step in range(8, 0, -1)]
    assert forwards == backwards[::-1]


def test_the_order_is_named_by_seed_and_epoch_and_stays_the_same_for_ever():
    """A run that was stopped must go on with the rows that it has not seen, whatever version goes on with it."""
    epoch_sampler = EpochSampler(range(9), seed=5)
    for step, epoch in ((1, 0), (2, 1), (3, 2)):
        assert epoch_sampler.draw(9, step=step) == list(permutation(9, fingerprint("rows", 5, epoch)))


def test_epochs_and_seeds_differ_in_order_and_nothing_else():
    epoch_sampler = EpochSampler(range(30), seed=0)
    first, second = epoch_sampler.draw(30, step=1), epoch_sampler.draw(30, step=2)
    other = EpochSampler(range(30), seed=1).draw(30, step=1)
    assert first != second
    assert first != other
    assert first != list(range(30))
    assert sorted(first) == sorted(second) == sorted(other)


@pytest.mark.parametrize("count", [7, 20])
def test_a_step_may_be_larger_than_the_deck(count):
    drawn = EpochSampler(range(3), seed=0).draw(count, step=1)
    assert len(drawn) == count
    assert {drawn.count(row) for row in range(3)} <= {count // 3, count // 3 + 1}


def test_where_everything_is_needed_no_order_is_asked_for(monkeypatch):
    """A run may have more steps than anybody would count."""
    monkeypatch.setattr(module, "epoch_places", lambda *_: pytest.fail("asked"))
    assert EpochSampler("abc", seed=0).needed(1, steps=3) == ["a", "b", "c"]
    assert EpochSampler("abc", seed=0).needed(2, steps=10**15) == ["a", "b", "c"]


def test_the_order_is_that_of_earlier_versions():
    """A run that is resumed goes on in the order that it began with."""
    assert "".join(EpochSampler("abcdefgh", seed=7).draw(8, step=1)) == "afchgdeb"
    assert "".join(EpochSampler("abcdefgh", seed=7).draw(8, step=2)) == "edgfchab"
