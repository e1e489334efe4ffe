"""Each rule on both sides of its threshold, on rows made by hand."""

import re

import pytest

from whet.report.run import health
from whet.report.run.health import HealthFinding, findings
from whet.train.explain.recipe_keys import recipe_keys


@pytest.mark.parametrize(
    ("means", "level", "sentence"),
    [
        ((0.31, 0.5, 0.95), "ok", "held-out accuracy rose from 31.0% to 95.0%, intervals apart"),
        ((0.31, 0.42), "ok", "held-out accuracy rose from 31.0% to 42.0%, intervals apart"),
        ((0.31, 0.40), "note", "held-out accuracy went from 31.0% to 40.0%: intervals overlap, may be chance"),
        ((0.40, 0.60, 0.40), "note", "held-out accuracy is 40.0%, as before training"),
        ((0.80, 0.60), "warning", "held-out accuracy fell from 80.0% to 60.0%, intervals apart"),
        ((0.375, 0.625), "ok", "held-out accuracy rose from 37.5% to 62.5%, intervals apart"),
        ((0.80,), "note", "held-out accuracy is 80.0%; one evaluation cannot show progress"),
    ],
)
def test_held_out_result(means, level, sentence):
    assert health.held_out_result(evals(*means)) == HealthFinding(level, sentence)


def test_nothing_and_no_evaluation_are_said_plainly():
    assert health.held_out_result([]) == HealthFinding("note", "nothing is recorded yet")
    assert health.held_out_result(constant("loss", 1.0)) == HealthFinding("note", "no held-out evaluation")
    assert health.held_out_result([{"step": 1, "eval/loss": 2.0}]) is None


@pytest.mark.parametrize(
    ("losses", "level", "word"),
    [
        ((2.0, 1.0, 1.04), "ok", "fell from 2 to 1.04"),
        ((2.0, 1.0, 1.06), "warning", "rose from 1 at step 1 to 1.06: over-fitting"),
        ((2.0, 1.99), "note", "little was learned"),
    ],
)
def test_held_out_loss(losses, level, word):
    found = health.held_out_loss([{"step": i, "eval/loss": value} for i, value in enumerate(losses)])
    assert found.level == level
    assert word in found.sentence


def test_held_out_loss_needs_two_evaluations():
    assert health.held_out_loss([{"step": 0, "eval/loss": 1.0}]) is None


def test_reward_hacking_needs_a_rising_reward_and_a_falling_accuracy():
    found = health.reward_hacking(ramp("reward/mean", 0.2, 0.9) + evals(0.6, 0.4))
    assert found == HealthFinding(
        "warning",
        "reward rose from 0.2 to 0.9 while held-out accuracy fell from 60.0% to 40.0%: look for reward hacking",
    )
    assert health.reward_hacking(ramp("reward/mean", 0.2, 0.9) + evals(0.6, 0.56)) is None  # within the interval
    assert health.reward_hacking(ramp("reward/mean", 0.9, 0.2) + evals(0.6, 0.4)) is None
    assert health.reward_hacking(ramp("reward/mean", 0.2, 0.9) + evals(0.4)) is None


def test_a_part_of_the_reward_that_never_moves():
    rows = [{"step": step, "parts/short": 0.1 * step, "parts/digits": 0.0} for step in range(1, 20)]
    found = health.silent_parts(rows)
    assert found.level == "warning"
    assert found.sentence == "the reward part digits (0) was the same in all steps, so it taught nothing"
    assert (
        health.silent_parts([{key: row[key] for key in ("step", "parts/digits")} for row in rows]) is None
    )  # all of it
    assert health.silent_parts([{**row, "parts/digits": float(row["step"])} for row in rows]) is None
    assert health.silent_parts([]) is None


def test_the_verdict_is_also_on_the_metric_that_chose_the_best_model():
    bounds = {"eval/b/reward_low": -0.1, "eval/b/reward_high": 0.1}
    rows = [row | {"eval/b/reward": 0.0} | bounds for row in evals(0.2, 0.2)]
    rows[-1] |= {"eval/b/reward": 1.0, "eval/b/reward_low": 0.9, "eval/b/reward_high": 1.1}
    first, second = health.verdict(rows, "eval/b/reward")
    assert "held-out accuracy is 20.0%, as before training" in first.sentence
    assert second.sentence == "held-out reward on b rose from 0 to 1, intervals apart"
    assert len(health.verdict(rows, "eval/accuracy")) == len(health.verdict(rows)) == 1


def test_a_reward_that_never_moves():
    found = health.silent_reward(constant("reward/mean", 0.0, 30))
    assert found.level == "warning"
    assert "reward was 0 in all 30 steps" in found.sentence
    assert health.silent_reward([*constant("reward/mean", 0.0, 30), {"step": 31, "reward/mean": 0.01}]) is None
    assert health.silent_reward(constant("reward/mean", 0.0, 4)) is None


@pytest.mark.parametrize(
    ("share", "level", "reason"),
    [
        (0.24, "ok", "teach something"),
        (0.26, "note", "too easy or too hard"),
        (0.72, "warning", "too easy or too hard"),
    ],
)
def test_zero_variance(share, level, reason):
    found = health.zero_variance(constant("groups/zero_variance", share))
    assert found.level == level
    assert found.sentence.startswith(f"{100 * share:.0f} % of groups in the last 20 steps had zero variance: ")
    assert reason in found.sentence


def test_zero_variance_of_a_solved_task_is_no_alarm():
    rows = constant("groups/zero_variance", 0.9)
    assert health.zero_variance(rows + evals(0.2, 0.89)).level == "warning"
    assert health.zero_variance(rows + evals(0.2, 0.90)).level == "note"


def test_now_means_the_last_twenty_steps_and_never_the_beginning():
    late = [{"step": s, "truncated": 0.0 if s <= 100 else 0.37} for s in range(1, 121)]
    assert health.truncation(late).sentence.startswith("37 % of completions in the last 20 steps were truncated")
    short = [{"step": s, "truncated": 0.0 if s <= 3 else 0.5} for s in range(1, 7)]
    assert health.truncation(short).sentence.startswith("50 % of completions in the last 3 steps")


@pytest.mark.parametrize(("share", "level"), [(0.04, "ok"), (0.06, "note"), (0.19, "note"), (0.21, "warning")])
def test_truncation(share, level):
    found = health.truncation(constant("truncated", share))
    assert found.level == level
    assert ("raise rollout.max_tokens" in found.sentence) == (level != "ok")
    assert health.truncation([{**row, "tokens/match": 0.1} for row in constant("truncated", share)]) is None


@pytest.mark.parametrize(
    ("first", "last", "level", "word"),
    [
        (1.2, 0.01, "warning", "entropy fell from 1.2 to 0.01 nats a token in 39 steps: collapse"),
        (1.2, 0.066, "warning", "collapse"),  # less than a tenth is left, and less than 0.1 nats
        (0.3, 0.015, "warning", "collapse"),
        (0.1, 0.015, "warning", "collapse"),  # more than a tenth, but next to nothing
        (4.0, 0.2, "ok", "still exploring"),  # a twentieth, and still much in nats
        (0.3, 0.04, "note", "explores little"),
        (0.03, 0.02, "note", "low from the start"),
        (0.01, 0.03, "note", "low from the start"),  # 0.03 nats are no noise
        (1.0, 1.9, "ok", "still exploring"),
        (1.0, 2.1, "warning", "drifts into noise, lower optimizer.lr"),
    ],
)
def test_entropy(first, last, level, word):
    found = health.entropy(ramp("entropy", first, last))
    assert found.level == level
    assert word in found.sentence


def test_a_collapse_in_the_last_steps_of_a_short_run_is_seen():
    """Twenty steps in which every completion became the same; the mean of the second half is 0.17 nats."""
    values = (
        1.25,
        1.22,
        1.2,
        1.18,
        1.15,
        1.1,
        1.0,
        0.9,
        0.8,
        0.6,
        0.55,
        0.5,
        0.3,
        0.2,
        0.1,
        0.05,
        0.02,
        0.02,
        0.011,
        0.011,
    )
    rows = [{"step": step, "entropy": value} for step, value in enumerate(values, start=1)]
    found = health.entropy(rows)
    assert found.level == "warning"
    assert found.sentence.startswith("entropy fell from 1.2 to 0.022 nats a token in 19 steps: collapse")


def test_entropy_may_fall_when_the_task_is_solved():
    assert health.entropy(ramp("entropy", 1.2, 0.01) + evals(0.3, 0.95)).level == "note"
    assert health.entropy(ramp("entropy", 1.2, 0.01) + evals(0.3, 0.85)).level == "warning"


@pytest.mark.parametrize(("value", "level"), [(0.1, "ok"), (0.6, "note"), (2.5, "warning")])
def test_kl(value, level):
    assert health.kl_to_reference(constant("kl", value)).level == level


@pytest.mark.parametrize(
    ("worst", "level", "sentence"),
    [
        (3e-6, "ok", "sampler and trainer disagree by at most 3e−6 nats: fine"),
        (0.02, "note", "sampler and trainer disagree by at most 0.02 nats: different kernels"),
        (0.8, "warning", "sampler and trainer disagree by at most 0.8 nats: stale weights"),
    ],
)
def test_agreement_looks_at_the_worst_step(worst, level, sentence):
    rows = [*constant("mismatch/max", 1e-7), {"step": 41, "mismatch/max": worst}, {"step": 42, "mismatch/max": 1e-7}]
    found = health.agreement(rows)
    assert found.level == level
    assert found.sentence.startswith(sentence)


@pytest.mark.parametrize(("share", "level"), [(0.25, "note"), (0.45, "warning")])
def test_clipping(share, level):
    assert health.clipping(constant("clip_fraction", share)).level == level
    assert health.clipping(constant("clip_fraction", 0.19)) is None


def test_longer_without_gain():
    found = health.longer_without_gain(ramp("length/mean", 100, 200) + evals(0.5, 0.52))
    assert found.level == "warning"
    assert found.sentence.startswith("length grew 2.0× while held-out accuracy did not rise")
    assert health.longer_without_gain(ramp("length/mean", 100, 200) + evals(0.5, 0.7)) is None
    assert health.longer_without_gain(ramp("length/mean", 100, 140) + evals(0.5, 0.5)) is None


def test_gradient_spikes():
    rows = [*constant("grad_norm", 0.5), {"step": 41, "grad_norm": 5.1}]
    assert health.gradient_spikes(rows) == HealthFinding(
        "note", "gradient norm at step 41 was 5.1, against 0.5 in the median step"
    )
    assert health.gradient_spikes([*constant("grad_norm", 0.5), {"step": 41, "grad_norm": 4.9}]) is None


def test_lost_numbers():
    rows = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}, {"step": 3, "kl": None}, {"step": 4, "lr": None}]
    found = health.lost_numbers(rows)
    assert found.level == "warning"
    assert found.sentence.startswith("2 steps had a loss")
    assert found.sentence.endswith("first step 2")
    assert health.lost_numbers(rows[:1]) is None


def test_findings_put_warnings_first_and_rules_keep_silent_without_data():
    rows = constant("truncated", 0.5) + constant("kl", 0.1) + evals(0.3)
    assert [finding.level for finding in findings(rows)] == ["warning", "note", "ok"]
    assert findings([]) == [HealthFinding("note", "nothing is recorded yet")]


def test_advice_names_keys_as_recipes_have_them():
    known = {row.key for row in recipe_keys()}
    rows = (
        constant("truncated", 0.5) + constant("kl", 3.0) + constant("clip_fraction", 0.5) + ramp("entropy", 1.2, 0.01)
    )
    rows += constant("mismatch/max", 0.02) + ramp("eval/loss", 1.0, 2.0) + [{"step": 41, "eval/loss": 0.1}]
    advice = " ".join(one.sentence for one in [*findings(rows), health.entropy(ramp("entropy", 1.0, 2.1))])
    named = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", advice))
    assert named <= known
    assert {"rollout.max_tokens", "optimizer.lr", "algorithm.kl.coefficient", "update.epochs"} <= named


@pytest.mark.parametrize("rule", health.RULES)
def test_every_rule_survives_one_row_of_nulls_and_one_of_zeros(rule):
    names = ("reward/mean", "loss", "kl", "entropy", "length/mean", "truncated", "groups/zero_variance", "grad_norm")
    names += ("clip_fraction", "mismatch/max", "eval/accuracy", "eval/accuracy_low", "eval/accuracy_high", "eval/loss")
    for value in (None, 0.0):
        for count in (1, 12):
            found = rule([{"step": step, **dict.fromkeys(names, value)} for step in range(count)])
            assert found is None or "\n" not in found.sentence
