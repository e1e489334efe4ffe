"""Rules on optimizer steps: their size, their direction, clipping, gradients."""

from __future__ import annotations

from whet.doctor import thresholds as at
from whet.doctor.by_kind import of_lost_numbers, of_zero_gradient
from whet.doctor.findings import Evidence, Finding
from whet.doctor.history import FEW, SURE, History, last_steps, moved, now, recent, start
from whet.doctor.rules.levels import largest, level_of, newest, typical
from whet.doctor.rules.rule import LONG, ONLINE, SHORT, USUAL, Rule
from whet.number_format import number, percent


def lost_numbers(history: History) -> Finding | None:
    """Values logged as null because they were not finite."""
    names = ("loss", "grad_norm", "kl")
    lost = [row["step"] for row in history.rows if any(row.get(name, 0) is None for name in names)]
    if not lost:
        return None
    count = f"{len(lost)} step" + ("s" if len(lost) > 1 else "")
    return Finding(
        rule="not-finite",
        level="critical",
        sentence=f"{count} had a loss, gradient norm or KL that is not finite, first step {lost[0]}",
        causes=of_lost_numbers(history.settings),
        evidence=(Evidence(step=int(lost[0]), text=f"step {lost[0]} is not finite"),),
    )


def wrong_sign(history: History) -> Finding | None:
    """The loss pushes log-probs against their advantages: ∂loss/∂log π and A have the same sign."""
    curve = history.series("surrogate/wrong_sign")
    if not len(curve) or now(curve) <= 0.01:
        return None
    return Finding(
        rule="wrong-sign",
        level="critical",
        sentence=f"at {percent(now(curve))} of the trained tokens the loss makes tokens with positive advantage less "
        "likely, or those with negative advantage likelier",
        causes=("wrong-sign",),
        evidence=(newest(curve, "surrogate/wrong_sign"),),
    )


def large_changes(history: History) -> Finding | None:
    """The weights change by a large share in a step."""
    curve = history.series("weights/change")
    # A step of loop off_policy has as many updates as environment steps, a thousand or so.
    if len(curve) < FEW or history.settings.get("loop") == "off_policy":
        return None
    level = level_of(typical(curve.values[-recent(curve) :]), at.WEIGHTS_CHANGE)
    if level == "ok":
        return None
    size = percent(typical(curve.values[-recent(curve) :]))
    return Finding(
        rule="large-changes",
        level=level,
        sentence=f"the weights changed by {size} of their norm in a typical one of {last_steps(curve)}",
        causes=("learning-rate-too-high",),
        evidence=(largest(curve, "weights/change"),),
    )


def policy_kl(history: History) -> Finding | None:
    """How far the policy moves within a step: KL(policy before ‖ policy after its updates)."""
    curve = history.series("approx_kl")
    if len(curve) < FEW:
        return None
    level = level_of(now(curve), at.POLICY_KL)
    if level == "ok":
        return None
    return Finding(
        rule="large-steps",
        level=level,
        sentence=f"the updates of a step moved the policy by {number(now(curve))} nats a token in {last_steps(curve)}",
        causes=_of_large_steps(history),
        evidence=(largest(curve, "approx_kl"),),
    )


def clipping(history: History) -> Finding | None:
    """Share of tokens with a clipped ratio."""
    curve = history.series("clip_fraction")
    if len(curve) < FEW or now(curve) < at.CLIPPED[0]:
        return None
    moves, settings = history.series("approx_kl"), history.settings
    is_narrow = min(settings.number(f"algorithm.clip.{end}", 0.2) for end in ("low", "high")) < at.NARROW
    is_still = len(moves) and now(moves) < at.POLICY_KL[0] / 10
    narrow = ("clip-range-too-small",) if is_narrow or is_still else ()
    return Finding(
        rule="clipping",
        level="warning" if is_narrow else level_of(now(curve), at.CLIPPED),
        sentence=f"{percent(now(curve))} of tokens were clipped in {last_steps(curve)}, so they taught nothing",
        causes=(*narrow, *_of_large_steps(history)),
        evidence=(largest(curve, "clip_fraction"),),
    )


def ratios(history: History) -> Finding | None:
    """Importance ratios far from 1 before clipping."""
    curve = history.series("ratio/max")
    if len(curve) < FEW or now(curve) <= at.RATIO:
        return None
    return Finding(
        rule="large-ratios",
        level="note",
        sentence=f"the largest importance ratio was {number(now(curve))} on average in {last_steps(curve)}",
        causes=_of_large_steps(history),
        evidence=(largest(curve, "ratio/max"),),
    )


def _of_large_steps(history: History) -> tuple[str, ...]:
    if history.settings.updates_a_step > 1:
        return ("too-many-updates", "learning-rate-too-high")
    return ("learning-rate-too-high", "too-many-updates")


def skipped_updates(history: History) -> Finding | None:
    """Steps without an update, or with far fewer than the recipe asks for."""
    curve, wanted = history.series("updates"), history.settings.updates_a_step
    if len(curve) < 2 * FEW:
        return None
    values = curve.values[-recent(curve) :]
    idle, made = sum(value == 0 for value in values) / len(values), sum(values) / len(values)
    limited = history.settings.get("update.target_kl") is not None
    if idle < at.IDLE and not (limited and made < at.SKIPPED * wanted):
        return None
    what = f"{percent(idle)} of {last_steps(curve)} made no update"
    if idle < at.IDLE:
        what = f"{number(made)} of {wanted} optimizer steps were made in a typical one of {last_steps(curve)}"
    no_groups = _drops_groups(history)
    others = ("prompts-too-hard", "prompts-too-easy", "constant-reward") if no_groups else ("learning-rate-too-high",)
    return Finding(
        rule="skipped-updates",
        level="critical" if idle > 0.9 else "warning",
        sentence=f"{what}: " + ("no group was kept" if no_groups else "update.target_kl ended the others"),
        causes=others if no_groups else ("target-kl-too-small", *others),
        evidence=(newest(curve, "updates"),),
    )


def _drops_groups(history: History) -> bool:
    kept = history.series("groups/kept")
    return bool(len(kept)) and now(kept) < 0.1


def zero_gradient(history: History) -> Finding | None:
    """Steps whose gradient is exactly zero, though an update was made."""
    norm = history.series("grad_norm")
    if len(norm) < 2 * FEW or history.is_solved:
        return None
    values = norm.values[-recent(norm) :]
    share = sum(value == 0 for value in values) / len(values)
    level = level_of(share, at.ZERO_GRADIENT)
    if level == "ok":
        return None
    return Finding(
        rule="zero-gradient",
        level=level,
        sentence=f"the gradient was zero in {percent(share)} of {last_steps(norm)}",
        causes=of_zero_gradient(history.settings, is_never_right=history.is_never_right),
        evidence=(newest(norm, "grad_norm"),),
    )


def gradient_spikes(history: History) -> Finding | None:
    """Gradient norms far above the median."""
    norm = history.series("grad_norm")
    if len(norm) < 2 * FEW:
        return None
    usual = typical(norm.values)
    worst = max(range(len(norm)), key=norm.values.__getitem__)
    if norm.values[worst] <= at.SPIKE * usual:
        return None
    size = f"{norm.values[worst]:.3g}, against {usual:.3g} in the median step"
    return Finding(
        rule="gradient-spike",
        level="note",
        sentence=f"gradient norm at step {norm.steps[worst]} was {size}",
        causes=("learning-rate-too-high",),
        evidence=(largest(norm, "grad_norm"),),
    )


def first_ratios(history: History) -> Finding | None:
    """The ratio of the only update of a step, which weights no update has changed yet: it must be 1."""
    curve, settings = history.series("ratio/max"), history.settings
    if len(curve) < FEW or settings.updates_a_step > 1 or max(history.series("staleness/max").values, default=0):
        return None
    if now(curve) <= 1 + at.RATIO_AT_START:
        return None
    return Finding(
        rule="ratio-at-start",
        level="warning",
        sentence=f"the only update of a step saw importance ratios of up to {number(now(curve))} in "
        f"{last_steps(curve)}: before it they are 1, so the old log-probs are not those of these weights",
        causes=("different-sampling", "stale-sampler"),
        evidence=(largest(curve, "ratio/max"),),
    )


def reward_falls(history: History) -> Finding | None:
    """The reward that is trained on gets worse."""
    curve = history.series("reward/mean")
    if len(curve) < 4 * FEW or moved(curve) > -SURE:
        return None
    first, last = start(curve), now(curve)
    spread = history.series("reward/std")
    scale = max(spread.values, default=0.0)
    if first - last < max(0.1 * abs(first), 0.1 * scale) or first <= last:
        return None
    return Finding(
        rule="reward-falls",
        level="warning",
        sentence=f"the reward that is trained on fell from {number(first)} to {number(last)}",
        causes=("learning-rate-too-high", "wrong-sign", "stale-sampler", "entropy-bonus-too-high", "wrong-reference"),
        evidence=(newest(curve, "reward/mean"),),
    )


UPDATES = (
    Rule(
        look=lost_numbers,
        names=("not-finite",),
        symptom="a loss, gradient norm or KL is not finite",
        reads=(),
    ),
    Rule(
        look=wrong_sign,
        names=("wrong-sign",),
        symptom="the loss makes good tokens less likely",
        reads=("surrogate/wrong_sign",),
        kinds=ONLINE,
    ),
    Rule(
        look=first_ratios,
        names=("ratio-at-start",),
        symptom="the importance ratio of the only update is not 1",
        reads=("ratio/max",),
        steps=SHORT,
        kinds=ONLINE,
    ),
    Rule(
        look=reward_falls,
        names=("reward-falls",),
        symptom="the reward that is trained on falls",
        reads=("reward/mean",),
        steps=LONG,
        kinds=ONLINE,
    ),
    Rule(
        look=large_changes,
        names=("large-changes",),
        symptom="the weights change by a large share in a step",
        reads=("weights/change",),
        steps=SHORT,
    ),
    Rule(
        look=policy_kl,
        names=("large-steps",),
        symptom="the updates of a step move the policy far",
        reads=("approx_kl",),
        steps=SHORT,
        kinds=ONLINE,
    ),
    Rule(
        look=clipping,
        names=("clipping",),
        symptom="many tokens are clipped",
        reads=("clip_fraction",),
        steps=SHORT,
        kinds=ONLINE,
    ),
    Rule(
        look=ratios,
        names=("large-ratios",),
        symptom="importance ratios are far from 1",
        reads=("ratio/max",),
        steps=SHORT,
        kinds=ONLINE,
    ),
    Rule(
        look=skipped_updates,
        names=("skipped-updates",),
        symptom="steps make no update, or few of theirs",
        reads=("updates",),
        steps=USUAL,
        kinds=ONLINE,
    ),
    Rule(
        look=zero_gradient,
        names=("zero-gradient",),
        symptom="the gradient is exactly zero",
        reads=("grad_norm",),
        steps=USUAL,
    ),
    Rule(
        look=gradient_spikes,
        names=("gradient-spike",),
        symptom="a gradient norm is far above the median",
        reads=("grad_norm",),
        steps=USUAL,
    ),
)
