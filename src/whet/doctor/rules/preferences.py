"""Rules on offline runs: preferences, reward models, supervised fine-tuning."""

from __future__ import annotations

from itertools import pairwise

from whet.doctor import thresholds as at
from whet.doctor.findings import Finding
from whet.doctor.history import FEW, SURE, History, last_steps, moved, now, start
from whet.doctor.rules.levels import level_of, newest
from whet.doctor.rules.rule import LONG, OFFLINE, USUAL, Rule
from whet.number_format import number, percent
from whet.runs.series import Series

CHANCE = 0.03  # an accuracy this near to ½ is that of a coin
ACCURACIES = ("pair_accuracy", "label_accuracy", "outcome_accuracy", "step_accuracy")
LEVEL = 0.9  # of the training pairs: learned by heart if the held-out ones are not


def both_fall(history: History) -> Finding | None:
    """Chosen and rejected completions both become far less likely: the margin grows on the way out of the data."""
    chosen, rejected = history.series("logprobs/chosen"), history.series("logprobs/rejected")
    length = history.series("length/chosen")
    if min(map(len, (chosen, rejected, length))) < 2 * FEW or now(length) <= 0:
        return None
    lost, other = chosen.values[0] - now(chosen), rejected.values[0] - now(rejected)
    a_token = lost / now(length)
    level = level_of(a_token, at.LOST)
    if level == "ok" or other <= 0:
        return None
    return Finding(
        rule="both-fall",
        level=level,
        sentence=f"the chosen completions have become less likely by {number(lost)} nats ({number(a_token)} a token), "
        f"the rejected ones by {number(other)}, in {last_steps(chosen)}",
        causes=("learning-rate-too-high", "beta-too-small", "overfitting"),
        evidence=(newest(chosen, "logprobs/chosen"), newest(rejected, "logprobs/rejected")),
    )


def gap(history: History) -> Finding | None:
    """Pairs of training are ranked far better than held-out ones."""
    for name in ACCURACIES:
        trained, held_out = history.series(name), history.series(f"eval/{name}")
        if len(trained) < 2 * FEW or not len(held_out):
            continue
        distance = now(trained) - held_out.values[-1]
        if distance < at.GAP or now(trained) < LEVEL:
            continue
        at_chance = abs(held_out.values[-1] - 0.5) < 3 * CHANCE
        return Finding(
            rule="train-held-out-gap",
            level="warning",
            sentence=f"{percent(now(trained))} of the training rows are right and {percent(held_out.values[-1])} of "
            "the held-out ones: learned by heart",
            causes=("noisy-labels", "overfitting") if at_chance else ("overfitting", "noisy-labels"),
            evidence=(newest(trained, name), newest(held_out, f"eval/{name}")),
        )
    return None


def at_chance(history: History) -> Finding | None:
    """Neither training nor held-out rows are ranked better than by a coin."""
    for name in ACCURACIES[:2]:
        trained = history.series(name)
        if len(trained) < 4 * FEW or len(trained) < history.steps / 3 or history.has_gained:
            continue
        if abs(now(trained) - 0.5) > 2 * CHANCE or moved(trained) > SURE or _keeps_falling(history.series("eval/loss")):
            continue
        slow = history.settings.rate < history.settings.usual_rate / 20
        causes = ("noisy-labels", "learning-rate-too-low", "learning-rate-too-high")
        return Finding(
            rule="chance-level",
            level="warning",
            sentence=f"{percent(now(trained))} of the rows are right in {last_steps(trained)}, as by a coin",
            causes=("learning-rate-too-low", "noisy-labels") if slow else causes,
            evidence=(newest(trained, name),),
        )
    return None


def below_chance(history: History) -> Finding | None:
    """Held-out rows are ranked the wrong way round."""
    for name in ACCURACIES[:2]:
        curve, high = history.series(f"eval/{name}"), history.series(f"eval/{name}_high")
        if len(curve) < 2 or not len(high) or high.values[-1] >= 0.5 - CHANCE:
            continue
        return Finding(
            rule="below-chance",
            level="critical",
            sentence=f"{percent(curve.values[-1])} of the held-out rows are right, fewer than by a coin",
            causes=("swapped-labels",),  # labels at random would leave it at chance
            evidence=(newest(curve, f"eval/{name}"),),
        )
    return None


def length_bias(history: History) -> Finding | None:
    """The score of a reward model, or the preference of a policy, follows the length."""
    curve = history.series("eval/length_score_correlation")
    if len(curve) >= 2 and abs(curve.values[-1]) > at.LENGTH_BIAS:
        return Finding(
            rule="length-bias",
            level="warning",
            sentence=f"scores and lengths of held-out completions have a rank correlation of {curve.values[-1]:.2f}: "
            "the reward model pays for length",
            causes=("length-biased-data",),
            evidence=(newest(curve, "eval/length_score_correlation"),),
        )
    chosen, rejected = history.series("length/chosen"), history.series("length/rejected")
    if len(chosen) < FEW or len(rejected) < FEW or now(rejected) <= 0:
        return None
    factor = now(chosen) / now(rejected)
    if factor < at.LONGER:
        return None
    return Finding(
        rule="length-bias",
        level="warning",
        sentence=f"chosen completions are {factor:.1f} times as long as rejected ones: length alone tells them apart",
        causes=("length-biased-data",),
        evidence=(newest(chosen, "length/chosen"), newest(rejected, "length/rejected")),
    )


def length_drift(history: History) -> Finding | None:
    """Answers to held-out prompts become longer and longer."""
    curve = history.series("eval/length")
    if len(curve) < 2 or curve.values[0] <= 0:
        return None
    factor = curve.values[-1] / curve.values[0]
    level = level_of(factor, at.DRIFT)
    if level == "ok":
        return None
    return Finding(
        rule="length-drift",
        level=level,
        sentence=f"answers to held-out prompts are {factor:.1f} times as long as before training: "
        f"{number(curve.values[-1])} tokens",
        causes=("length-biased-data", "beta-too-small"),
        evidence=(newest(curve, "eval/length"),),
    )


def miscalibration(history: History) -> Finding | None:
    """The probabilities of a reward model differ from how often it is right, more than at the start."""
    curve = history.series("eval/calibration_error")
    if len(curve) < 2:
        return None
    level = level_of(curve.values[-1], at.MISCALIBRATED)
    if level == "ok" or curve.values[-1] <= curve.values[0]:
        return None
    if history.has_gained:
        level = "note"
    return Finding(
        rule="miscalibration",
        level=level,
        sentence=f"the probabilities of the reward model are off by {percent(curve.values[-1])} on average on held-out "
        f"rows, {percent(curve.values[0])} before training",
        causes=("overfitting", "noisy-labels", "learning-rate-too-high"),
        evidence=(newest(curve, "eval/calibration_error"),),
    )


def loss_rises(history: History) -> Finding | None:
    """The training loss is higher than at the start."""
    curve = history.series("loss")
    if history.settings.kind == "online" or len(curve) < 4 * FEW or moved(curve) < SURE:
        return None
    if now(curve) < 1.02 * start(curve):
        return None
    return Finding(
        rule="loss-rises",
        level="warning",
        sentence=f"the training loss rose from {number(start(curve))} to {number(now(curve))}",
        causes=("learning-rate-too-high", "noisy-labels"),
        evidence=(newest(curve, "loss"),),
    )


def loss_stands(history: History) -> Finding | None:
    """The training loss does not fall."""
    curve = history.series("loss")
    if history.settings.kind == "online" or len(curve) < 4 * FEW or len(curve) < history.steps / 3:
        return None
    if history.has_gained or history.is_solved or abs(moved(curve)) >= SURE or not now(curve):
        return None
    if _keeps_falling(history.series("eval/loss")):
        return None
    settings = history.settings
    slow = settings.rate < settings.usual_rate / 20
    first = "learning-rate-too-low" if slow else "learning-rate-too-high"
    others = ("noisy-labels",) if settings.kind != "sft" else ()
    return Finding(
        rule="loss-stands",
        level="warning",
        sentence=f"the training loss is {number(now(curve))} after {len(curve)} steps, as at the start",
        causes=(first, *others, "learning-rate-too-high" if slow else "learning-rate-too-low"),
        evidence=(newest(curve, "loss"),),
    )


def _keeps_falling(loss: Series) -> bool:
    """Whether a held-out loss is lower at every evaluation, by enough in all to count: slow, but it learns."""
    falls = all(after < before for before, after in pairwise(loss.values))
    return len(loss) >= 3 and falls and loss.values[-1] < (1 - at.LEARNED / 2) * loss.values[0]


PREFERENCES = (
    Rule(
        look=both_fall,
        names=("both-fall",),
        symptom="chosen and rejected completions both become far less likely while the margin grows",
        reads=("logprobs/chosen", "logprobs/rejected", "length/chosen"),
        steps=USUAL,
        kinds=("preference",),
    ),
    Rule(
        look=gap,
        names=("train-held-out-gap",),
        symptom="training rows are ranked far better than held-out ones",
        reads=(),
        kinds=("preference", "reward"),
    ),
    Rule(
        look=at_chance,
        names=("chance-level",),
        symptom="rows are ranked as by a coin",
        reads=(),
        kinds=("preference", "reward"),
    ),
    Rule(
        look=below_chance,
        names=("below-chance",),
        symptom="held-out rows are ranked the wrong way round",
        reads=(),
        kinds=("preference", "reward"),
    ),
    Rule(
        look=length_bias,
        names=("length-bias",),
        symptom="scores follow the length, or chosen completions are far longer than rejected ones",
        reads=(),
        kinds=("preference", "reward"),
    ),
    Rule(
        look=length_drift,
        names=("length-drift",),
        symptom="answers of a preference-trained policy grow longer and longer",
        reads=("eval/length",),
        steps=2,
        kinds=("preference",),
    ),
    Rule(
        look=miscalibration,
        names=("miscalibration",),
        symptom="the probabilities of a reward model are far from how often it is right",
        reads=("eval/calibration_error",),
        steps=2,
        kinds=("reward",),
    ),
    Rule(
        look=loss_rises,
        names=("loss-rises",),
        symptom="the training loss is higher than at the start",
        reads=("loss",),
        steps=LONG,
        kinds=OFFLINE,
    ),
    Rule(
        look=loss_stands,
        names=("loss-stands",),
        symptom="the training loss does not fall",
        reads=("loss",),
        steps=LONG,
        kinds=OFFLINE,
    ),
)
