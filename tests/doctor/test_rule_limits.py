"""Rules on both sides of their limits, and what they say."""

import pytest

from tests.doctor.made import NEW, constant, curve, evals, history, ramp, rollout
from whet.doctor import thresholds as at
from whet.doctor.examine import over_time
from whet.doctor.rules import completions, evaluation, exploration, preferences, progress, rewards, sampler, updates


@pytest.mark.parametrize(
    ("means", "level", "sentence"),
    [
        ((0.31, 0.5, 0.95), "ok", "held-out accuracy rose from 31.0% to 95.0%, intervals apart"),
        ((0.31, 0.42), "ok", "held-out accuracy rose from 31.0% to 42.0%, intervals apart"),
        ((0.31, 0.40), "note", "held-out accuracy went from 31.0% to 40.0%: intervals overlap, may be chance"),
        ((0.40, 0.60, 0.40), "note", "held-out accuracy is 40.0%, as before training"),
        ((0.80, 0.60), "warning", "held-out accuracy fell from 80.0% to 60.0%, intervals apart"),
        ((0.80,), "note", "held-out accuracy is 80.0%; one evaluation cannot show progress"),
    ],
)
def test_held_out_result(means, level, sentence):
    found = evaluation.held_out_result(history(evals(*means)))
    assert (found.level, found.sentence) == (level, sentence)


def test_nothing_and_no_evaluation_are_said_plainly():
    assert evaluation.held_out_result(history()).sentence == "nothing is recorded yet"
    assert evaluation.held_out_result(history(constant("loss", 1.0))).sentence == "no held-out evaluation"
    assert evaluation.held_out_result(history([{"step": 1, "eval/loss": 2.0}])) is None


@pytest.mark.parametrize(
    ("losses", "level", "word"),
    [
        ((2.0, 1.0, 1.04), "ok", "fell from 2 to 1.04"),
        ((2.0, 1.0, 1.06), "warning", "rose from 1 at step 2 to 1.06: over-fitting"),
        ((2.0, 1.99), "note", "little was learned"),
    ],
)
def test_held_out_loss(losses, level, word):
    found = evaluation.held_out_loss(history(curve("eval/loss", losses)))
    assert found.level == level
    assert word in found.sentence


def test_a_loss_that_only_rises_blames_the_steps_before_the_rows():
    rising = evaluation.held_out_loss(history(curve("eval/loss", [1.0, 2.0]), kind="sft"))
    again = evaluation.held_out_loss(history(curve("eval/loss", [1.0, 0.5, 2.0]), kind="sft"))
    assert (rising.causes[0], again.causes[0]) == ("learning-rate-too-high", "overfitting")


def test_the_verdict_is_also_on_the_metric_that_chose_the_best_model():
    bounds = {"eval/b/reward_low": -0.1, "eval/b/reward_high": 0.1}
    rows = [row | {"eval/b/reward": 0.0} | bounds for row in evals(0.2, 0.2)]
    rows[-1] |= {"eval/b/reward": 1.0, "eval/b/reward_low": 0.9, "eval/b/reward_high": 1.1}
    first, second = evaluation.verdict(history(rows), "eval/b/reward")
    assert "held-out accuracy is 20.0%, as before training" in first.sentence
    assert second.sentence == "held-out reward on b rose from 0 to 1, intervals apart"
    seen = history(rows)
    assert len(evaluation.verdict(seen, "eval/accuracy")) == len(evaluation.verdict(seen)) == 1


def test_reward_hacking_needs_a_rising_reward_and_a_falling_accuracy():
    found = rewards.reward_hacking(history(ramp("reward/mean", 0.2, 0.9), evals(0.6, 0.4)))
    assert found.level == "critical"
    assert found.sentence == (
        "reward rose from 0.2 to 0.9 while held-out accuracy fell from 60.0% to 40.0%: look for reward hacking"
    )
    flat = rewards.reward_hacking(history(ramp("reward/mean", 0.2, 0.9), evals(0.6, 0.56), steps=40))
    assert flat.level == "warning"  # within the interval, and the run is more than a third done
    early = history(ramp("reward/mean", 0.2, 0.9), evals(0.6, 0.56), steps=400)
    assert rewards.reward_hacking(early) is None
    assert rewards.reward_hacking(history(ramp("reward/mean", 0.9, 0.2), evals(0.6, 0.4))) is None
    assert rewards.reward_hacking(history(ramp("reward/mean", 0.2, 0.9), evals(0.4))) is None
    in_training = rewards.reward_hacking(history(ramp("reward/mean", 0.2, 0.9), ramp("correct", 0.6, 0.2)))
    assert "the share of correct rollouts fell from 60 % to 20 %" in in_training.sentence


def test_a_reward_that_rises_with_the_share_of_correct_rollouts_is_not_hacked():
    rows = [*ramp("reward/mean", 0.2, 0.9), *evals(0.6, 0.6)]
    assert rewards.reward_hacking(history(rows)).is_alarm
    assert rewards.reward_hacking(history(rows, ramp("correct", 0.1, 0.3))) is None


def test_hacking_shows_the_best_paid_rollout_that_is_wrong():
    rows = [rollout("good", 0.9, parts={"correct": 1.0}), rollout("padding", 0.8), rollout("bad", 0.1)]
    found = rewards.reward_hacking(history(ramp("reward/mean", 0.2, 0.9), evals(0.6, 0.4), rollouts={40: rows}))
    shown = found.evidence[-1]
    assert shown.rollout == (40, 1)
    assert shown.text == "the best-paid rollout that is wrong: 'padding'"


def test_a_part_of_the_reward_that_never_moves():
    rows = [{"step": step, "parts/short": 0.1 * step, "parts/digits": 0.0} for step in range(1, 20)]
    found = rewards.silent_parts(history(rows))
    assert found.sentence == "the reward part digits (0) was the same in all steps, so it taught nothing"
    assert rewards.silent_parts(history([{k: row[k] for k in ("step", "parts/digits")} for row in rows])) is None
    assert rewards.silent_parts(history([{**row, "parts/digits": float(row["step"])} for row in rows])) is None


def test_a_reward_that_never_moves():
    found = rewards.silent_reward(history(constant("reward/mean", 0.0, 30)))
    assert found.level == "critical"
    assert "reward was 0 in all 30 steps" in found.sentence
    assert rewards.silent_reward(history(constant("reward/mean", 0.0, 30), [{"step": 31, "reward/mean": 0.01}])) is None
    assert rewards.silent_reward(history(constant("reward/mean", 0.0, 4))) is None
    cut = rewards.silent_reward(history(constant("reward/mean", 0.0), constant("truncated", 1.0)))
    assert cut.causes[0] == "max-tokens-too-small"
    own = {"reward": {"functions": [{"use": "a.py:f"}]}}
    assert rewards.silent_reward(history(constant("reward/mean", 0.5), config=own)).causes[0] == "constant-reward"


def test_a_saturated_reward_is_no_alarm_where_accuracy_rose():
    rows = [*ramp("reward/mean", 0.2, 0.995), *constant("reward/max", 1.0), *constant("reward/std", 0.02)]
    assert rewards.saturated_reward(history(rows, evals(0.3, 0.3))).level == "warning"
    assert rewards.saturated_reward(history(rows, evals(0.3, 0.8))).level == "note"
    assert rewards.saturated_reward(history(rows)).level == "note"  # nobody measured
    below = [*ramp("reward/mean", 0.2, 0.97), *constant("reward/max", 1.0), *constant("reward/std", 0.02)]
    assert rewards.saturated_reward(history(below, evals(0.3, 0.3))) is None


@pytest.mark.parametrize(
    ("share", "level", "reason"),
    [
        (at.ZERO_VARIANCE[0] - 0.01, "ok", "teach something"),
        (at.ZERO_VARIANCE[0] + 0.01, "note", "too easy or too hard"),
        (at.ZERO_VARIANCE[1] + 0.01, "warning", "too easy or too hard"),
    ],
)
def test_zero_variance(share, level, reason):
    found = exploration.zero_variance(history(constant("groups/zero_variance", share)))
    assert found.level == level
    assert found.sentence.startswith(f"{100 * share:.0f} % of groups in the last 20 steps had zero variance: ")
    assert reason in found.sentence


@pytest.mark.parametrize(("name", "cause"), [("all_right", "prompts-too-easy"), ("all_wrong", "prompts-too-hard")])
def test_zero_variance_says_which_side(name, cause):
    seen = history(constant("groups/zero_variance", 0.8), constant(f"groups/{name}", 0.8))
    assert exploration.zero_variance(seen).causes[0] == cause


@pytest.mark.parametrize(
    ("accuracy", "functions", "cause"),
    [
        (0.4, ["own.py:half"], "constant-reward"),  # some answers are right, and the reward does not see it
        (0.0, ["own.py:half"], "prompts-too-hard"),
        (0.0, [], "prompts-too-hard"),
    ],
)
def test_a_constant_reward_is_the_fault_of_the_prompts_where_no_answer_is_right(accuracy, functions, cause):
    rows = [*constant("reward/mean", 0.0), *constant("reward/std", 0.0), *constant("grad_norm", 0.0)]
    seen = history(rows, evals(accuracy, accuracy, half=0.0), config={"reward": {"functions": functions}})
    assert rewards.silent_reward(seen).causes[0] == cause
    assert updates.zero_gradient(seen).causes[0] == ("prompts-too-hard" if accuracy == 0 else "constant-reward")


@pytest.mark.parametrize(("share", "level"), [(0.8, "note"), (0.95, "warning")])
def test_zero_variance_at_the_beginning_of_a_run_is_an_alarm_only_of_nearly_all_groups(share, level):
    rows = constant("groups/zero_variance", share, steps=12)
    assert exploration.zero_variance(history(rows, steps=40)).level == level
    assert exploration.zero_variance(history(rows, steps=12)).level == "warning"


def test_groups_without_variance_of_a_sure_policy_point_at_the_temperature():
    rows = [*constant("groups/zero_variance", 0.8), *constant("entropy", 0.05)]
    assert exploration.zero_variance(history(rows)).causes[0] == "temperature-too-low"
    assert exploration.zero_variance(history(rows[:40])).causes[0] == "prompts-too-hard"


@pytest.mark.parametrize(("last", "level"), [(0.9, "note"), (0.2, "warning")])
def test_truncation_of_a_run_whose_reward_rises_is_a_note(last, level):
    rows = [*constant("truncated", 0.5), *ramp("reward/mean", 0.2, last)]
    assert completions.truncation(history(rows)).level == level


def test_partial_rewards_that_rise_before_any_answer_is_right_are_no_reward_hacking():
    def found(functions, accuracy):
        rows = [*ramp("reward/mean", 0.1, 0.4), *evals(accuracy, accuracy, half=0.02, every=40)]
        return rewards.reward_hacking(history(rows, config={"reward": {"functions": functions}}))

    assert found([], 0.0) is None
    assert found(["mine.py:f"], 0.0).level == "warning"
    assert found([], 0.3).level == "warning"


def test_zero_variance_of_a_solved_task_is_no_alarm():
    rows = constant("groups/zero_variance", 0.9)
    assert exploration.zero_variance(history(rows, evals(0.85, 0.89))).level == "warning"
    assert exploration.zero_variance(history(rows, evals(0.85, 0.90))).level == "note"


def test_now_means_the_last_twenty_steps_and_never_the_beginning():
    late = [{"step": s, "truncated": 0.0 if s <= 100 else 0.37} for s in range(1, 121)]
    found = completions.truncation(history(late))
    assert found.sentence.startswith("37 % of completions in the last 20 steps were truncated")
    short = [{"step": s, "truncated": 0.0 if s <= 3 else 0.5} for s in range(1, 7)]
    assert completions.truncation(history(short)).sentence.startswith("50 % of completions in the last 3 steps")


@pytest.mark.parametrize(
    ("share", "level"),
    [
        (at.TRUNCATED[0] - 0.01, "ok"),
        (at.TRUNCATED[0] + 0.01, "note"),
        (at.TRUNCATED[1] - 0.01, "note"),
        (at.TRUNCATED[1] + 0.01, "warning"),
    ],
)
def test_truncation(share, level):
    rows = constant("truncated", share)
    found = completions.truncation(history(rows))
    assert found.level == level
    assert ("raise rollout.max_tokens" in found.sentence) == (level != "ok")
    assert completions.truncation(history(rows, constant("tokens/match", 0.1))) is None
    gained = completions.truncation(history(rows, evals(0.3, 0.8)))
    assert not gained.is_alarm


def test_completions_of_one_length_are_meant_to_be_cut():
    rows = constant("truncated", 1.0)
    fixed = {"rollout": {"max_tokens": 8, "min_tokens": 8}}
    assert completions.never_ends(history(rows, config=fixed)) is None
    assert completions.never_ends(history(rows, config={"rollout": {"max_tokens": 8}})).level == "warning"
    assert completions.never_ends(history([*rows[:-1], {"step": 40, "truncated": 0.99}])) is None


def test_control_tokens_need_half_of_the_rollouts():
    def rows(count):
        token = {"tokens": [1, 2, 50, 7, 50], "mask": [False] * 2 + [True] * 3, "finish": "length"}
        odd = rollout(pieces=["a", "", "a"], **token)
        plain = rollout(pieces=["a", "b", "a"], **token)
        return {5: [odd] * count + [plain] * (8 - count)}

    found = completions.unheeded_stop(history(rollouts=rows(4)))
    assert found.sentence.startswith("50 % of the rollouts of step 5 write the control token 7")
    assert found.evidence[0].rollout == (5, 0)
    assert completions.unheeded_stop(history(rollouts=rows(3))) is None
    ended = {5: [{**row, "finish": "stop"} for row in rows(8)[5]]}
    assert completions.unheeded_stop(history(rollouts=ended)) is None


def test_a_text_that_begins_with_one_letter_twice_is_no_template_fault():
    def rows(texts, first=5):
        tokens = [first, first, 9, 50]
        return {1: [rollout(prompt=text, tokens=tokens, mask=[False] * 3 + [True]) for text in texts]}

    assert completions.double_start(history(rollouts=rows(["aab", "aac", "aad", "aae"]))) is None
    assert completions.double_start(history(rollouts=rows(["ab", "cd", "ef"]))) is None  # too few
    assert completions.double_start(history(rollouts=rows(["ab", "cd", "ef", "gh"]))).level == "warning"


@pytest.mark.parametrize(
    ("first", "last", "rule"),
    [
        (1.2, 0.01, "entropy-collapse"),
        (0.1, 0.009, "entropy-collapse"),  # more than a tenth, but next to nothing
        (4.0, 0.2, "entropy"),  # a twentieth, and still much in nats
        (0.03, 0.02, "low-entropy"),
        (1.0, 1.4, "entropy"),
        (1.0, 1.6, "entropy-rise"),
    ],
)
def test_entropy(first, last, rule):
    assert exploration.entropy(history(ramp("entropy", first, last))).rule == rule


def test_entropy_may_fall_when_something_was_learned():
    fall = ramp("entropy", 1.2, 0.01)
    assert not exploration.entropy(history(fall, evals(0.3, 0.95))).is_alarm
    assert exploration.entropy(history(fall, evals(0.3, 0.31))).is_alarm
    assert exploration.entropy(history(fall[:9])) is None


@pytest.mark.parametrize(("value", "level"), [(0.1, "ok"), (0.6, "note"), (2.5, "warning")])
def test_kl(value, level):
    assert sampler.kl_to_reference(history(constant("kl", value))).level == level


@pytest.mark.parametrize(
    ("mean", "worst", "level", "words"),
    [
        (1e-7, 3e-6, "ok", "fine"),
        (2e-3, 0.02, "note", "different kernels"),
        (0.02, 0.8, "critical", "another sampling distribution"),  # rare, but large
        (0.2, 0.8, "critical", "another sampling distribution"),
    ],
)
def test_agreement(mean, worst, level, words):
    found = sampler.agreement(history(constant("mismatch/mean", mean), constant("mismatch/max", worst)))
    assert found.level == level
    assert words in found.sentence


def test_a_mismatch_that_grows_is_stale_weights():
    rows = [*ramp("mismatch/mean", 1e-6, 0.3), *constant("mismatch/max", 1.0)]
    assert sampler.agreement(history(rows)).causes[0] == "stale-sampler"
    stale = history(rows, constant("staleness/max", 2.0))
    assert sampler.agreement(stale).level == "ok"  # asked for


@pytest.mark.parametrize(("share", "level"), [(0.25, "note"), (0.45, "warning")])
def test_clipping(share, level):
    assert updates.clipping(history(constant("clip_fraction", share))).level == level
    assert updates.clipping(history(constant("clip_fraction", 0.19))) is None


def test_the_ratio_of_the_only_update_is_one():
    rows = constant("ratio/max", 1 + at.RATIO_AT_START + 0.1)
    assert updates.first_ratios(history(rows)).rule == "ratio-at-start"
    assert updates.first_ratios(history(rows, config={"update": {"epochs": 2}})) is None
    assert updates.first_ratios(history(rows, constant("staleness/max", 1.0))) is None
    assert updates.first_ratios(history(constant("ratio/max", 1 + at.RATIO_AT_START))) is None


def test_longer_without_gain():
    paid = constant("length/reward_correlation", 0.7)

    def seen(last, *more):
        return rewards.longer_without_gain(
            history(ramp("length/mean", 100, last), ramp("reward/mean", 0, 1), *more, config={"loop": "online"})
        )

    found = seen(200, paid, evals(0.5, 0.52))
    assert found.sentence.startswith("length grew 2.0× while held-out accuracy did not rise")
    assert seen(200, paid, evals(0.5, 0.7)) is None
    assert seen(140, paid, evals(0.5, 0.5)) is None


def test_gradient_spikes():
    rows = [*constant("grad_norm", 0.5), {"step": 41, "grad_norm": 5.1}]
    found = updates.gradient_spikes(history(rows))
    assert found.sentence == "gradient norm at step 41 was 5.1, against 0.5 in the median step"
    assert updates.gradient_spikes(history(constant("grad_norm", 0.5), [{"step": 41, "grad_norm": 4.9}])) is None


def test_lost_numbers():
    rows = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}, {"step": 3, "kl": None}, {"step": 4, "lr": None}]
    found = updates.lost_numbers(history(rows))
    assert found.level == "critical"
    assert found.sentence.startswith("2 steps had a loss")
    assert found.sentence.endswith("first step 2")
    assert updates.lost_numbers(history(rows[:1])) is None


def test_length_drift_and_calibration():
    def drift(last):
        return preferences.length_drift(history(curve("eval/length", [30.0, last]), kind="preference"))

    assert drift(30.0 * at.DRIFT[0] - 1) is None
    assert drift(30.0 * at.DRIFT[0] + 1).level == "note"
    assert drift(30.0 * at.DRIFT[1] + 1).level == "warning"

    def miscalibrated(first, last):
        return preferences.miscalibration(history(curve("eval/calibration_error", [first, last]), kind="reward"))

    assert miscalibrated(0.02, at.MISCALIBRATED[0] - 0.01) is None
    assert miscalibrated(0.02, at.MISCALIBRATED[1] + 0.01).level == "warning"
    assert miscalibrated(0.5, 0.4) is None  # better than before


@pytest.mark.parametrize(
    ("chosen", "rejected", "level"),
    [(-12, -30, None), (-16, -30, "note"), (-30, -40, "warning"), (-30, -5, None)],
)
def test_both_fall_is_measured_in_nats_a_token(chosen, rejected, level):
    """Completions of 40 tokens with −10 nats at first: less 2, 6 and 20 nats are 0.05, 0.15 and 0.5 a token."""
    rows = [*ramp("logprobs/chosen", -10, chosen), *ramp("logprobs/rejected", -10, rejected)]
    found = preferences.both_fall(history(rows, constant("length/chosen", 40.0), kind="preference"))
    assert (None if found is None else found.level) == level


def test_a_result_has_fallen_at_two_evaluations_in_a_row():
    def rule(*means, steps):
        return evaluation.held_out_result(history(evals(*means), steps=steps)).rule

    assert rule(0.8, 0.6, steps=100) == "held-out"  # the second one of a run that goes on
    assert rule(0.8, 0.6, 0.6, steps=40) == "held-out-fell"
    assert rule(0.8, 0.6, 0.8, 0.6, steps=50) == "held-out"
    assert rule(0.8, 0.8, 0.8, 0.6, steps=30) == "held-out-fell"  # the last one of a run that is over


def test_a_dip_in_the_first_half_of_a_run_is_no_fall_unless_most_is_lost():
    def rule(*means, steps):
        return evaluation.held_out_result(history(evals(*means), steps=steps)).rule

    assert rule(0.8, 0.5, 0.5, steps=100) == "held-out"
    assert rule(0.8, 0.5, 0.5, steps=40) == "held-out-fell"
    assert rule(0.8, 0.39, 0.39, steps=100) == "held-out-fell"
    assert rule(0.8, 0.29, 0.39, steps=100) == "held-out"  # it comes back


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("correct", {}, "held-out"),
        ("reward/mean", {}, "held-out"),
        ("correct", {"reward": {"functions": ["mine.py:f"]}}, "held-out"),
        ("reward/mean", {"reward": {"functions": ["mine.py:f"]}}, "held-out-fell"),  # it may pay for something else
        ("reward/mean", {"reward": {"model": {"path": "made"}}}, "held-out-fell"),
        ("entropy", {}, "held-out-fell"),
    ],
)
def test_a_dip_in_the_first_half_is_no_fall_while_training_rises(name, config, expected):
    rises = curve(name, [0.1 + 0.01 * step for step in range(20)])
    seen = history(evals(0.8, 0.3, 0.3), rises, steps=100, config=config)
    assert evaluation.held_out_result(seen).rule == expected
    assert evaluation.held_out_result(history(evals(0.8, 0.3, 0.3), rises, steps=30)).rule == "held-out-fell"  # later


def swinging(rise):
    """A reward that swings by 0.05 about a line; its noise is 0.1 / √2, and that of means of ten steps 0.0316."""
    return curve("reward/mean", [0.5 + rise * step + 0.05 * (-1) ** step for step in range(40)])


@pytest.mark.parametrize(("rise", "found"), [(0.0, True), (0.001, True), (0.0033, False), (-0.0033, True)])
def test_a_reward_that_rises_slowly_is_no_plateau(rise, found):
    """The last ten steps are 30 · rise above the first ten: 0, 0.9, 3.1 and −3.1 standard errors."""
    rule = progress.flat_run(history(swinging(rise), constant("grad_norm", 0.5), steps=40))
    assert (rule is not None) == found


@pytest.mark.parametrize(("rise", "errors", "found"), [(0.0, 0.0, True), (0.03, 0.877, True), (0.04, 1.169, False)])
def test_a_held_out_result_that_rises_by_more_than_its_standard_error_is_no_plateau(rise, errors, found):
    """Evaluations at 0, 10, 20 and 30, each ± 0.05: an error of 0.0255, of a line through them 0.0255 / √500."""
    means = [0.5 + rise * place / 3 for place in range(4)]
    seen = history(evals(*means), swinging(0.0), constant("grad_norm", 0.5), steps=40)
    assert seen.risen == pytest.approx(errors, abs=2e-3)
    assert (progress.flat_run(seen) is not None) == found


def test_a_held_out_loss_that_falls_has_risen_in_quality():
    rows = [
        {"step": step, "eval/loss": loss, "eval/loss_low": loss - 0.1, "eval/loss_high": loss + 0.1}
        for step, loss in ((0, 2.0), (10, 1.0))
    ]
    assert history(rows).risen == pytest.approx(1 / (0.2 / 3.92 * 2**0.5))
    assert history(rows[:1]).risen == history().risen == 0.0


@pytest.mark.parametrize(("trained", "level"), [(0.9, "warning"), (1.1, "note")])
def test_a_rising_held_out_loss_is_overfitting_where_the_training_loss_is_below_it(trained, level):
    """The best held-out loss is 1: a training loss above it is not of rows learned by heart."""
    rows = history(constant("loss", trained, steps=4), curve("eval/loss", [2.0, 1.0, 1.2, 1.2]), kind="sft")
    assert evaluation.held_out_loss(rows).level == level


def test_an_alarm_that_passed_is_a_note_of_a_run_that_learned():
    dip = [0.8] * 2 + [0.3] * 3

    def found(last):
        seen = history(evals(*dip, last, every=10), FLAT_REWARD, steps=50)
        return {one.rule: one for one in over_time(seen).findings}["held-out-fell"]

    assert (found(0.95).level, found(0.95).until) == ("note", 49)
    assert (found(0.8).level, found(0.8).until) == ("warning", 49)


FLAT_REWARD = constant("reward/mean", 0.5, steps=50)


def test_a_loss_that_rises_while_the_headline_improves_is_a_note():
    def level(*accuracies):
        rows = [*curve("eval/loss", [2.0, 1.0, 1.2, 1.3]), *evals(*accuracies, every=1)]
        for row, step in zip(rows[4:], range(1, 5), strict=True):
            row["step"] = step
        return evaluation.held_out_loss(history(rows, kind="sft")).level

    assert level(0.1, 0.5, 0.6, 0.7) == "note"
    assert level(0.1, 0.5, 0.5, 0.4) == "warning"


def test_a_critic_that_predicts_the_same_everywhere_is_dead_whatever_its_sign():
    def rule(size):
        values = [size * (-1) ** step for step in range(40)]
        return sampler.critic(history(curve("critic/explained_variance", values), evals(0.2, 0.95))).rule

    assert rule(at.CONSTANT_CRITIC / 2) == "dead-critic"

    noise = history(curve("critic/explained_variance", [0.05] * 40), evals(0.2, 0.95))
    assert sampler.critic(noise).rule == "critic"


def test_a_low_rate_is_an_alarm_only_where_nothing_is_learned():
    config = NEW | {"optimizer": {"lr": at.SLOW_RATE * 1e-3 / 2}}
    assert progress.slow_rate(history(evals(0.3, 0.3), config=config)).level == "warning"
    assert progress.slow_rate(history(evals(0.3, 0.6), config=config)) is None
    assert progress.slow_rate(history(evals(0.3, 0.3), config=NEW)) is None
    assert progress.slow_rate(history(evals(0.3, 0.3), config=config, steps=100)) is None  # a tenth of the run


def test_a_high_rate_is_an_alarm_only_where_nothing_is_learned():
    config = NEW | {"optimizer": {"lr": at.FAST_RATE * 1e-3 * 1.1}}
    assert progress.fast_rate(history(evals(0.3, 0.3), config=config)).level == "warning"
    assert progress.fast_rate(history(evals(0.3, 0.6), config=config)) is None
    assert progress.fast_rate(history(evals(0.3, 0.3), config=NEW)) is None


@pytest.mark.parametrize(("last", "rule"), [(0.69, "slow-rate"), (0.6, None)])
def test_a_ranking_that_rises_while_the_loss_stands_is_nothing_learned(last, rule):
    at_rate = NEW | {"optimizer": {"lr": 1e-7}}
    rows = [*evals(0.5, 0.8), *ramp("loss", 0.693, last)]
    found = progress.slow_rate(history(rows, kind="preference", config=at_rate))
    assert (None if found is None else found.rule) == rule


def test_a_narrow_clip_range_that_clips_many_tokens_is_an_alarm():
    rows = constant("clip_fraction", 0.25)
    narrow = {"algorithm": {"clip": {"low": 1e-3, "high": 1e-3}}}
    assert updates.clipping(history(rows)).level == "note"
    assert updates.clipping(history(rows, config=narrow)).level == "warning"
    assert updates.clipping(history(rows, config=narrow)).causes[0] == "clip-range-too-small"


def test_a_held_out_loss_that_falls_at_every_evaluation_is_learning_however_slow():
    rows = constant("loss", 0.5)
    steady, wavering = curve("eval/loss", [0.5, 0.493, 0.488]), curve("eval/loss", [0.5, 0.488, 0.493])
    assert preferences.loss_stands(history(rows, kind="preference")).rule == "loss-stands"
    assert preferences.loss_stands(history(rows, wavering, kind="preference")).rule == "loss-stands"
    assert preferences.loss_stands(history(rows, steady, kind="preference")) is None


def test_easy_prompts_are_no_alarm_where_most_are_solved():
    rows = [*constant("groups/zero_variance", 0.7), *constant("groups/all_right", 0.7)]
    assert exploration.zero_variance(history(rows, evals(0.7, 0.72))).level == "warning"
    assert exploration.zero_variance(history(rows, evals(0.7, 0.76))).level == "note"


def test_truncation_from_the_first_step_on_is_critical():
    def level(first):
        return completions.truncation(history(ramp("truncated", first, 1.0), evals(0.3, 0.3))).level

    assert level(0.95) == "critical"
    assert level(0.5) == "warning"


def test_many_failed_rewards_are_critical():
    def level(count):
        config = {"rollout": {"prompts": 10, "group": 4}}
        return rewards.failed_rewards(history([{"step": 5, "reward/failures": count}], config=config)).level

    assert level(10) == "warning"  # 10 of 200 rollouts
    assert level(11) == "critical"
