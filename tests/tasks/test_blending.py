"""Turns follow weights up to rounding, and sources in epochs lose no row."""

from collections import Counter
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import UserError
from whet.records import Example
from whet.tasks.blending import Turns, alternated, blended, exact_weights
from whet.tasks.space import epoch_places

WEIGHTS = st.lists(st.fractions(min_value=Fraction(1, 50), max_value=20, max_denominator=50), min_size=1, max_size=6)


@given(WEIGHTS, st.integers(min_value=1, max_value=120))
def test_every_beginning_has_its_quota(weights: list[Fraction], turns: int) -> None:
    """Σ turns of a source is ⌊nw⌋ or ⌈nw⌉ for every n: the quota property of Balinski & Young."""
    shares = [weight / sum(weights) for weight in weights]
    had: Counter[int] = Counter()
    for n, (source, before) in enumerate(Turns(weights).between(0, turns), 1):
        assert before == had[source]
        had[source] += 1
        assert all(abs(had[place] - n * share) < 1 for place, share in enumerate(shares))


def test_two_to_one_by_hand() -> None:
    assert [source for source, _ in Turns([Fraction(2), Fraction(1)]).between(0, 6)] == [0, 0, 1, 0, 0, 1]


def row(source: str, number: int) -> Example:
    return Example(id=f"{source}{number}", prompt="p", answer="")


def drawn_in_epochs(source: str, size: int, count: int, seed: tuple[int, ...]) -> list[Example]:
    """As a task of stored rows draws."""
    *run, step = seed
    return [row(source, place) for place in epoch_places(size, (step - 1) * count, count, source, *run)]


@pytest.mark.parametrize(("count", "weights"), [(4, (2, 1)), (5, (1, 1)), (7, (5, 3)), (3, (1, 10))])
def test_every_row_of_a_source_comes_once_an_epoch(count: int, weights: tuple[int, int]) -> None:
    sizes = {"a": 10, "b": 7}
    draws = [partial(drawn_in_epochs, source, size) for source, size in sizes.items()]
    exact = exact_weights(dict(zip(sizes, weights, strict=True)), "test")
    ids = [one.id for step in range(1, 60) for one in blended(draws, exact, count, (3, step))]
    assert len(ids) == 59 * count
    for source, size in sizes.items():
        own = [name for name in ids if name.startswith(source)]
        for start in range(0, len(own) - size + 1, size):
            assert len(set(own[start : start + size])) == size


def test_one_source_gives_what_it_draws_alone() -> None:
    alone = partial(drawn_in_epochs, "a", 10)
    for step in (1, 2, 5):
        assert blended([alone], (Fraction(3),), 4, (0, step)) == alone(4, (0, step))


def test_sources_alternate_while_they_have_examples() -> None:
    many, few = [row("a", n) for n in range(4)], [row("b", 0)]
    assert [one.id for one in alternated([many, few], 4)] == ["a0", "b0", "a1", "a2"]
    assert alternated([many, few], 2) == alternated([many, few], 4)[:2]


def test_weights_are_as_written() -> None:
    assert exact_weights({"a": 0.1, "b": 3}, "task x") == (Fraction(1, 10), Fraction(3))
    for wrong in (0, -1, "2", True, float("nan"), float("inf"), None):
        with pytest.raises(UserError, match=r"task x: the weight of a is .*, must be a number above 0"):
            exact_weights({"a": wrong}, "task x")
