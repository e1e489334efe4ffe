"""Health checks on the metrics of a run, with advice. Pure: rows in, sentences out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from whet.evaluate.measures import Measure, headline, measure_of
from whet.report.formatting import number, percent
from whet.report.series import Rows, Series, series

Level = Literal["ok", "note", "warning"]

RECENT = 20  # window of "now", if the run has at least twice as many steps
FEW = 5  # steps averaged as the start
ACCURACY = measure_of("eval/accuracy")
SOLVED = 0.9  # held-out accuracy of a nearly solved task

ZERO_VARIANCE = (0.25, 0.5)  # shares: note from the first, warning from the second
TRUNCATED = (0.05, 0.2)
CLIPPED = (0.2, 0.4)
KL = (0.5, 2.0)  # nats per token
MISMATCH = (1e-3, 0.5)  # nats; different precisions differ by 0.1, stale weights by more
SURE = 0.1  # nats a token, as if the likeliest one had 98 %: the rollouts of a prompt are much alike
DETERMINISTIC = 0.02  # nats a token, as if the likeliest one had 99.7 %: most rollouts of 100 tokens are the same
FALL = 0.1  # of the entropy at the start: a collapse where little is left in nats, too
RISE = 2.0  # times the entropy at the start
LONGER = 1.5  # times the length at the start
SPIKE = 10.0  # times the median gradient norm
OVERFIT = 1.05  # times the best held-out loss
LEARNED = 0.02  # relative fall of a loss that counts as learning


@dataclass(frozen=True, slots=True)
class HealthFinding:
    level: Level
    sentence: str


def findings(metrics: Rows) -> list[HealthFinding]:
    """All findings, warnings first."""
    found = [finding for rule in RULES if (finding := rule(metrics)) is not None]
    return sorted(found, key=lambda finding: ("warning", "note", "ok").index(finding.level))


def verdict(metrics: Rows, chosen_by: str = "") -> list[HealthFinding]:
    """Whether the held-out result shows that something was learned; also by the metric that chose the best model."""
    found = [held_out_result(metrics), held_out_loss(metrics)]
    other = held_out_result(metrics, measure_of(chosen_by)) if chosen_by else None
    return list(dict.fromkeys(finding for finding in (*found, other) if finding is not None))


def held_out_result(metrics: Rows, measure: Measure | None = None) -> HealthFinding | None:
    """First against last evaluation of a measure (the headline), by their intervals; a loss has its own rule."""
    measure = measure or next((one for row in metrics if (one := headline(row)) is not None), None)
    if measure is None:
        return HealthFinding("note", "no held-out evaluation" if metrics else "nothing is recorded yet")
    ends = _ends(metrics, measure)
    if ends is None or not measure.is_higher_better:
        return None
    (first, last), (low, high) = ends, measure.interval
    before, after = (measure.text(row[measure.metric]) for row in ends)
    if first is last:
        return HealthFinding("note", f"{measure.label} is {after}; one evaluation cannot show progress")
    if last[low] > first[high]:
        return HealthFinding("ok", f"{measure.label} rose from {before} to {after}, intervals apart")
    if last[high] < first[low]:
        return HealthFinding("warning", f"{measure.label} fell from {before} to {after}, intervals apart")
    if last[measure.metric] == first[measure.metric]:
        change = f"is {after}, as before training"
    else:
        change = f"went from {before} to {after}: intervals overlap, may be chance"
    return HealthFinding("note", f"{measure.label} {change}")


def held_out_loss(metrics: Rows) -> HealthFinding | None:
    """Overfitting: the held-out loss rises again; of a bidirectional model its bound, or its loss at masked tokens."""
    names = {"eval/loss": "loss", "eval/bound": "bound", "eval/masked_loss": "masked loss"}
    loss, what = next(
        ((found, what) for name, what in names.items() if len(found := series(metrics, name))), (series([], ""), "")
    )
    if len(loss) < 2:
        return None
    best = min(range(len(loss)), key=loss.values.__getitem__)
    first, last = loss.values[0], loss.values[-1]
    if last > OVERFIT * loss.values[best]:
        low = f"{loss.values[best]:.3g} at step {loss.steps[best]}"
        return HealthFinding("warning", f"held-out {what} rose from {low} to {last:.3g}: over-fitting, lower steps")
    if last < first * (1 - LEARNED):
        return HealthFinding("ok", f"held-out {what} fell from {first:.3g} to {last:.3g}")
    return HealthFinding("note", f"held-out {what} went from {first:.3g} to {last:.3g}: little was learned")


def reward_hacking(metrics: Rows) -> HealthFinding | None:
    """The reward rises while held-out accuracy falls."""
    ends, reward = _ends(metrics), series(metrics, "reward/mean")
    if ends is None or len(reward) < 2 * FEW or ends[0] is ends[1]:
        return None
    first, last = _start(reward), _now(reward)
    if last <= first or ends[1]["eval/accuracy"] >= ends[0]["eval/accuracy_low"]:
        return None
    before, after = (ACCURACY.text(row["eval/accuracy"]) for row in ends)
    return HealthFinding(
        "warning",
        f"reward rose from {first:.3g} to {last:.3g} while held-out accuracy fell from {before} to {after}: "
        "look for reward hacking",
    )


def silent_reward(metrics: Rows) -> HealthFinding | None:
    """A constant reward gives no learning signal."""
    reward = series(metrics, "reward/mean")
    if len(reward) < FEW or max(reward.values) > min(reward.values):
        return None
    stuck = f"reward was {reward.values[0]:.3g} in all {len(reward)} steps"
    return HealthFinding("warning", f"{stuck}: no rollout was better than another, so nothing could be learned")


def zero_variance(metrics: Rows) -> HealthFinding | None:
    """Groups with equal rewards have no gradient."""
    share = series(metrics, "groups/zero_variance")
    if not len(share):
        return None
    now = _now(share)
    sentence = f"{percent(now)} of groups in {_last_steps(share)} had zero variance"
    if now < ZERO_VARIANCE[0]:
        return HealthFinding("ok", f"{sentence}: most prompts teach something")
    if _solved(metrics):
        return HealthFinding("note", f"{sentence}: the task is nearly solved and little is left to learn from")
    return HealthFinding(_level(now, ZERO_VARIANCE), f"{sentence}: the prompts are too easy or too hard")


def truncation(metrics: Rows) -> HealthFinding | None:
    """Completions that reached rollout.max_tokens; with a reward for every token they are meant to."""
    share = series(metrics, "truncated")
    if not len(share) or len(series(metrics, "tokens/match")):
        return None
    now = _now(share)
    sentence = f"{percent(now)} of completions in {_last_steps(share)} were truncated"
    advice = "" if now < TRUNCATED[0] else ": raise rollout.max_tokens or reward shorter answers"
    return HealthFinding(_level(now, TRUNCATED), sentence + advice)


def entropy(metrics: Rows) -> HealthFinding | None:
    """Entropy collapse, or divergence into noise."""
    curve = series(metrics, "entropy")
    if len(curve) < 2 * FEW:
        return None
    # A collapse takes a few steps and does not revert, so a longer window would average it away.
    first, last = _start(curve), sum(curve.values[-FEW:]) / FEW
    moved = f"from {first:.2g} to {last:.2g} nats a token in {curve.steps[-1] - curve.steps[0]} steps"
    if last < SURE:
        return _low_entropy(first, last, moved, is_solved=_solved(metrics))
    if last > RISE * first:
        return HealthFinding("warning", f"entropy rose {moved}: the policy drifts into noise, lower optimizer.lr")
    return HealthFinding("ok", f"entropy went {moved}: still exploring")


def _low_entropy(first: float, last: float, moved: str, *, is_solved: bool) -> HealthFinding:
    if last > first / 2:
        return HealthFinding("note", f"entropy went {moved}: low from the start, so rollouts are much alike")
    if is_solved:
        return HealthFinding("note", f"entropy fell {moved}: the policy is sure, and right; it explores no more")
    if last >= max(DETERMINISTIC, FALL * first):
        return HealthFinding("note", f"entropy fell {moved}: the policy explores little")
    return HealthFinding(
        "warning",
        f"entropy fell {moved}: collapse, the rollouts of a prompt are nearly the same; lower optimizer.lr, or set "
        "algorithm.entropy.floor or algorithm.kl.coefficient",
    )


def kl_to_reference(metrics: Rows) -> HealthFinding | None:
    """Distance from the reference."""
    curve = series(metrics, "kl")
    if not len(curve):
        return None
    now = _now(curve)
    advice = {"ok": "", "note": ": well away from its start", "warning": ": far away, raise algorithm.kl.coefficient"}
    level = _level(now, KL)
    return HealthFinding(level, f"the policy is {now:.2g} nats per token from the reference{advice[level]}")


def agreement(metrics: Rows) -> HealthFinding | None:
    """Train-inference mismatch of log-probs."""
    curve = series(metrics, "mismatch/max")
    if not len(curve):
        return None
    worst = max(curve.values)
    lag = max(series(metrics, "staleness/max").values, default=0)
    if lag:  # the workers have proved their weights; what is left is the training in between
        steps = "1 step" if lag == 1 else f"{lag:g} steps"
        return HealthFinding(
            "ok", f"rollouts are up to {steps} stale, and the policy has moved by at most {number(worst)} nats since"
        )
    level = _level(worst, MISMATCH)
    verdict = {
        "ok": "fine",
        "note": "different kernels or precision; algorithm.importance_correction helps",
        "warning": "stale weights or another sampling distribution",
    }
    return HealthFinding(level, f"sampler and trainer disagree by at most {number(worst)} nats: {verdict[level]}")


def clipping(metrics: Rows) -> HealthFinding | None:
    """Share of tokens with a clipped ratio."""
    curve = series(metrics, "clip_fraction")
    if not len(curve) or _now(curve) < CLIPPED[0]:
        return None
    now = _now(curve)
    advice = "lower optimizer.lr, update.epochs or update.minibatches"
    return HealthFinding(_level(now, CLIPPED), f"{percent(now)} of tokens were clipped: {advice}")


def longer_without_gain(metrics: Rows) -> HealthFinding | None:
    """Length grows without a gain in accuracy."""
    length, ends = series(metrics, "length/mean"), _ends(metrics)
    if len(length) < 2 * FEW or ends is None or ends[0] is ends[1] or _start(length) <= 0:
        return None
    factor = _now(length) / _start(length)
    if factor < LONGER or ends[1]["eval/accuracy"] > ends[0]["eval/accuracy_high"]:
        return None
    return HealthFinding(
        "warning", f"length grew {factor:.1f}× while held-out accuracy did not rise: padding, not thinking"
    )


def gradient_spikes(metrics: Rows) -> HealthFinding | None:
    """Gradient norms far above the median."""
    norm = series(metrics, "grad_norm")
    if len(norm) < 2 * FEW:
        return None
    typical = sorted(norm.values)[len(norm) // 2]
    worst = max(range(len(norm)), key=norm.values.__getitem__)
    if norm.values[worst] <= SPIKE * typical:
        return None
    size = f"{norm.values[worst]:.3g}, against {typical:.3g} in the median step"
    return HealthFinding("note", f"gradient norm at step {norm.steps[worst]} was {size}")


def silent_parts(metrics: Rows) -> HealthFinding | None:
    """Parts of a reward of several that never change."""
    names = [name for name in (metrics[-1] if metrics else {}) if name.startswith("parts/")]
    curves = {name.removeprefix("parts/"): series(metrics, name) for name in names}
    stuck = [name for name, curve in curves.items() if len(curve) >= FEW and len(set(curve.values)) == 1]
    if not stuck or len(names) < 2:
        return None
    what = " and ".join(f"{name} ({curves[name].values[0]:.3g})" for name in stuck)
    return HealthFinding("warning", f"the reward part {what} was the same in all steps, so it taught nothing")


def lost_numbers(metrics: Rows) -> HealthFinding | None:
    """Values logged as null because they were not finite."""
    lost = [row["step"] for row in metrics if any(row.get(name, 0) is None for name in ("loss", "grad_norm", "kl"))]
    if not lost:
        return None
    count = f"{len(lost)} step" + ("s" if len(lost) > 1 else "")
    return HealthFinding("warning", f"{count} had a loss, gradient norm or KL that is not finite, first step {lost[0]}")


def failed_rewards(metrics: Rows) -> HealthFinding | None:
    """Completions on which the reward failed, where the recipe allows it."""
    failed = {row["step"]: int(row["reward/failures"]) for row in metrics if row.get("reward/failures")}
    if not failed:
        return None
    count = sum(failed.values())
    what = f"{count} rollout" + ("s" if count > 1 else "")
    return HealthFinding(
        "warning", f"the reward failed on {what}, first in step {min(failed)}, which are left out: see failures/"
    )


RULES = (
    failed_rewards,
    held_out_result,
    held_out_loss,
    reward_hacking,
    silent_reward,
    silent_parts,
    lost_numbers,
    zero_variance,
    truncation,
    entropy,
    kl_to_reference,
    agreement,
    clipping,
    longer_without_gain,
    gradient_spikes,
)


def _ends(metrics: Rows, measure: Measure = ACCURACY) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """First and last row with this measure and its interval; the same row twice if there is one."""
    names = (measure.metric, *measure.interval)
    rows = [row for row in metrics if all(row.get(name) is not None for name in names)]
    return (rows[0], rows[-1]) if rows else None


def _solved(metrics: Rows) -> bool:
    ends = _ends(metrics)
    return ends is not None and ends[1]["eval/accuracy"] >= SOLVED


def _level(value: float, limits: tuple[float, float]) -> Level:
    return "ok" if value < limits[0] else "note" if value < limits[1] else "warning"


def _start(curve: Series) -> float:
    return sum(curve.values[:FEW]) / len(curve.values[:FEW])


def _now(curve: Series) -> float:
    count = _recent(curve)
    return sum(curve.values[-count:]) / count


def _last_steps(curve: Series) -> str:
    count = _recent(curve)
    return "the last step" if count == 1 else f"the last {count} steps"


def _recent(curve: Series) -> int:
    # At most half of the steps, so that "now" does not overlap the start.
    return min(RECENT, (len(curve) + 1) // 2)
