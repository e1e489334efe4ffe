"""Rules on held-out results: progress, overfitting, evaluation prompts that were trained on."""

from __future__ import annotations

from whet.doctor import thresholds as at
from whet.doctor.findings import Evidence, Finding
from whet.doctor.history import CONFIRMED, History, Row, now
from whet.doctor.rules.levels import newest
from whet.doctor.rules.rule import ANSWERS, OFFLINE, ONLINE, ROLLOUTS, Rule
from whet.evaluate.measures import Measure, measure_of
from whet.number_format import percent

LEAKED = 0.1  # share of held-out prompts that were trained on
SHOWN = 0.9  # share of held-out prompts in which the answer stands
LONG_ANSWER = 3  # characters; shorter ones stand in a prompt by chance
FEWEST = 5  # held-out prompts that a share is taken of


def held_out_result(history: History) -> Finding | None:
    """First against last evaluation of the headline measure, by their intervals; a loss has its own rule."""
    if history.measure is None:
        sentence = "no held-out evaluation" if history.rows else "nothing is recorded yet"
        return Finding(rule="held-out", level="note", sentence=sentence)
    return result_of(history, history.measure)


def verdict(history: History, chosen_by: str = "") -> list[Finding]:
    """Whether the held-out result shows that something was learned; also by the metric that chose the best model."""
    found = [held_out_result(history), held_out_loss(history)]
    other = result_of(history, measure_of(chosen_by)) if chosen_by else None
    return list(dict.fromkeys(finding for finding in (*found, other) if finding is not None))


def result_of(history: History, measure: Measure) -> Finding | None:
    """First against last evaluation of a measure."""
    if not measure.is_higher_better:
        return None
    ends, (low, high) = history.ends(measure), measure.interval
    if ends is None:
        value = next((row[measure.metric] for row in history.rows if row.get(measure.metric) is not None), None)
        if value is None:
            return None
        sentence = f"{measure.label} is {measure.text(value)}; one evaluation cannot show progress"
        return Finding(rule="held-out", level="note", sentence=sentence)
    first, last = ends
    before, after = (measure.text(row[measure.metric]) for row in ends)
    if last[low] > first[high]:
        sentence = f"{measure.label} rose from {before} to {after}, intervals apart"
        return Finding(rule="held-out", level="ok", sentence=sentence)
    if history.has_fallen(measure):
        return Finding(
            rule="held-out-fell",
            level="warning",
            sentence=f"{measure.label} fell from {before} to {after}, intervals apart",
            causes=_of_fall(history),
            evidence=(Evidence(metric=measure.metric, step=int(last["step"]), text=f"{before} → {after}"),),
        )
    if last[measure.metric] == first[measure.metric]:
        change = f"is {after}, as before training"
    else:
        change = f"went from {before} to {after}: intervals overlap, may be chance"
    return Finding(rule="held-out", level="note", sentence=f"{measure.label} {change}")


def _of_fall(history: History) -> tuple[str, ...]:
    kind = history.settings.kind
    if kind == "preference":
        return ("learning-rate-too-high", "swapped-labels", "noisy-labels")
    if kind == "online":
        return ("learning-rate-too-high", "reward-misspecified", "wrong-sign", "entropy-bonus-too-high")
    return ("learning-rate-too-high", "overfitting", "noisy-labels")


def held_out_loss(history: History) -> Finding | None:
    """Overfitting: the held-out loss rises again; of a bidirectional model its bound, or its loss at masked tokens."""
    names = {"eval/loss": "loss", "eval/bound": "bound", "eval/masked_loss": "masked loss"}
    metric = next((name for name in names if len(history.series(name))), None)
    if metric is None or len(loss := history.series(metric)) < 2:
        return None
    what = names[metric]
    best = min(range(len(loss)), key=loss.values.__getitem__)
    first, last = loss.values[0], loss.values[-1]
    newest_ones = loss.values[best + 1 :][-(1 if history.is_over else CONFIRMED) :]
    is_confirmed = history.is_over or len(newest_ones) == CONFIRMED
    if newest_ones and is_confirmed and min(newest_ones) > at.OVERFIT * loss.values[best]:
        low = f"{loss.values[best]:.3g} at step {loss.steps[best]}"
        never = best == 0
        trained = history.series("loss")
        memorises = not len(trained) or now(trained) < loss.values[best]  # else it may be noise of large steps
        return Finding(
            rule="overfitting",
            level="warning" if _has_not_improved(history, loss.steps[best]) and (never or memorises) else "note",
            sentence=f"held-out {what} rose from {low} to {last:.3g}: over-fitting, lower steps",
            causes=_of_rise(history, never=never),
            evidence=(newest(loss, metric),),
        )
    if last < first * (1 - at.LEARNED):
        sentence = f"held-out {what} fell from {first:.3g} to {last:.3g}"
        return Finding(rule="held-out-loss", level="ok", sentence=sentence)
    sentence = f"held-out {what} went from {first:.3g} to {last:.3g}: little was learned"
    return Finding(rule="held-out-loss", level="note", sentence=sentence)


def _has_not_improved(history: History, since: int) -> bool:
    """Whether the headline is no better than at a step; true where the loss itself is the headline."""
    measure = history.measure
    if measure is None or not measure.is_higher_better:
        return True
    curve = history.series(measure.metric)
    before = [value for step, value in zip(curve.steps, curve.values, strict=True) if step <= since]
    return not before or curve.values[-1] <= before[-1]


def _of_rise(history: History, *, never: bool) -> tuple[str, ...]:
    """Why a held-out loss rises: rows learned by heart; or, if it never fell, steps too large or wrong labels."""
    if history.settings.kind in ("preference", "reward"):
        first = ("noisy-labels", "learning-rate-too-high") if never else ("overfitting", "noisy-labels")
        return (*first, "learning-rate-too-high")[:3]
    return ("learning-rate-too-high", "overfitting") if never else ("overfitting", "learning-rate-too-high")


def trained_on_held_out(history: History) -> Finding | None:
    """Held-out prompts that stand among the prompts of rollouts, in the same words."""
    trained = {_plain(str(row["prompt"])) for row in history.every_rollout if row.get("prompt")}
    held_out = {str(row["prompt"]) for rows in history.answers.values() for row in rows if row.get("prompt")}
    if len(held_out) < FEWEST or not trained:
        return None
    seen = [text for text in held_out if _plain(text) in trained]
    share = len(seen) / len(held_out)
    if share < LEAKED:
        return None
    return Finding(
        rule="leaked-evaluation",
        level="warning",
        sentence=f"{percent(share)} of the held-out prompts were also trained on, in the same words",
        causes=("leaked-evaluation",),
        evidence=(Evidence(text=f"for example {min(seen)[:80]!r}"),),
    )


def answers_in_prompts(history: History) -> Finding | None:
    """Prompts in which the answer itself stands."""
    rows: list[Row] = [row for some in history.answers.values() for row in some]
    asked = {str(row["prompt"]): str(row["answer"]) for row in rows if row.get("answer") and row.get("prompt")}
    long = {prompt: answer for prompt, answer in asked.items() if len(answer) >= LONG_ANSWER}
    if len(long) < FEWEST:
        return None
    share = sum(answer in prompt for prompt, answer in long.items()) / len(long)
    if share < SHOWN:
        return None
    return Finding(
        rule="answer-in-prompt",
        level="warning",
        sentence=f"in {percent(share)} of the held-out prompts the answer stands in the prompt itself",
        causes=("leaked-evaluation",),
        evidence=(Evidence(text=f"for example {min(long)[:80]!r}"),),
    )


def _plain(text: str) -> str:
    """A prompt without case, spaces and punctuation."""
    return "".join(letter for letter in text.casefold() if letter.isalnum())


EVALUATION = (
    Rule(
        look=held_out_result,
        names=("held-out", "held-out-fell"),
        symptom="the held-out result fell, its intervals apart",
        reads=(),
    ),
    Rule(
        look=held_out_loss,
        names=("held-out-loss", "overfitting"),
        symptom="the held-out loss rises again (over-fitting)",
        reads=("eval/loss",),
        steps=2,
        kinds=OFFLINE,
    ),
    Rule(
        look=trained_on_held_out,
        names=("leaked-evaluation",),
        symptom="held-out prompts are also trained on, in the same words",
        reads=(ROLLOUTS, ANSWERS),
        kinds=ONLINE,
    ),
    Rule(
        look=answers_in_prompts,
        names=("answer-in-prompt",),
        symptom="the expected answer stands in the prompt",
        reads=(ANSWERS,),
        kinds=ONLINE,
    ),
)
