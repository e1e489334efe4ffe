"""Which panels a run gets, and what they hold."""

import pytest

from whet.report.run.training_curves import panels
from whet.runs.series import Series


def test_an_empty_run_has_no_panels():
    assert panels([], []) == []
    assert panels([{"step": 1}], []) == []


def test_only_panels_with_data_and_the_most_important_first():
    rows = [{"step": s, "reward/mean": 0.1 * s, "kl": 0.0, "eval/accuracy": 0.5} for s in (1, 2)]
    rows = [row | {"eval/accuracy_low": 0.4, "eval/accuracy_high": 0.6} for row in rows]
    titles = [panel.title for panel in panels(rows, [{"step": 1, "tokens_per_second": 10}])]
    assert titles == ["Held-out accuracy", "Reward", "KL to the reference", "Speed"]


def test_waiting_for_workers_has_a_panel_of_its_own():
    timings = [{"step": s, "seconds/step": 2.0, "seconds/waiting": 0.5, "seconds/hand_off": 0.1} for s in (1, 2)]
    by_title = {panel.title: panel for panel in panels([], timings)}
    lines = {line.label: line.curve for line in by_title["Waiting of the trainer"].lines}
    assert lines == {"for rollouts": Series((1, 2), (0.5, 0.5)), "handing over weights": Series((1, 2), (0.1, 0.1))}
    assert "Waiting of the trainer" not in {panel.title for panel in panels([], [{"step": 1, "seconds/step": 2.0}])}


def test_accuracy_is_in_percent_with_its_band_and_pass_at_k_by_number():
    row = {"step": 7}
    for name, mean in (("eval/accuracy", 0.5), ("eval/pass@16", 0.9), ("eval/pass@4", 0.7)):
        row |= {name: mean, f"{name}_low": mean - 0.1, f"{name}_high": mean + 0.05}
    (panel,) = panels([row], [])
    assert [line.label for line in panel.lines] == ["accuracy", "pass@4", "pass@16"]
    assert panel.lines[0].curve == Series((7,), (50.0,))
    assert panel.lines[0].low == pytest.approx((40.0,))
    assert panel.lines[0].high == pytest.approx((55.0,))


def test_pair_accuracy_is_drawn_under_its_own_name():
    row = {"step": 1, "eval/pair_accuracy": 0.5, "eval/pair_accuracy_low": 0.4, "eval/pair_accuracy_high": 0.6}
    (panel,) = panels([row], [])
    assert panel.title == "Held-out pair accuracy"


def test_an_accuracy_without_its_interval_is_left_out_rather_than_torn():
    rows = [{"step": 1, "eval/accuracy": 0.5, "eval/accuracy_low": None, "eval/accuracy_high": 0.6}]
    assert panels(rows, []) == []


def test_a_long_curve_is_smoothed_over_its_raw_values_and_a_short_one_is_not():
    long = [{"step": s, "loss": float(s % 2)} for s in range(40)]
    (line,) = panels(long, [])[0].lines
    assert line.faint.values == tuple(float(s % 2) for s in range(40))
    assert max(line.curve.values[5:-5]) < 0.7  # 0, 1, 0, 1 … averages out
    (line,) = panels(long[:10], [])[0].lines
    assert line.faint is None
    assert line.curve.values == tuple(float(s % 2) for s in range(10))


def test_a_single_reward_part_is_not_drawn_twice():
    one = [{"step": 1, "reward/mean": 1.0, "reward/std": 0.1, "parts/exact": 1.0}]
    assert [panel.title for panel in panels(one, [])] == ["Reward"]
    two = [one[0] | {"parts/format": 0.5}]
    parts = panels(two, [])[1]
    assert [line.label for line in parts.lines] == ["exact", "format"]


def test_shares_are_in_percent():
    (panel,) = panels([{"step": 1, "truncated": 0.25, "clip_fraction": 0.5}], [])
    assert [line.curve.values for line in panel.lines] == [(25.0,), (50.0,)]


def test_exact_agreement_is_left_out_of_the_logarithmic_panel():
    rows = [{"step": 1, "mismatch/max": 0.0}, {"step": 2, "mismatch/max": 1e-6}]
    (panel,) = panels(rows, [])
    assert panel.lines[0].curve == Series((2,), (1e-6,))
    assert panels(rows[:1], []) == []


def test_a_loss_that_is_only_rounding_is_not_drawn():
    """GRPO's surrogate on policy is 0 by construction; its rounding errors would look like a curve."""
    noise = [{"step": s, "loss": 3e-8 * (-1) ** s} for s in range(1, 5)]
    assert panels(noise, []) == []
    real = [{"step": s, "loss": 0.5 / s} for s in range(1, 5)]
    assert [panel.title for panel in panels(real, [])] == ["Loss"]
