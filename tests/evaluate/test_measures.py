"""Headline metrics: which one stands for an evaluation, and how it is written."""

import pytest

from whet.evaluate.measures import headline, measure_of, measures_in


@pytest.mark.parametrize(
    ("measured", "metric"),
    [
        ({"eval/length": 3.0, "eval/reward": 0.2, "eval/accuracy": 0.5}, "eval/accuracy"),
        ({"eval/length": 3.0, "eval/reward": 0.2, "eval/reward_low": 0.1}, "eval/reward"),  # no reference answers
        ({"eval/accuracy": None, "eval/loss": 2.0, "eval/token_accuracy": 0.9}, "eval/loss"),
        ({"eval/loss": 0.6, "eval/margin": 1.0, "eval/pair_accuracy": 0.7}, "eval/pair_accuracy"),
        ({"eval/loss": 0.6, "eval/step_accuracy": 0.7}, "eval/step_accuracy"),
        ({"eval/b/reward": 0.5, "eval/b/accuracy": 0.5, "eval/a/accuracy": 0.1}, "eval/a/accuracy"),
        ({"eval/a/accuracy": 0.1, "eval/loss": 0.5}, "eval/loss"),  # a set with a name only if nothing else is measured
        ({"eval/a/parts/accuracy": 0.1, "eval/a/reward": 0.5}, "eval/a/reward"),
        ({"eval/spareparts/reward": 0.1}, "eval/spareparts/reward"),
        ({"eval/parts/accuracy": 0.5, "eval/reward": 0.1}, "eval/reward"),  # a reward function called accuracy
        ({"reward/mean": 1.0, "accuracy": 0.3}, None),
    ],
)
def test_the_first_that_is_defined_stands_for_the_evaluation(measured, metric):
    found = headline(measured)
    assert (found and found.metric) == metric


def test_each_has_a_name_of_its_own_and_is_written_as_what_it_is():
    labels = [one.label for one in measures_in({"eval/loss": 1.0, "eval/token_accuracy": 0.5, "eval/accuracy": 0.25})]
    assert labels == ["held-out accuracy", "held-out loss", "held-out token accuracy"]
    assert measure_of("eval/gsm8k/accuracy").label == "held-out accuracy on gsm8k"
    assert measure_of("eval/parts/short").label == "held-out parts/short"
    row = {"eval/accuracy": 0.5, "eval/accuracy_low": 0.25, "eval/accuracy_high": 0.75, "eval/loss": 1.23456}
    assert measure_of("eval/accuracy").with_interval(row) == "50.0% [25.0% … 75.0%]"
    assert measure_of("eval/loss").with_interval(row) == "1.235"


def test_the_interval_of_a_share_stays_within_0_and_1():
    row = {"eval/parts/match": 0.125, "eval/parts/match_low": -0.1, "eval/parts/match_high": 1.35}
    assert measure_of("eval/parts/match").with_interval(row) == "0.125 [0 … 1]"
    reward = {"eval/reward": 0.125, "eval/reward_low": -0.1, "eval/reward_high": 1.35}
    assert measure_of("eval/reward").with_interval({**row, **reward}) == "0.125 [0 … 1]"
    assert measure_of("eval/reward").with_interval(reward) == "0.125 [-0.1 … 1.35]"  # it may be below 0


def test_the_sample_size_is_that_of_the_measures_own_unit():
    row = {"eval/prompts": 1200.0, "eval/graded": 7.0, "eval/rows": 1.0, "eval/b/prompts": 8.0}
    sizes = {name: measure_of(f"eval/{name}").sample_size(row) for name in ("accuracy", "reward", "loss", "b/accuracy")}
    assert sizes == {
        "accuracy": "on 7 prompts",
        "reward": "on 1,200 prompts",
        "loss": "on 1 row",
        "b/accuracy": "on 8 prompts",
    }
    assert measure_of("eval/loss").sample_size({"eval/windows": 9.0}) == "on 9 windows"
    assert measure_of("eval/reward").sample_size({"eval/reward": 1.0}) == ""
    assert measure_of("eval/truncated").text(1.0) == "100.0%"
    assert measure_of("eval/pass@4").text(0.5) == "50.0%"
    assert headline({"eval/truncated": 1.0, "eval/length": 3.0, "eval/prompts": 4.0}) is None


@pytest.mark.parametrize(
    ("metric", "better", "worse"),
    [
        ("eval/accuracy", 0.5, 0.4),
        ("eval/loss", 0.4, 0.5),
        ("eval/set/loss", 0.4, 0.5),
        ("eval/truncated", 0.0, 0.1),
        ("eval/parts/no_loss", 0.5, 0.4),
        ("eval/parts/loss", 0.5, 0.4),
    ],
)
def test_better_is_higher_but_for_losses_and_a_tie_is_no_improvement(metric, better, worse):
    measure = measure_of(metric)
    assert measure.is_better(better, than=worse)
    assert not measure.is_better(better, than=better)
    assert not measure.is_better(worse, than=better)
