"""The verdict claims what the intervals allow, by examples and by simulation."""

import math
import random
from statistics import fmean

import pytest

from whet.evaluate.measures import measure_of
from whet.report.comparison.verdict import compare_with_best, side


def method(name, *values, examples=1000, error=None):
    """None stands for a run that failed."""
    done = [value for value in values if value is not None]
    seeds = [{"seed": i, "value": value, "error": error, "examples": examples} for i, value in enumerate(values)]
    return {"method": name, "value": {"mean": fmean(done)} if done else None, "seeds": seeds}


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
    assert not verdict.gaps["b"]["worse"]
    assert verdict.gaps["c"]["worse"]
    assert verdict.gaps["c"]["mean"] == pytest.approx(0.92 - 0.98 / 3)
    assert verdict.sentence == (
        "a has the highest mean held-out accuracy, 92.0 %; significantly worse than the best is c; b cannot be told "
        "apart from a (2 intervals that hold together with 95 %, from paired differences over 3 seeds and 1000 "
        "held-out examples)."
    )


def test_pairs_find_what_means_cannot():
    """Seeds differ by 40 points and methods by 10, in every seed: only the differences within seeds show it."""
    verdict = compare_with_best(
        [method("a", 0.40, 0.61, 0.80, examples=10**6), method("b", 0.30, 0.51, 0.70, examples=10**6)]
    )
    assert verdict.gaps["b"]["worse"]
    crossed = compare_with_best(
        [method("a", 0.40, 0.61, 0.80, examples=10**6), method("b", 0.70, 0.51, 0.30, examples=10**6)]
    )
    assert not crossed.gaps["b"]["worse"]


def test_nothing_to_tell_apart():
    verdict = compare_with_best([method("a", 0.90, 0.80, 0.85), method("b", 0.80, 0.90, 0.84)])
    assert verdict.sentence.startswith(
        "a has the highest mean held-out accuracy, 85.0 %; but b cannot be told apart from a (a 95 % interval, from"
    )


def test_equal_seeds_are_no_certainty():
    few = compare_with_best([method("a", 1.0, 1.0, examples=5), method("b", 0.8, 0.8, examples=5)])
    assert not few.gaps["b"]["worse"]
    many = compare_with_best([method("a", 1.0, 1.0, examples=500), method("b", 0.8, 0.8, examples=500)])
    assert many.gaps["b"]["worse"]
    tied = compare_with_best([method("a", 1.0, 1.0), method("b", 1.0, 1.0), method("c", 0.2, 0.2)])
    assert tied.sentence.startswith("a and b share the highest mean held-out accuracy, 100.0 %; significantly worse")
    assert "told apart" not in tied.sentence


def test_more_methods_need_stronger_evidence():
    a, b = method("a", 0.9, 0.9, 0.9, examples=400), method("b", 0.82, 0.83, 0.81, examples=400)
    others = [method(f"m{i}", 0.5, 0.5, 0.5, examples=400) for i in range(14)]
    assert compare_with_best([a, b]).gaps["b"]["worse"]
    assert not compare_with_best([a, b, *others]).gaps["b"]["worse"]


def test_one_seed_one_method_and_no_run_claim_nothing():
    one = compare_with_best([method("a", 1.0), method("b", 0.0)])
    assert (one.best, one.gaps) == (None, {})
    assert one.sentence == (
        "One finished seed cannot tell methods apart, so nothing is claimed; the highest held-out accuracy is that of "
        "a, 100.0 %."
    )
    equal = compare_with_best([method("dpo", 0.5), method("ipo", 0.5)], measure_of("eval/pair_accuracy"))
    assert equal.sentence.endswith("is claimed; dpo and ipo are equal in held-out pair accuracy, 50.0 %.")
    two = compare_with_best([method("a", 0.5), method("b", 0.5), method("c", 0.2)])
    assert two.sentence.endswith("is claimed; a and b share the highest held-out accuracy, 50.0 %.")
    alone = compare_with_best([method("a", 1.0, 1.0)])
    assert alone.sentence.startswith("There is one method, so there is nothing to compare")
    assert compare_with_best([method("a", None, None), method("b", None, None)]).sentence == (
        "No run finished, so there is nothing to compare."
    )


def test_a_reward_has_the_error_of_its_own_examples_and_no_limits():
    """Differences 2 and 3 of two seeds; t(1) is 12.7062, their standard error 0.5, and z · √(0.3² + 0.4²) is 0.98."""
    reward = measure_of("eval/reward")
    verdict = compare_with_best([method("a", 7.0, 9.0, error=0.3), method("b", 5.0, 6.0, error=0.4)], reward)
    gap = verdict.gaps["b"]
    half = math.hypot(12.706205 * 0.5, 1.959964 * 0.5)
    assert (gap["mean"], gap["low"], gap["high"]) == pytest.approx((2.5, 2.5 - half, 2.5 + half), rel=1e-6)
    assert verdict.sentence == (
        "a has the highest mean held-out reward, 8; but b cannot be told apart from a (a 95 % interval, from paired "
        "differences over 2 seeds and 1000 held-out examples)."
    )
    equal = compare_with_best([method("a", 7.0, 7.0, error=0.3), method("b", 6.9, 6.9, error=0.4)], reward)
    assert not equal.gaps["b"]["worse"]  # seeds without spread are no certainty about a reward either


def test_the_lowest_loss_is_the_best():
    losses = [method("a", 1.0, 1.1, 1.2), method("b", 2.0, 2.1, 2.21)]
    verdict = compare_with_best(losses, measure_of("eval/loss"))
    assert verdict.gaps["b"]["mean"] == pytest.approx(3.01 / 3)
    assert verdict.gaps["b"]["worse"]
    assert verdict.sentence == (
        "a has the lowest mean held-out loss, 1.1; significantly worse than the best is b (a 95 % interval, from "
        "paired differences over 3 seeds)."  # a loss has no interval over examples
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
    return compare_with_best(sorted(results, key=lambda result: -result["value"]["mean"])).gaps


@pytest.mark.parametrize("methods", [2, 5, 9])
def test_the_best_method_is_rarely_called_below_the_best(methods):
    """The hardest case: the best is better by a hair, so that in most comparisons another one has the highest mean."""
    draw = random.Random(methods)
    found = [simulate(draw, [0.5001, *[0.5] * (methods - 1)]) for _ in range(400)]
    assert sum("m0" in gaps and gaps["m0"]["worse"] for gaps in found) / len(found) <= 0.05


def test_of_equal_methods_one_is_named_as_often_as_documented():
    draw = random.Random(0)
    found = [simulate(draw, [0.5] * 9) for _ in range(800)]
    assert sum(any(gap["worse"] for gap in gaps.values()) for gaps in found) / len(found) == pytest.approx(
        0.10, abs=0.035
    )
