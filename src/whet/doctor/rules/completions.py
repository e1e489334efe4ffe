"""Rules on what is sampled: truncation, missing stop tokens, repetition; and on prompts as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress

from whet.doctor import thresholds as at
from whet.doctor.findings import Evidence, Finding
from whet.doctor.history import FEW, SURE, History, Row, last_steps, moved, newer_half, now, start
from whet.doctor.rules.levels import level_of, newest
from whet.doctor.rules.rollout_evidence import evidence_of, largest, length, shown
from whet.doctor.rules.rule import LONG, ONLINE, ROLLOUTS, USUAL, Rule
from whet.number_format import percent

FEWEST = 8  # rollouts that a share is taken of
PROMPTS = 4  # different prompts that must begin alike before their beginning counts as a template's


def truncation(history: History) -> Finding | None:
    """Completions that reached rollout.max_tokens; with a reward for every token they are meant to."""
    share = history.series("truncated")
    if not len(share) or len(history.series("tokens/match")):
        return None
    current = now(share)
    sentence = f"{percent(current)} of completions in {last_steps(share)} were truncated"
    level = level_of(current, at.TRUNCATED)
    if level == "ok":
        return Finding(rule="truncation", level=level, sentence=sentence)
    always = min(start(share), current) > at.ALL_TRUNCATED
    is_falling = moved(newer_half(share)) < -SURE
    is_early = len(share) < (2 if always else 4) * FEW  # a new model learns to end
    is_learning = not (always or history.has_lost) and moved(history.series("reward/mean")) >= SURE
    if history.has_gained or history.is_solved or is_falling or is_early or is_learning:
        level = "note"
    elif always:
        level = "critical"
    return Finding(
        rule="truncation",
        level=level,
        sentence=sentence + ": raise rollout.max_tokens or reward shorter answers",
        causes=_of_truncation(history),
        evidence=(newest(share, "truncated"), *shown(history, "a truncated completion", _is_truncated)),
    )


def never_ends(history: History) -> Finding | None:
    """No completion has ended by a stop token or a stop string, in any step."""
    share, settings = history.series("truncated"), history.settings
    if len(share) < 2 * FEW or min(share.values) < 1 or len(history.series("tokens/match")):
        return None
    most = settings.number("rollout.max_tokens")
    if most and settings.number("rollout.min_tokens") >= most:  # they are meant to be of one length
        return None
    return Finding(
        rule="never-ends",
        level="note" if history.has_gained or history.is_solved else "warning",
        sentence=f"not one completion of {len(share)} steps ended by itself: all were cut at rollout.max_tokens",
        causes=_of_truncation(history),
        evidence=shown(history, "a truncated completion", _is_truncated),
    )


def _is_truncated(row: Row) -> bool:
    return row.get("finish") == "length"


def _of_truncation(history: History) -> tuple[str, ...]:
    """Too little room, or a policy that never ends: by the length of the expected answers, if they are known."""
    needed = _answer_tokens(history)
    length = history.series("length/mean")
    if needed is not None and needed > history.settings.number("rollout.max_tokens"):
        return ("max-tokens-too-small", "no-stop-token")
    share = history.series("truncated")
    if len(length) and now(length) > start(length) * 1.2 and start(share) < at.TRUNCATED[1]:
        return ("reward-pays-length", "max-tokens-too-small", "no-stop-token")
    if start(share) < at.TRUNCATED[0]:  # completions ended at first
        return ("learning-rate-too-high", "no-stop-token", "max-tokens-too-small")
    if min(share.values) > 0.98:
        return ("no-stop-token", "max-tokens-too-small", "template")
    return ("max-tokens-too-small", "no-stop-token", "learning-rate-too-high")


def _answer_tokens(history: History) -> float | None:
    """Median number of tokens of the expected answers, by the characters that a token of the rollouts has."""
    answers = [str(row["answer"]) for rows in history.answers.values() for row in rows if row.get("answer")]
    rows = [row for row in history.every_rollout if row.get("text")]
    characters, tokens = sum(len(row["text"]) for row in rows), sum(sum(row.get("mask", ())) for row in rows)
    if not answers or not tokens or not characters:
        return None
    lengths = sorted(len(answer) for answer in answers)
    return lengths[len(lengths) // 2] * tokens / characters + 1


def repetition(history: History) -> Finding | None:
    """Degenerate text: completions that repeat themselves, more than at the start."""
    curve = history.series("rollouts/repeated_4grams")
    if len(curve) < 4 * FEW or now(curve) < at.REPEATED[0] or history.has_gained:
        return None
    grown = now(curve) > start(curve) + 0.1 and moved(curve) > SURE
    return Finding(
        rule="repetition",
        level="warning" if now(curve) >= at.REPEATED[1] and grown else "note",
        sentence=f"{percent(now(curve))} of the 4-grams of a completion repeat an earlier one in {last_steps(curve)}",
        causes=("reward-pays-repetition", "reward-pays-length", "learning-rate-too-high") if grown else (),
        evidence=(
            newest(curve, "rollouts/repeated_4grams"),
            *largest(history, "one of the longest rollouts", length),
        ),
    )


def double_start(history: History) -> Finding | None:
    """All prompts begin with the same token twice: two beginning-of-sequence tokens, by the template and again."""
    prompts = {str(row["prompt"]): _prompt_tokens(row) for row in history.every_rollout if "prompt" in row}
    texts = {text[:1] for text in prompts}
    starts = [tokens[:2] for tokens in prompts.values()]
    if len(prompts) < PROMPTS or any(len(pair) < 2 or pair[0] != pair[1] or pair != starts[0] for pair in starts):
        return None
    if len(texts) == 1 and len({text[:2] for text in prompts}) == 1 and _begins_twice(next(iter(prompts))):
        return None  # the text itself begins with one character twice
    step = min(history.rollouts)
    return Finding(
        rule="double-start-token",
        level="warning",
        sentence=f"all {len(prompts)} prompts that were looked at begin with the token {starts[0][0]} twice",
        causes=("template",),
        evidence=(Evidence(text="a prompt that begins with the same token twice", rollout=(step, 0)),),
    )


def _prompt_tokens(row: Row) -> Sequence[int]:
    return list(compress(row.get("tokens", ()), (not chosen for chosen in row.get("mask", ()))))


def _begins_twice(text: str) -> bool:
    return len(text) > 1 and text[0] == text[1]


def unheeded_stop(history: History) -> Finding | None:
    """Completions that write a control token and are sampled on until they are cut: it is no stop."""
    return _control_tokens(
        history,
        rule="unheeded-stop",
        places=lambda row: range(_last_turn(row) + 1, len(row["pieces"]) - 1) if _is_truncated(row) else (),
        what="write the control token {token} and were sampled on until they were cut: it ends no completion",
        causes=("no-stop-token", "template"),
    )


def _last_turn(row: Row) -> int:
    """How many tokens the policy sampled before its last turn, in each of which a stop token ended the turn."""
    return sum(int(turn["tokens"]) for turn in row.get("turns", ())[:-1])


def own_header(history: History) -> Finding | None:
    """Completions that begin with a control token: the policy writes the assistant's header that the prompt lacks."""
    return _control_tokens(
        history,
        rule="own-header",
        places=lambda row: (0,) if len(row["pieces"]) > 1 else (),
        what="begin with the control token {token}: the prompt lacks the header of the assistant's turn",
        causes=("template",),
    )


def _control_tokens(
    history: History,
    *,
    rule: str,
    places: Callable[[Row], Iterable[int]],
    what: str,
    causes: tuple[str, ...],
) -> Finding | None:
    """Whether one control token (whose text is empty) stands at such places in most rollouts of the newest step."""
    for step in sorted(history.rollouts, reverse=True):
        rows = [(place, row) for place, row in enumerate(history.rollouts[step]) if row.get("pieces")]
        if len(rows) < FEWEST:
            continue
        having: dict[int, list[int]] = {}  # token → places of rows
        for place, row in rows:
            chosen = list(compress(row["tokens"], row["mask"]))
            for token in {chosen[number] for number in places(row) if row["pieces"][number] == ""}:
                having.setdefault(token, []).append(place)
        token = max(having, key=lambda one: len(having[one]), default=None)
        if token is None or len(having[token]) < at.CONTROL_TOKEN * len(rows):
            return None
        first = having[token][0]
        return Finding(
            rule=rule,
            level="warning",
            sentence=f"{percent(len(having[token]) / len(rows))} of the rollouts of step {step} "
            + what.format(token=token),
            causes=causes,
            evidence=(evidence_of("one of them", step, first, history.rollouts[step][first]),),
        )
    return None


COMPLETIONS = (
    Rule(
        look=truncation,
        names=("truncation",),
        symptom="many completions reach rollout.max_tokens",
        reads=("truncated",),
        steps=USUAL,
        kinds=ONLINE,
    ),
    Rule(
        look=never_ends,
        names=("never-ends",),
        symptom="no completion of the run has ended by itself",
        reads=("truncated",),
        steps=USUAL,
        kinds=ONLINE,
    ),
    Rule(
        look=repetition,
        names=("repetition",),
        symptom="completions repeat their own 4-grams more and more",
        reads=("rollouts/repeated_4grams",),
        steps=LONG,
        kinds=ONLINE,
    ),
    Rule(
        look=double_start,
        names=("double-start-token",),
        symptom="every prompt begins with the same token twice (two BOS)",
        reads=(ROLLOUTS,),
        kinds=ONLINE,
    ),
    Rule(
        look=unheeded_stop,
        names=("unheeded-stop",),
        symptom="completions write a control token and go on after it (a stop that is not in the stops)",
        reads=(ROLLOUTS,),
        kinds=ONLINE,
    ),
    Rule(
        look=own_header,
        names=("own-header",),
        symptom="completions begin with a control token: the prompt has no generation header",
        reads=(ROLLOUTS,),
        kinds=ONLINE,
    ),
)
