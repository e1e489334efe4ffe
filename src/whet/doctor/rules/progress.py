"""Rules on runs that stand still: weights that hardly change, learning rates far from the usual ones, plateaus."""

from __future__ import annotations

from whet.doctor import thresholds as at
from whet.doctor.findings import Evidence, Finding
from whet.doctor.history import FEW, RISING, SURE, History, last_steps, moved, now, recent, start
from whet.doctor.rules.levels import newest, typical
from whet.doctor.rules.rule import LONG, ONLINE, USUAL, Rule
from whet.number_format import number

CHANCE = 1.0  # standard errors of the held-out result: by so much it may differ from the start, and be where it was


def still_weights(history: History) -> Finding | None:
    """The weights hardly change, and nothing is learned."""
    curve = history.series("weights/change")
    if len(curve) < 2 * FEW or _has_learned(history):
        return None
    change = typical(curve.values[-recent(curve) :])
    updates = history.series("updates")
    if change >= at.STILL_WEIGHTS or (len(updates) and now(updates) == 0):
        return None
    return Finding(
        rule="still-weights",
        level="warning",
        sentence=f"the weights changed by {number(100 * change)} % of their norm in a typical one of "
        f"{last_steps(curve)}: too little to learn anything",
        causes=("learning-rate-too-low",),
        evidence=(newest(curve, "weights/change"),),
    )


def _has_learned(history: History) -> bool:
    """Whether the held-out result rose; offline the training loss must have fallen too.

    A ranking may follow from differences far too small to matter.
    """
    loss = history.series("loss")
    if history.settings.kind == "online" or len(loss) < 2 * FEW:
        return bool(history.has_gained)
    return bool(history.has_gained) and now(loss) < (1 - at.LEARNED) * start(loss)


def slow_rate(history: History) -> Finding | None:
    """A learning rate far below the usual one, and a held-out result that stays where it was."""
    settings = history.settings
    if settings.rate >= at.SLOW_RATE * settings.usual_rate or _is_excused(history):
        return None
    return Finding(
        rule="slow-rate",
        level="warning",
        sentence=_stood_still(history),
        causes=("learning-rate-too-low",),
        evidence=_results(history),
    )


def fast_rate(history: History) -> Finding | None:
    """A learning rate far above the usual one, and a held-out result that stays where it was."""
    settings = history.settings
    if settings.rate <= at.FAST_RATE * settings.usual_rate or _is_excused(history):
        return None
    return Finding(
        rule="fast-rate",
        level="warning",
        sentence=_stood_still(history),
        causes=("learning-rate-too-high",),
        evidence=_results(history),
    )


def _is_excused(history: History) -> bool:
    """Whether an unusual rate does no harm that is known yet, or harm that another rule tells."""
    if history.ends() is None or history.done < history.steps / 4:
        return True
    return bool(_has_learned(history) or history.has_lost or history.is_solved)


def _stood_still(history: History) -> str:
    settings, (result,) = history.settings, _results(history)
    return (
        f"optimizer.lr is {number(settings.rate)}, where {number(settings.usual_rate)} is usual, and the held-out "
        f"result went {result.text} in {history.done} steps"
    )


def _results(history: History) -> tuple[Evidence, ...]:
    """The first and the last held-out result."""
    measure, ends = history.measure, history.ends()
    if measure is None or ends is None:
        return ()
    before, after = (measure.text(row[measure.metric]) for row in ends)
    return (Evidence(metric=measure.metric, step=int(ends[1]["step"]), text=f"{before} → {after}"),)


def flat_run(history: History) -> Finding | None:
    """Neither reward nor entropy nor length has moved in a good part of the run, though there were gradients.

    That a slow rise is not proved is no proof of a plateau: a held-out result that rose by more than its standard
    error, or a reward that rose by two of them, is none.
    """
    reward, norm = history.series("reward/mean"), history.series("grad_norm")
    curves = [history.series(name) for name in ("reward/mean", "entropy", "length/mean")]
    curves = [curve for curve in curves if len(curve)]
    if len(reward) < 4 * FEW or len(reward) < history.steps / 2 or history.has_gained or history.is_solved:
        return None
    if not len(norm) or now(norm) == 0 or any(abs(moved(curve)) >= SURE for curve in curves):
        return None
    if max(reward.values) == min(reward.values):
        return None
    if history.risen > CHANCE or moved(reward) >= RISING:
        return None
    return Finding(
        rule="plateau",
        level="warning",
        sentence=f"reward, entropy and length are where they were at the start after {len(reward)} steps",
        causes=("learning-rate-too-low", "kl-coefficient-too-high", "noisy-reward", "prompts-too-hard"),
        evidence=(newest(reward, "reward/mean"),),
    )


PROGRESS = (
    Rule(
        look=still_weights,
        names=("still-weights",),
        symptom="the weights hardly change",
        reads=("weights/change",),
        steps=USUAL,
    ),
    Rule(
        look=slow_rate,
        names=("slow-rate",),
        symptom="the learning rate is far below the usual one and nothing is learned",
        reads=(),
    ),
    Rule(
        look=fast_rate,
        names=("fast-rate",),
        symptom="the learning rate is far above the usual one and nothing is learned",
        reads=(),
    ),
    Rule(
        look=flat_run,
        names=("plateau",),
        symptom="reward, entropy and length stay where they were",
        reads=("reward/mean", "grad_norm"),
        steps=LONG,
        kinds=ONLINE,
    ),
)
