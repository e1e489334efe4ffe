"""Rules just on either side of the conditions that decide their level and their first cause."""

import pytest

from tests.doctor.made import NEW, accuracy, constant, curve, evals, history, ramp, rollout
from whet.doctor import thresholds as at
from whet.doctor.rules import completions, evaluation, exploration, preferences, rewards, sampler, updates


@pytest.mark.parametrize(("temperature", "is_told"), [(1.39, False), (1.4, True)])
def test_a_temperature_is_high_from_1_4_on(temperature, is_told):
    config = {"rollout": {"temperature": temperature}}
    seen = history(constant("entropy", 2.0), constant("reward/mean", 0.1), evals(0.3, 0.3), config=config)
    assert (exploration.near_uniform(seen) is not None) == is_told


@pytest.mark.parametrize(("mean", "level"), [(at.MISMATCH[1] / 10, "note"), (at.MISMATCH[1] / 4, "critical")])
def test_a_single_far_token_is_a_fault_only_beside_a_large_mean(mean, level):
    seen = history(constant("mismatch/mean", mean), constant("mismatch/max", 2 * at.MISMATCH_WORST))
    assert sampler.agreement(seen).level == level


def test_a_kl_that_was_first_logged_later_says_nothing_of_the_start():
    rows = constant("kl", 0.3)
    assert sampler.reference_at_start(history(rows)) is not None
    assert sampler.reference_at_start(history(rows[1:])) is None


@pytest.mark.parametrize(("coefficient", "is_told"), [(0.99, False), (1.0, True)])
def test_a_penalty_holds_the_policy_from_a_coefficient_of_1_on(coefficient, is_told):
    rows = [constant("kl", 0.01), constant("kl_coefficient", coefficient), constant("reward/mean", 0.1)]
    seen = history(*rows, constant("grad_norm", 0.5), evals(0.3, 0.3))
    assert (sampler.held_by_reference(seen) is not None) == is_told


@pytest.mark.parametrize(("after", "is_told"), [(0.32, True), (0.33, False)])
def test_a_result_that_rose_by_a_standard_error_is_not_flat(after, is_told):
    """An interval of ±0.05 is two standard errors to either side: one is 0.025."""
    rows = [ramp("reward/mean", 0.2, 0.9), constant("reward/std", 0.3), evals(0.3, after, every=40)]
    assert (rewards.reward_hacking(history(*rows, steps=40)) is not None) == is_told


def test_failures_of_an_unknown_number_of_rollouts_are_a_warning():
    failed = [{"step": 3, "reward/failures": 2}]
    assert rewards.failed_rewards(history(failed)).level == "warning"
    few = {"rollout": {"prompts": 4, "group": 2}}
    assert rewards.failed_rewards(history(failed, config=few)).level == "critical"  # 2 of 24


def test_length_that_was_paid_at_first_counts():
    paid = [*constant("length/reward_correlation", 0.9)[:5], *constant("length/reward_correlation", 0.0)[5:]]
    seen = history(ramp("length/mean", 10, 40), constant("reward/mean", 0.5), paid, evals(0.3, 0.3))
    assert rewards.longer_without_gain(seen).rule == "length-hacking"


def test_rejected_completions_need_not_fall_as_far_as_chosen_ones():
    def seen(last):
        rows = [ramp("logprobs/chosen", -30, -60), ramp("logprobs/rejected", -30, last), constant("length/chosen", 30)]
        return history(*rows, kind="preference")

    assert preferences.both_fall(seen(-40)).level == "warning"
    assert preferences.both_fall(seen(-29)) is None


def test_below_chance_is_told_by_the_interval():
    sure, unsure = (history(accuracy("pair_accuracy", 0.5, 0.4, half=half), kind="reward") for half in (0.04, 0.2))
    assert preferences.below_chance(sure).level == "critical"
    assert preferences.below_chance(unsure) is None


@pytest.mark.parametrize(("trained", "is_told"), [(0.89, False), (0.9, True)])
def test_a_gap_counts_once_training_rows_are_known_by_heart(trained, is_told):
    rows = [constant("pair_accuracy", trained), accuracy("pair_accuracy", 0.5, 0.55)]
    assert (preferences.gap(history(*rows, kind="preference")) is not None) == is_told


def test_a_share_at_its_limit_is_a_leak():
    held_out = {0: [{"prompt": f"prompt {n}", "answer": "x"} for n in range(10)]}
    trained = {1: [rollout(prompt="prompt 0")]}
    assert evaluation.trained_on_held_out(history(rollouts=trained, answers=held_out)).rule == "leaked-evaluation"


@pytest.mark.parametrize(("answer", "is_told"), [("12", False), ("123", True)])
def test_short_answers_stand_in_prompts_by_chance(answer, is_told):
    held_out = {0: [{"prompt": f"{n}: {answer}", "answer": answer} for n in range(5)]}
    assert (evaluation.answers_in_prompts(history(answers=held_out)) is not None) == is_told


def test_prompts_that_begin_with_different_tokens_twice_have_one_start_each():
    rows = [rollout(prompt=f"{n} x", tokens=[n, n, 9, 50, 0], mask=[False] * 3 + [True] * 2) for n in range(5, 10)]
    assert completions.double_start(history(rollouts={1: rows})) is None


def test_a_control_token_at_the_end_stops_there():
    """A completion may be cut exactly where it would have ended."""
    row = {"tokens": [1, 2, 50, 50, 7], "mask": [False] * 2 + [True] * 3, "pieces": ["a", "a", ""], "finish": "length"}
    assert completions.unheeded_stop(history(rollouts={3: [rollout("aa", **row) for _ in range(8)]})) is None


@pytest.mark.parametrize(("idle", "level"), [(0.8, "warning"), (1.0, "critical")])
def test_skipped_updates_are_critical_where_nearly_all_are(idle, level):
    made = [0.0 if n < idle * 20 else 1.0 for n in range(20)] * 2
    seen = history(curve("updates", made), constant("groups/kept", 0.0), config=NEW)
    assert updates.skipped_updates(seen).level == level


def test_a_reward_near_0_falls_by_its_spread():
    """A tenth of the level alone would call any noise around 0 a fall."""
    wide, narrow = ([ramp("reward/mean", 0.1, 0.05), constant("reward/std", spread)] for spread in (1.0, 0.01))
    assert updates.reward_falls(history(*wide)) is None
    assert updates.reward_falls(history(*narrow)).rule == "reward-falls"
