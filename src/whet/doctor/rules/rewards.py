"""Rules on the reward: constant, noisy, hacked, or paid for length and repetition."""

from __future__ import annotations

from whet.doctor import thresholds as at
from whet.doctor.findings import Evidence, Finding
from whet.doctor.history import FEW, RISING, SURE, History, Row, last_steps, moved, now, start
from whet.doctor.rules.levels import newest
from whet.doctor.rules.rollout_evidence import largest, reward
from whet.doctor.rules.rollout_evidence import length as tokens_of
from whet.doctor.rules.rule import LONG, ONLINE, SHORT, USUAL, Rule
from whet.evaluate.measures import Measure
from whet.number_format import number, percent
from whet.runs.series import Series

LATE = 0.6  # of the steps


def silent_reward(history: History) -> Finding | None:
    """A constant reward gives no learning signal."""
    reward, spread = history.series("reward/mean"), history.series("reward/std")
    if len(reward) < FEW or max(reward.values) > min(reward.values) or max(spread.values, default=0.0) > 0:
        return None
    stuck = f"reward was {reward.values[0]:.3g} in all {len(reward)} steps"
    return Finding(
        rule="constant-reward",
        level="critical",
        sentence=f"{stuck}: no rollout was better than another, so nothing could be learned",
        causes=_of_constant(history),
        evidence=(newest(reward, "reward/mean"),),
    )


def _of_constant(history: History) -> tuple[str, ...]:
    truncated = history.series("truncated")
    if len(truncated) and now(truncated) > 0.9:
        return ("max-tokens-too-small", "no-stop-token", "constant-reward", "prompts-too-hard")
    best = max(history.series("reward/max").values, default=0.0)
    if best >= 1.0 and not history.settings.get("reward.functions"):
        return ("prompts-too-easy", "constant-reward")
    is_blind = history.settings.get("reward.functions") and not history.is_never_right
    return ("constant-reward", "prompts-too-hard") if is_blind else ("prompts-too-hard", "constant-reward")


def saturated_reward(history: History) -> Finding | None:
    """Nearly every rollout gets the highest reward, so little is left to tell rollouts apart."""
    mean, most = history.series("reward/mean"), history.series("reward/max")
    least, spread = history.series("reward/min"), history.series("reward/std")
    if min(map(len, (mean, most, spread))) < 2 * FEW:
        return None
    top, bottom = max(most.values), min((*least.values, *mean.values))
    if top <= bottom or now(mean) < bottom + at.SATURATED * (top - bottom):
        return None
    sentence = f"the reward is {number(now(mean))} of at most {number(top)} on average in {last_steps(mean)}"
    if history.has_gained is not False or history.is_solved:
        return Finding(rule="saturated-reward", level="note", sentence=f"{sentence}: little is left to learn from it")
    return Finding(
        rule="saturated-reward",
        level="warning",
        sentence=f"{sentence}, and the held-out result has not risen: the reward is too easy to get",
        causes=("reward-misspecified", "prompts-too-easy"),
        evidence=(newest(mean, "reward/mean"), *_best_rollout(history)),
    )


def silent_parts(history: History) -> Finding | None:
    """Parts of a reward of several that never change."""
    names = sorted(name for name in (history.rows[-1] if history.rows else {}) if name.startswith("parts/"))
    curves = {name.removeprefix("parts/"): history.series(name) for name in names}
    stuck = [name for name, curve in curves.items() if len(curve) >= 2 * FEW and len(set(curve.values)) == 1]
    if not stuck or len(names) < 2:
        return None
    what = " and ".join(f"{name} ({curves[name].values[0]:.3g})" for name in stuck)
    return Finding(
        rule="silent-part",
        level="note",
        sentence=f"the reward part {what} was the same in all steps, so it taught nothing",
        causes=("constant-reward",),
    )


def one_part(history: History) -> Finding | None:
    """One part of a reward of several decides it, and the task is not learned."""
    names = sorted(name for name in history.names if name.startswith("reward/share/"))
    if len(names) < 2 or history.has_gained:
        return None
    for name in names:
        curve = history.series(name)
        if len(curve) >= 2 * FEW and now(curve) > at.ONE_PART:
            part = name.removeprefix("reward/share/")
            return Finding(
                rule="one-part-rules",
                level="warning",
                sentence=f"{percent(now(curve))} of the variance of the reward comes from its part {part}",
                causes=("one-part-rules", "reward-misspecified"),
                evidence=(newest(curve, name),),
            )
    return None


def reward_hacking(history: History) -> Finding | None:
    """The reward rises while what is correct, on held-out prompts or in training, does not."""
    reward, right = history.series("reward/mean"), history.series("correct")
    if len(reward) < 4 * FEW or not _has_risen(history, reward):
        return None
    rose = f"reward rose from {number(start(reward))} to {number(now(reward))}"
    ends, measure = history.ends(), history.measure
    if ends is not None and measure is not None and measure.is_share and measure.metric != "eval/reward":
        before, after = (measure.text(row[measure.metric]) for row in ends)
        if history.has_lost:
            return _hacked(history, f"{rose} while {measure.label} fell from {before} to {after}", "critical")
        is_right_more_often = moved(right) >= RISING
        is_beginning = history.is_never_right and not history.settings.get("reward.functions")  # partial rewards
        is_excused = is_right_more_often or history.is_solved or is_beginning
        if _is_flat(ends, measure) and _is_late(history) and not is_excused:
            return _hacked(history, f"{rose} while {measure.label} went from {before} to {after}", "warning")
        return None
    if len(right) >= 4 * FEW and moved(right) < -SURE:
        fell = f"the share of correct rollouts fell from {percent(start(right))} to {percent(now(right))}"
        return _hacked(history, f"{rose} while {fell}", "warning")
    return None


def _has_risen(history: History, reward: Series) -> bool:
    """Whether the reward has risen beyond its noise, and by a share of the range of all rewards."""
    values = [value for name in ("reward/min", "reward/mean", "reward/max") for value in history.series(name).values]
    rise = now(reward) - start(reward)
    return moved(reward) >= SURE and rise > at.REWARD_RISE * (max(values) - min(values))


def _hacked(history: History, sentence: str, level: str) -> Finding:
    lengths, correlation = history.series("length/mean"), history.series("length/reward_correlation")
    causes: tuple[str, ...] = ("reward-misspecified", "one-part-rules", "noisy-reward")
    if len(lengths) >= 2 * FEW and len(correlation) and start(correlation) > at.LENGTH_CORRELATION / 2:
        causes = ("reward-pays-length", *causes)
    repeated = history.series("rollouts/repeated_4grams")
    if len(repeated) and now(repeated) > at.REPEATED[0] > start(repeated):
        causes = ("reward-pays-repetition", *causes)
    if history.settings.get("task.path") or history.settings.get("task.paths"):
        causes = (*causes, "duplicated-prompts")
    return Finding(
        rule="reward-hacking",
        level="critical" if level == "critical" else "warning",
        sentence=f"{sentence}: look for reward hacking",
        causes=causes,
        evidence=(newest(history.series("reward/mean"), "reward/mean"), *_best_rollout(history)),
    )


def _best_rollout(history: History) -> tuple[Evidence, ...]:
    """The newest rollout with the highest reward, if possible one that is not correct, to be read."""
    wrong = largest(history, "the best-paid rollout that is wrong", lambda row: None if _is_right(row) else reward(row))
    return wrong or largest(history, "the best-paid rollout", reward)


def _is_right(row: Row) -> bool:
    return bool(row.get("parts", {}).get("correct"))


def _is_flat(ends: tuple[Row, Row], measure: Measure) -> bool:
    """Whether a result has risen by less than its standard error, a quarter of its 95 % interval."""
    low, high = measure.interval
    (before, after), error = (row[measure.metric] for row in ends), (ends[0][high] - ends[0][low]) / 4
    return bool(after - before < error)


def _is_late(history: History) -> bool:
    """Whether results should have followed the reward by now: partial rewards are often learned first."""
    return history.done >= LATE * history.steps


def contradictions(history: History) -> Finding | None:
    """Equal completions of a prompt get different rewards: the reward is random."""
    curve = history.series("reward/contradictions")
    if len(curve) < FEW or now(curve) <= at.CONTRADICTIONS:
        return None
    return Finding(
        rule="contradictory-rewards",
        level="warning",
        sentence=f"{percent(now(curve))} of completions that equal an earlier one of their prompt got another reward "
        f"in {last_steps(curve)}",
        causes=("noisy-reward",),
        evidence=(newest(curve, "reward/contradictions"),),
    )


def longer_without_gain(history: History) -> Finding | None:
    """Length and reward move together while accuracy does not rise."""
    length, reward = history.series("length/mean"), history.series("reward/mean")
    if len(length) < 4 * FEW or start(length) <= 0 or history.has_gained or history.settings.kind != "online":
        return None
    factor, correlation = now(length) / start(length), history.series("length/reward_correlation")
    if factor < at.LONGER or moved(length) < SURE:
        return None
    paid = bool(len(correlation)) and max(start(correlation), now(correlation)) > at.LENGTH_CORRELATION
    if not paid and (history.has_gained is None or moved(reward) < SURE):
        return None
    return Finding(
        rule="length-hacking",
        level="warning",
        sentence=f"length grew {factor:.1f}× while held-out accuracy did not rise: padding, not thinking",
        causes=("reward-pays-length", "reward-misspecified"),
        evidence=(newest(length, "length/mean"), *largest(history, "the longest rollout", tokens_of)),
    )


def failed_rewards(history: History) -> Finding | None:
    """Completions on which the reward failed, where the recipe allows it."""
    failed = {row["step"]: int(row["reward/failures"]) for row in history.rows if row.get("reward/failures")}
    if not failed:
        return None
    count = sum(failed.values())
    what = f"{count} rollout" + ("s" if count > 1 else "")
    sampled = history.done * history.settings.number("rollout.prompts") * history.settings.number("rollout.group", 1)
    return Finding(
        rule="failed-rewards",
        level="critical" if count > at.FAILED_REWARDS * sampled > 0 else "warning",
        sentence=f"the reward failed on {what}, first in step {min(failed)}, which are left out: see failures/",
        causes=("reward-fails",),
        evidence=(Evidence(metric="reward/failures", step=min(failed), text=f"{failed[min(failed)]} failures"),),
    )


REWARDS = (
    Rule(
        look=failed_rewards,
        names=("failed-rewards",),
        symptom="the reward raises or runs out of time",
        reads=(),
        kinds=ONLINE,
    ),
    Rule(
        look=silent_reward,
        names=("constant-reward",),
        symptom="every rollout gets the same reward",
        reads=("reward/mean",),
        steps=SHORT,
        kinds=ONLINE,
    ),
    Rule(
        look=saturated_reward,
        names=("saturated-reward",),
        symptom="nearly every rollout gets the highest reward",
        reads=("reward/mean", "reward/max", "reward/std"),
        steps=USUAL,
        kinds=ONLINE,
    ),
    Rule(
        look=silent_parts,
        names=("silent-part",),
        symptom="a part of the reward never changes",
        reads=(),
        kinds=ONLINE,
    ),
    Rule(
        look=one_part,
        names=("one-part-rules",),
        symptom="one part of the reward decides nearly all of its variance",
        reads=(),
        kinds=ONLINE,
    ),
    Rule(
        look=reward_hacking,
        names=("reward-hacking",),
        symptom="the reward rises while accuracy does not, or falls",
        reads=("reward/mean",),
        steps=LONG,
        kinds=ONLINE,
    ),
    Rule(
        look=contradictions,
        names=("contradictory-rewards",),
        symptom="equal completions of a prompt get different rewards",
        reads=("reward/contradictions",),
        steps=SHORT,
        kinds=ONLINE,
    ),
    Rule(
        look=longer_without_gain,
        names=("length-hacking",),
        symptom="length and reward grow together while accuracy is flat",
        reads=("length/mean", "reward/mean"),
        steps=LONG,
        kinds=ONLINE,
    ),
)
