"""Rules on exploration: entropy, groups without variance, prompts and rollouts that repeat."""

from __future__ import annotations

from whet.doctor import thresholds as at
from whet.doctor.findings import Evidence, Finding
from whet.doctor.history import FEW, History, Row, last_steps, now, start
from whet.doctor.rules.levels import level_of, newest
from whet.doctor.rules.rollout_evidence import shown
from whet.doctor.rules.rule import ONLINE, SHORT, USUAL, Rule
from whet.number_format import percent


def entropy(history: History) -> Finding | None:
    """Entropy collapse, or divergence into noise."""
    curve = history.series("entropy")
    if len(curve) < 2 * FEW or history.settings.kind != "online":
        return None
    # A collapse takes a few steps and does not revert, so a longer window would average it away.
    first, last = start(curve), sum(curve.values[-FEW:]) / FEW
    moved = f"from {first:.2g} to {last:.2g} nats a token in {curve.steps[-1] - curve.steps[0]} steps"
    if last < at.SURE:
        return _low_entropy(history, first, last, moved)
    if last > at.RISE * first:
        return Finding(
            rule="entropy-rise",
            level="warning",
            sentence=f"entropy rose {moved}: the policy drifts into noise",
            causes=("entropy-bonus-too-high", "learning-rate-too-high", "wrong-sign", "temperature-too-high"),
            evidence=(newest(curve, "entropy"),),
        )
    return Finding(rule="entropy", level="ok", sentence=f"entropy went {moved}: still exploring")


def _low_entropy(history: History, first: float, last: float, moved: str) -> Finding:
    if first < at.SURE or last > first / 2:
        return _low_from_the_start(history, moved)
    if history.is_solved or history.has_gained:
        sentence = f"entropy fell {moved}: the policy is sure, and it has learned; it explores no more"
        return Finding(rule="entropy", level="note", sentence=sentence)
    if last >= max(at.DETERMINISTIC, at.FALL * first):
        return Finding(rule="entropy", level="note", sentence=f"entropy fell {moved}: the policy explores little")
    return Finding(
        rule="entropy-collapse",
        level="warning",
        sentence=f"entropy fell {moved}: collapse, the rollouts of a prompt are nearly the same",
        causes=("learning-rate-too-high", "reward-misspecified", "too-many-updates", "temperature-too-low"),
        evidence=(newest(history.series("entropy"), "entropy"),),
    )


def _low_from_the_start(history: History, moved: str) -> Finding:
    alike = history.series("rollouts/duplicates")
    is_stuck = len(alike) and start(alike) > at.DUPLICATE_ROLLOUTS and not history.has_gained and not history.is_solved
    return Finding(
        rule="low-entropy",
        level="warning" if is_stuck else "note",
        sentence=f"entropy went {moved}: low from the start, so rollouts are much alike",
        causes=("temperature-too-low",) if is_stuck else (),
        evidence=(newest(history.series("entropy"), "entropy"),),
    )


def near_uniform(history: History) -> Finding | None:
    """Sampling so random that the policy's own preferences hardly matter."""
    temperature = history.settings.number("rollout.temperature", 1.0)
    curve = history.series("entropy")
    if temperature <= 1.0 or len(curve) < 2 * FEW or history.has_gained:
        return None
    ended = history.series("reward/mean")
    if not len(ended) or now(curve) < 0.8 * start(curve) or temperature < 1.4:
        return None
    return Finding(
        rule="near-uniform-sampling",
        level="warning",
        sentence=f"entropy stays at {now(curve):.2g} nats a token with rollout.temperature {temperature:g}, and the "
        "held-out result does not rise: rollouts are mostly noise",
        causes=("temperature-too-high",),
        evidence=(newest(curve, "entropy"),),
    )


def zero_variance(history: History) -> Finding | None:
    """Groups with equal rewards have no gradient; all right or all wrong ones need other prompts."""
    share = history.series("groups/zero_variance")
    if not len(share):
        return None
    current = now(share)
    sentence = f"{percent(current)} of groups in {last_steps(share)} had zero variance"
    if current < at.ZERO_VARIANCE[0]:
        return Finding(rule="zero-variance", level="ok", sentence=f"{sentence}: most prompts teach something")
    if history.is_solved:
        sentence += ": the task is nearly solved and little is left to learn from"
        return Finding(rule="zero-variance", level="note", sentence=sentence)
    is_early = len(share) < 2 * FEW or (history.done < history.steps / 3 and current < at.NO_VARIANCE)
    level = "note" if is_early else level_of(current, at.ZERO_VARIANCE)
    right, wrong = history.series("groups/all_right"), history.series("groups/all_wrong")
    verdict = "prompts are too easy or too hard"
    causes: tuple[str, ...] = ("prompts-too-hard", "prompts-too-easy")
    entropy = history.series("entropy")
    if len(entropy) and now(entropy) < at.SURE:
        causes = ("temperature-too-low", *causes)
    if len(right) and now(right) > at.ONE_SIDED * current:
        verdict, causes = (
            "nearly all of them right in every rollout, as with prompts that are too easy",
            ("prompts-too-easy", "temperature-too-low"),
        )
    elif len(wrong) and now(wrong) > at.ONE_SIDED * current:
        verdict, causes = (
            "nearly all of them wrong in every rollout, as with prompts that are too hard",
            _of_wrong(history),
        )
    is_easy = causes[0] == "prompts-too-easy" and history.result >= at.EASY
    if history.has_gained or is_easy:
        level = "note"
    return Finding(
        rule="zero-variance",
        level=level,
        sentence=f"{sentence}: {verdict}",
        causes=causes,
        evidence=(newest(share, "groups/zero_variance"), *shown(history, "a rollout that taught nothing", _is_even)),
    )


def _is_even(row: Row) -> bool:
    """Whether a rollout was no better or worse than those of its group."""
    return row.get("reward") is not None and row.get("advantage") == 0


def _of_wrong(history: History) -> tuple[str, ...]:
    """Why whole groups are wrong: the prompts, unless completions are truncated or the same."""
    truncated, alike = history.series("truncated"), history.series("rollouts/duplicates")
    if len(truncated) and now(truncated) > 0.9:
        return ("max-tokens-too-small", "no-stop-token", "prompts-too-hard")
    if len(alike) and now(alike) > at.DUPLICATE_ROLLOUTS:
        return ("learning-rate-too-high", "temperature-too-low", "prompts-too-hard")
    return ("prompts-too-hard", "constant-reward")


def duplicate_prompts(history: History) -> Finding | None:
    """The same prompts again and again."""
    curve = history.series("prompts/duplicates")
    if len(curve) < FEW or now(curve) <= at.DUPLICATE_PROMPTS:
        return None
    return Finding(
        rule="duplicate-prompts",
        level="warning",
        sentence=f"{percent(now(curve))} of the prompts of a step stood in it before: the data has few different ones",
        causes=("duplicated-prompts",),
        evidence=(newest(curve, "prompts/duplicates"),),
    )


def duplicate_rollouts(history: History) -> Finding | None:
    """Rollouts of a group that are all the same from the start: nothing can be compared."""
    curve = history.series("rollouts/duplicates")
    if len(curve) < 2 * FEW or start(curve) <= at.DUPLICATE_ROLLOUTS or history.is_solved or history.has_gained:
        return None
    return Finding(
        rule="duplicate-rollouts",
        level="warning",
        sentence=f"{percent(start(curve))} of the rollouts of the first steps equal another one of their prompt",
        causes=("temperature-too-low", "prompts-too-easy"),
        evidence=(
            Evidence(metric="rollouts/duplicates", step=curve.steps[0], text=f"{start(curve):.2g} at the start"),
        ),
    )


EXPLORATION = (
    Rule(
        look=entropy,
        names=("entropy", "entropy-collapse", "entropy-rise", "low-entropy"),
        symptom="the entropy collapses, rises into noise, or is next to nothing from the start",
        reads=("entropy",),
        steps=USUAL,
        kinds=ONLINE,
    ),
    Rule(
        look=near_uniform,
        names=("near-uniform-sampling",),
        symptom="a high temperature keeps rollouts near noise and nothing is learned",
        reads=("entropy", "reward/mean"),
        steps=USUAL,
        kinds=ONLINE,
    ),
    Rule(
        look=zero_variance,
        names=("zero-variance",),
        symptom="groups have equal rewards: all right, or all wrong",
        reads=("groups/zero_variance",),
        kinds=ONLINE,
    ),
    Rule(
        look=duplicate_prompts,
        names=("duplicate-prompts",),
        symptom="the same prompts are drawn again and again",
        reads=("prompts/duplicates",),
        steps=SHORT,
        kinds=ONLINE,
    ),
    Rule(
        look=duplicate_rollouts,
        names=("duplicate-rollouts",),
        symptom="the rollouts of a prompt are identical",
        reads=("rollouts/duplicates",),
        steps=USUAL,
        kinds=ONLINE,
    ),
)
