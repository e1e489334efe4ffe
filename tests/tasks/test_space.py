"""Orders are permutations, sides are stable, and neither depends on the process."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from whet.errors import UserError
from whet.tasks.space import Problem, Space, fingerprint, held_out_sides, is_held_out, permutation, shuffled

STABLE = "from whet.tasks.space import fingerprint; print(fingerprint('side', '3+5'))"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100, 1000, 1024, 1025])
def test_permutation_gives_every_index_once(size: int) -> None:
    for key in (0, 1, 2**64 - 1):
        assert sorted(permutation(size, key)) == list(range(size))


def test_permutations_of_different_keys_agree_about_as_often_as_chance() -> None:
    # Two random permutations of n things agree in 1 place on average (fixed points), whatever n is.
    agreements = [
        sum(a == b for a, b in zip(permutation(500, key), permutation(500, key + 1), strict=True)) for key in range(40)
    ]
    assert 0.5 < sum(agreements) / len(agreements) < 1.7


def test_first_index_of_a_permutation_is_uniform_over_keys() -> None:
    counts = Counter(next(permutation(10, fingerprint(key))) for key in range(5000))
    expected = 500
    chi_squared = sum((counts[i] - expected) ** 2 / expected for i in range(10))
    assert chi_squared < 27.9  # 99.9 % of uniform draws stay below this with 9 degrees of freedom


def test_shuffled_meets_every_pair_once_and_mixes_kinds_evenly() -> None:
    pairs = list(shuffled((20, 2000), 7))
    assert sorted(pairs) == [(0, i) for i in range(20)] + [(1, i) for i in range(2000)]
    # The small kind is not drowned: while it lasts the kinds alternate by coin tosses.
    assert sum(kind == 0 for kind, _ in pairs[:30]) >= 8


def test_the_first_kind_depends_on_the_key() -> None:
    firsts = Counter(next(shuffled((100, 100, 100), fingerprint(key)))[0] for key in range(600))
    assert all(150 < firsts[kind] < 250 for kind in range(3))


def test_about_a_tenth_is_held_out() -> None:
    share = sum(is_held_out(f"content {i}") for i in range(20000)) / 20000
    assert share == pytest.approx(0.1, abs=0.01)  # five standard deviations are 0.0106


def test_share_zero_holds_out_nothing_and_larger_shares_contain_smaller_ones() -> None:
    contents = [str(i) for i in range(500)]
    assert not any(is_held_out(c, 0.0) for c in contents)
    assert {c for c in contents if is_held_out(c, 0.1)} < {c for c in contents if is_held_out(c, 0.3)}


def test_fingerprint_ignores_the_hash_seed_of_the_process() -> None:
    values = {
        subprocess.run(
            [sys.executable, "-c", STABLE], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("0", "12345")
    }
    assert values == {str(fingerprint("side", "3+5"))}


def test_fingerprint_separates_its_parts() -> None:
    assert len({fingerprint(1, 23), fingerprint(12, 3), fingerprint(123), fingerprint("1", 23)}) == 4


@pytest.mark.parametrize(("held_out", "missing"), [(True, "training"), (False, "evaluation")])
def test_a_family_with_one_side_only_is_refused(held_out: bool, missing: str) -> None:
    twin = next(str(i) for i in range(1000) if is_held_out(str(i)) == held_out)
    space = Space(sizes=(5,), problem=lambda _kind, index: Problem(question=str(index), answer="", twin=twin))
    with pytest.raises(UserError, match=f"tiny has only 5 problems and none is left for {missing}"):
        space.require_both_sides("tiny")


def test_held_out_stops_when_the_family_is_exhausted() -> None:
    space = Space(sizes=(300,), problem=lambda _kind, i: Problem(question=str(i), answer="", twin=str(i)))
    expected = {str(i) for i in range(300) if is_held_out(str(i))}
    found = [problem.question for problem in space.held_out(10**9)]
    assert len(found) == len(expected)
    assert set(found) == expected
    assert [problem.question for problem in space.held_out(5)] == found[:5]


def test_more_held_out_rows_than_there_are_is_refused() -> None:
    assert sum(held_out_sides(["a", "b", "c"], 0.1, 2)) == 2
    with pytest.raises(UserError, match="held_out_rows is 3 and there are 3 rows: hold fewer out"):
        held_out_sides(["a", "b", "c"], 0.1, 3)
