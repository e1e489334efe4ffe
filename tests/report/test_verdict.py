"""The verdict claims what the intervals allow, by examples and by simulation."""

import random
from statistics import fmean

import pytest

from whet.report.comparison.verdict import compare_with_best, side


def method(name, *accuracies, examples=1000):
    """None stands for a run that failed."""
    done = [accuracy for accuracy in accuracies if accuracy is not None]
    seeds = [{"seed": i, "accuracy": accuracy, "examples": examples} for i, accuracy in enumerate(accuracies)]
    return {"method": name, "accuracy": {"mean": fmean(done)} if done else None, "seeds": seeds}


def test_an_interval_is_on_one_side_of_a_level_only_as_a_whole():
    assert side({"low": 0.51, "high": 0.7}, 0.5) == 1
    assert side({"low": 0.49, "high": 0.7}, 0.5) == 0
    assert side({"low": 0.3, "high": 0.49}, 0.5) == -1
    assert side({"low": None, "high": None}, 0.5) == side(None, 0.5) == 0


def test_a_clear_and_an_unclear_difference():
    verdict = compare_with_best(
        [method("a", 0.90, 0.92, 0.94), method("b", 0.89, 0.93, 0.91), method("c", 0.30, 0.33, 0.35)]
    )
    assert verdict.best == "a"
    assert not verdict.gaps["b"]["below"]
    assert verdict.gaps["c"]["below"]
    assert verdict.gaps["c"]["mean"] == pytest.approx(0.92 - 0.98 / 3)
    assert verdict.sentence == (
        "a has the highest mean held-out accuracy, 92.0 %; significantly below the best is c; b cannot be told apart "
        "from a (2 intervals that hold together with 95 %, from paired differences over 3 seeds and 1000 held-out "
        "examples)."
    )


def test_pairs_find_what_means_cannot():
    """Seeds differ by 40 points and methods by 10, in every seed: only the differences within seeds show it."""
    verdict = compare_with_best(
        [method("a", 0.40, 0.61, 0.80, examples=10**6), method("b", 0.30, 0.51, 0.70, examples=10**6)]
    )
    assert verdict.gaps["b"]["below"]
    crossed = compare_with_best(
        [method("a", 0.40, 0.61, 0.80, examples=10**6), method("b", 0.70, 0.51, 0.30, examples=10**6)]
    )
    assert not crossed.gaps["b"]["below"]


def test_nothing_to_tell_apart():
    verdict = compare_with_best([method("a", 0.90, 0.80, 0.85), method("b", 0.80, 0.90, 0.84)])
    assert verdict.sentence.startswith(
        "a has the highest mean held-out accuracy, 85.0 %; but b cannot be told apart from a (a 95 % interval, from"
    )


def test_equal_seeds_are_no_certainty():
    few = compare_with_best([method("a", 1.0, 1.0, examples=5), method("b", 0.8, 0.8, examples=5)])
    assert not few.gaps["b"]["below"]
    many = compare_with_best([method("a", 1.0, 1.0, examples=500), method("b", 0.8, 0.8, examples=500)])
    assert many.gaps["b"]["below"]
    tied = compare_with_best([method("a", 1.0, 1.0), method("b", 1.0, 1.0), method("c", 0.2, 0.2)])
    assert tied.sentence.startswith("a and b share the highest mean held-out accuracy, 100.0 %; significantly below")
    assert "told apart" not in tied.sentence


def test_more_methods_need_stronger_evidence():
    a, b = method("a", 0.9, 0.9, 0.9, examples=400), method("b", 0.82, 0.83, 0.81, examples=400)
    others = [method(f"m{i}", 0.5, 0.5, 0.5, examples=400) for i in range(14)]
    assert compare_with_best([a, b]).gaps["b"]["below"]
    assert not compare_with_best([a, b, *others]).gaps["b"]["below"]


def test_one_seed_one_method_and_no_run_claim_nothing():
    one = compare_with_best([method("a", 1.0), method("b", 0.0)])
    assert (one.best, one.gaps) == (None, {})
    assert one.sentence == (
        "One finished seed cannot tell methods apart, so nothing is claimed; the highest held-out accuracy is that of "
        "a, 100.0 %."
    )
    alone = compare_with_best([method("a", 1.0, 1.0)])
    assert alone.sentence.startswith("There is one method, so there is nothing to compare")
    assert compare_with_best([method("a", None, None), method("b", None, None)]).sentence == (
        "No run finished, so there is nothing to compare."
    )


def test_failed_runs_take_their_seed_out_of_the_pairs():
    verdict = compare_with_best([method("a", 0.9, None, 0.8), method("b", 0.5, 0.1, 0.4), method("c", None, 0.3, None)])
    assert verdict.gaps["b"]["seeds"] == 2
    assert verdict.gaps["b"]["mean"] == pytest.approx(0.4)  # 0.4 and 0.4: the seed that only b finished is out
    assert "c" not in verdict.gaps
    assert "too few seeds of c finished to compare" in verdict.sentence


def test_a_single_lucky_seed_is_not_the_best_method():
    verdict = compare_with_best(
        [method("lucky", 1.0, None, None), method("a", 0.9, 0.8, 0.85), method("b", 0.7, 0.8, 0.75)]
    )
    assert verdict.best == "a"
    assert "too few seeds of lucky" in verdict.sentence


def simulate(draw, rates):
    """Three seeds of every method; the examples are so many that only the seeds vary."""
    results = [
        method(f"m{i}", *(draw.gauss(rate, 0.1) for _ in range(3)), examples=10**6) for i, rate in enumerate(rates)
    ]
    return compare_with_best(sorted(results, key=lambda result: -result["accuracy"]["mean"])).gaps


@pytest.mark.parametrize("methods", [2, 5, 9])
def test_the_best_method_is_rarely_called_below_the_best(methods):
    """The hardest case: the best is better by a hair, so that in most comparisons another one has the highest mean."""
    draw = random.Random(methods)
    found = [simulate(draw, [0.5001, *[0.5] * (methods - 1)]) for _ in range(400)]
    assert sum("m0" in gaps and gaps["m0"]["below"] for gaps in found) / len(found) <= 0.05


def test_of_equal_methods_one_is_named_as_often_as_documented():
    draw = random.Random(0)
    found = [simulate(draw, [0.5] * 9) for _ in range(800)]
    assert sum(any(gap["below"] for gap in gaps.values()) for gaps in found) / len(found) == pytest.approx(
        0.10, abs=0.035
    )
