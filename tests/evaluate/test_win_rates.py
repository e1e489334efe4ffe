"""Win rates with ties, one prompt counting once, and paired gains: all by hand."""

import math
from dataclasses import asdict

import pytest

from whet.evaluate.statistics import wilson
from whet.evaluate.win_rates import (
    clustered_mean,
    outcome,
    paired_gain,
    prompt_means,
    tally,
)


def test_outcomes_and_the_margin():
    assert outcome(2.0, 1.0) == 1.0
    assert outcome(1.0, 2.0) == 0.0
    assert outcome(1.0, 1.0) == 0.5
    assert outcome(1.2, 1.0, tie_margin=0.25) == 0.5
    assert outcome(1.3, 1.0, tie_margin=0.25) == 1.0


def test_ties_count_half():
    found = tally(["a", "b", "c", "d"], [1.0, 0.5, 0.5, 0.0])
    assert (found["wins"], found["ties"], found["losses"]) == (1, 2, 1)
    assert found["rate"] == asdict(wilson(2.0, 4))
    assert found["rate"]["mean"] == 0.5
    # Wilson by hand: centre (p + z²/2n)/(1 + z²/n), here 1/2; half z/(1 + z²/n) · √(p(1−p)/n + z²/4n²).
    z2 = 1.959963984540054**2
    half = math.sqrt(z2) / (1 + z2 / 4) * math.sqrt(0.25 / 4 + z2 / 64)
    assert found["rate"]["low"] == pytest.approx(0.5 - half)
    assert found["rate"]["high"] == pytest.approx(0.5 + half)


def test_a_prompt_counts_once_however_often_it_is_answered():
    """Three samples of one prompt are no more evidence than one: the interval is that of two trials."""
    found = tally(["a", "a", "a", "b"], [1.0, 1.0, 1.0, 0.0])
    assert found["rate"] == asdict(wilson(1.0, 2))
    assert (found["wins"], found["losses"]) == (3, 1)
    whole = tally(["a"] * 50 + ["b"] * 50, [1.0] * 50 + [0.0] * 50)
    assert whole["rate"]["high"] - whole["rate"]["low"] == pytest.approx(found["rate"]["high"] - found["rate"]["low"])


def test_means_by_prompt():
    assert prompt_means(["b", "a", "b"], [1.0, 5.0, 2.0]) == {"b": 1.5, "a": 5.0}
    interval = clustered_mean(["a", "a", "b"], [0.0, 2.0, 3.0])  # 1 and 3
    assert interval.mean == 2.0
    assert interval.high == pytest.approx(2 + 12.706205 * math.sqrt(2) / math.sqrt(2), rel=1e-6)


def test_a_paired_gain_cancels_how_hard_prompts_are():
    start = {"easy": 9.0, "hard": -9.0, "middle": 0.0}
    own = {"easy": 10.0, "hard": -8.0, "middle": 1.5}
    gain = paired_gain(own, start)
    assert gain.mean == pytest.approx(3.5 / 3)
    assert gain.low > 0  # the prompts differ by 18, the gains by 0.5
    with pytest.raises(ValueError, match="same prompts"):
        paired_gain(own, {"easy": 1.0})
