"""Rules on the policy beside other models: the sampler, the reference, the critic."""

from __future__ import annotations

from whet.doctor import thresholds as at
from whet.doctor.findings import Finding
from whet.doctor.history import FEW, SURE, History, last_steps, moved, now, recent
from whet.doctor.rules.levels import largest, level_of, newest
from whet.doctor.rules.rule import LONG, ONLINE, SHORT, Rule
from whet.number_format import number, percent


def agreement(history: History) -> Finding | None:
    """Mismatch of sampler and trainer: their log-probs of the same tokens."""
    curve, worst = history.series("mismatch/mean"), history.series("mismatch/max")
    if not len(curve) or not len(worst):
        return None
    most = max(worst.values)
    lag = max(history.series("staleness/max").values, default=0)
    if lag:  # the workers have proved their weights; what is left is the training in between
        steps = "1 step" if lag == 1 else f"{lag:g} steps"
        moved_by = f"the policy has moved by at most {number(most)} nats since"
        return Finding(rule="mismatch", level="ok", sentence=f"rollouts are up to {steps} stale, and {moved_by}")
    level = level_of(now(curve), at.MISMATCH)
    if level == "note" and most > at.MISMATCH_WORST and now(curve) > at.MISMATCH[1] / 5:
        level = "warning"
    sentence = f"sampler and trainer disagree by {number(now(curve))} nats a token on average, at most {number(most)}"
    if level == "ok":
        return Finding(rule="mismatch", level=level, sentence=f"{sentence}: fine")
    if level == "note":
        sentence += ": different kernels or precision; algorithm.importance_correction helps"
        return Finding(rule="mismatch", level=level, sentence=sentence)
    grown = len(curve) >= 2 * FEW and now(curve) > at.MISMATCH_GROWTH * curve.values[0]
    growth = ": it grows, so the sampler's weights are stale" if grown else ": another sampling distribution"
    return Finding(
        rule="mismatch",
        level="critical",
        sentence=sentence + growth,
        causes=("stale-sampler", "different-sampling") if grown else ("different-sampling", "stale-sampler"),
        evidence=(newest(curve, "mismatch/mean"), largest(worst, "mismatch/max")),
    )


def effective_samples(history: History) -> Finding | None:
    """Importance weights of which a few carry everything."""
    curve = history.series("importance_correction/effective_tokens")
    if len(curve) < FEW or now(curve) >= at.EFFECTIVE:
        return None
    return Finding(
        rule="effective-samples",
        level="warning",
        sentence=f"the importance weights leave {percent(now(curve))} of the tokens effective in {last_steps(curve)}",
        causes=("stale-sampler", "different-sampling"),
        evidence=(newest(curve, "importance_correction/effective_tokens"),),
    )


def reference_at_start(history: History) -> Finding | None:
    """Policy and reference differ before the first update, although the reference is the start."""
    curve = history.series("kl")
    if not len(curve) or curve.steps[0] > 1 or curve.values[0] <= at.KL_AT_START:
        return None
    own = str(history.settings.get("algorithm.kl.reference", "start")) != "start"
    return Finding(
        rule="reference-differs",
        level="warning",
        sentence=f"the policy was {number(curve.values[0])} nats a token from the reference before the first update"
        + (": the reference is another model" if own else ": it should be 0"),
        causes=("wrong-reference",),
        evidence=(newest(curve, "kl"),),
    )


def kl_to_reference(history: History) -> Finding | None:
    """Distance from the reference."""
    curve = history.series("kl")
    if not len(curve):
        return None
    level = level_of(now(curve), at.KL)
    sentence = f"the policy is {now(curve):.2g} nats a token from the reference"
    if level == "ok":
        return Finding(rule="kl", level=level, sentence=sentence)
    if history.has_gained and level == "warning":
        level = "note"
    causes: tuple[str, ...] = ("kl-coefficient-too-low", "learning-rate-too-high", "wrong-sign")
    if curve.values[0] > at.KL_AT_START and curve.steps[0] <= 1:
        causes = ("wrong-reference", *causes)
    elif history.settings.is_own("algorithm.kl.estimator"):
        causes = ("wrong-sign", *causes[:2])
    return Finding(
        rule="kl",
        level=level,
        sentence=sentence + (": far away" if level == "warning" else ": well away from its start"),
        causes=causes,
        evidence=(newest(curve, "kl"),),
    )


def held_by_reference(history: History) -> Finding | None:
    """The KL penalty outweighs the reward: the policy stays where the reference is."""
    curve, coefficient = history.series("kl"), history.series("kl_coefficient")
    reward, norm = history.series("reward/mean"), history.series("grad_norm")
    if len(curve) < 4 * FEW or not len(coefficient) or now(coefficient) < 1.0 or history.has_gained:
        return None
    if moved(reward) >= SURE or now(curve) > at.KL[0] or not len(norm) or now(norm) == 0:
        return None
    return Finding(
        rule="held-by-reference",
        level="warning",
        sentence=f"with a KL coefficient of {number(now(coefficient))} the policy stays within {number(now(curve))} "
        "nats a token of the reference, and the reward does not rise",
        causes=("kl-coefficient-too-high", "wrong-reference"),
        evidence=(newest(curve, "kl"),),
    )


def critic(history: History) -> Finding | None:
    """A critic that explains nothing of the returns adds noise to advantages instead of removing it."""
    curve = history.series("critic/explained_variance")
    if len(curve) < 4 * FEW or len(curve) < history.settings.number("critic.warmup_steps") + 4 * FEW:
        return None
    value, newest_ones = now(curve), curve.values[-recent(curve) :]
    is_constant = max(map(abs, newest_ones)) < at.CONSTANT_CRITIC
    if value > at.UNEXPLAINED and not is_constant:
        sentence = f"the critic explains {percent(value)} of the variance of the returns"
        return Finding(rule="critic", level="ok", sentence=sentence)
    if history.is_solved and not is_constant:
        return None
    is_learning = history.has_gained or moved(history.series("reward/mean")) >= SURE
    settings = history.settings
    is_slow = settings.number("critic.lr", settings.rate) < at.SLOW_RATE * settings.usual_rate
    verdict = "it predicts the same for every token" if is_constant else "it predicts no better than a constant"
    return Finding(
        rule="dead-critic",
        level="note" if is_learning and not (is_constant and is_slow) else "warning",
        sentence=f"the critic's explained variance was {number(value)} in {last_steps(curve)}: {verdict}",
        causes=("critic-not-learning",),
        evidence=(newest(curve, "critic/explained_variance"),),
    )


SAMPLER = (
    Rule(
        look=agreement,
        names=("mismatch",),
        symptom="sampler and trainer disagree on the log-probs of the same tokens, or begin to (stale weights)",
        reads=("mismatch/mean", "mismatch/max"),
        kinds=ONLINE,
    ),
    Rule(
        look=effective_samples,
        names=("effective-samples",),
        symptom="importance weights leave few tokens effective",
        reads=("importance_correction/effective_tokens",),
        steps=SHORT,
        kinds=ONLINE,
    ),
    Rule(
        look=reference_at_start,
        names=("reference-differs",),
        symptom="policy and reference differ before the first update",
        reads=("kl",),
        kinds=ONLINE,
    ),
    Rule(
        look=kl_to_reference,
        names=("kl",),
        symptom="the KL to the reference blows up",
        reads=("kl",),
        kinds=ONLINE,
    ),
    Rule(
        look=held_by_reference,
        names=("held-by-reference",),
        symptom="the KL penalty holds the policy at the reference",
        reads=("kl", "kl_coefficient"),
        steps=LONG,
        kinds=ONLINE,
    ),
    Rule(
        look=critic,
        names=("critic", "dead-critic"),
        symptom="the critic explains nothing of the returns",
        reads=("critic/explained_variance",),
        steps=LONG,
        kinds=ONLINE,
    ),
)
