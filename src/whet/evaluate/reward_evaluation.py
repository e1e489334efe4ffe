"""Scores of rows by a reward model: ranks, pair accuracy, calibration and best-of-n against what the rows state.

Ties count half. Completions are ranked among those of the same prompt, over all rows.
"""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from statistics import fmean
from typing import Any

from whet.errors import UserError
from whet.evaluate.calibration import half_for_ties, mean_by_cluster, share_by_cluster
from whet.evaluate.reward_reports import (
    ACCURACY_OF,
    OutcomeReport,
    Report,
    outcome_report,
    pair_report,
    process_report,
)
from whet.evaluate.statistics import Interval, best_of_n
from whet.models.reward.scoring import Scorer, one_step
from whet.records import Candidates, Dialogue, Labelled, Message, Outcomes, Pair, Trace

Scorable = Dialogue | Pair | Labelled | Outcomes | Candidates | Trace
Prompt = str | tuple[Message, ...]
SHARES = ("top", "first_error", "no_error", "longer")  # of a report, besides its accuracy
INSIDE = ("accuracy", "pairwise", "margins", "worst")  # of a report, given under another name or not at all


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOf:
    """The known score of the completion that the reward model ranks first among n."""

    n: int
    prompts: int  # with at least n completions
    by_model: Interval
    at_random: float  # of a random completion of these prompts
    by_oracle: float  # of the completion with the highest known score
    is_share: bool  # whether all known scores are within [0, 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardEvaluation:
    """A reward model on rows that state which completions are better."""

    rows: int
    left_out: int = 0  # rows with a completion that leaves no room for its prompt
    pair_accuracy: Interval | None = None  # share of pairs in which the better completion scores higher
    report: Report | None = None  # calibration and more, of the rows that this kind of model is trained on
    worst: tuple[str, ...] = ()  # ids of the rows with the worst mistakes
    best_of_n: tuple[BestOf, ...] = field(default=())

    def named_shares(self) -> dict[str, Interval]:
        """All shares with an interval, by name; those that could not be measured are left out."""
        found = {"pair_accuracy": self.pair_accuracy}
        if self.report is not None:
            found[ACCURACY_OF[self.report.kind]] = self.report.accuracy
            found |= {name: getattr(self.report, name, None) for name in SHARES}
        return {name: share for name, share in found.items() if share is not None}

    def plain(self) -> dict[str, Any]:
        """Plain data, every accuracy under its own name."""
        shares = {name: asdict(share) for name, share in self.named_shares().items()}
        numbers = {} if self.report is None else asdict(self.report)
        rest = {name: value for name, value in numbers.items() if name not in (*shares, *INSIDE)}
        best = [asdict(one) for one in self.best_of_n]
        about = {"rows": self.rows, "left_out": self.left_out}
        return {**about, **shares, **rest, "worst": list(self.worst), "best_of_n": best}


def score_rows(scorer: Scorer, rows: Sequence[Scorable]) -> list[dict[str, Any]]:
    """A line for each completion: its row, prompt and score, and its rank among all completions of the prompt."""
    flat = [(row, text) for row in rows for text in texts_of(row, scorer.model.settings.separator)]
    prompts, texts = [row.prompt for row, _ in flat], [text for _, text in flat]
    scores, steps = _scores(scorer, prompts, texts)
    together: dict[Prompt, list[float]] = {}
    for prompt, score in zip(prompts, scores, strict=True):
        together.setdefault(prompt, []).append(score)
    stated = [told for row in rows for told in _stated(row)]
    lines = []
    for number, ((row, text), score, told) in enumerate(zip(flat, scores, stated, strict=True)):
        rivals = together[row.prompt]
        rank = {"rank": 1 + sum(other > score for other in rivals), "of": len(rivals)} if len(rivals) > 1 else {}
        line = {"id": row.id, "prompt": row.plain_prompt, "completion": text, "score": score, **rank, **told}
        lines.append({**line, "steps": steps[number]} if steps else line)
    return lines


def evaluate_reward_model(
    scorer: Scorer, rows: Sequence[Scorable], *, clusters: Sequence[Hashable], name: str, most: int | None = None
) -> RewardEvaluation:
    """Compares scores with what the first `most` rows state; intervals account for clusters.

    `name` is that of the data, for errors.
    """
    fitting = [(row, one) for row, one in zip(rows, clusters, strict=True) if _fits(scorer, row)]
    kept = fitting[:most]
    if not kept:
        raise UserError(f"no completion of {name} leaves room for its prompt in the model's context: shorten them")
    used, own = [row for row, _ in kept], [one for _, one in kept]
    if all(isinstance(row, Pair) for row in used):
        result = _on_pairs(scorer, used, own)
    elif all(isinstance(row, Trace) for row in used):
        result = _on_traces(scorer, used, own, name)
    else:
        result = _on_groups(scorer, used, own, name)
    return replace(result, left_out=len(rows) - len(fitting))


def texts_of(row: Scorable, separator: str) -> tuple[str, ...]:
    """The completions of a row, as a reward model reads them; the steps of a solution are one completion."""
    match row:
        case Dialogue() | Labelled():
            return (row.completion,)
        case Pair():
            return (row.chosen, row.rejected)
        case Outcomes() | Candidates():
            return row.completions
    return (separator.join(one_step(step, separator) for step in row.steps),)


def _stated(row: Scorable) -> list[dict[str, Any]]:
    """What the row states about each of its completions."""
    match row:
        case Pair():
            return [{"side": "chosen"}, {"side": "rejected"}]
        case Labelled():
            return [{"label": row.label}]
        case Outcomes():
            return [{"label": right} for right in row.correct]
        case Candidates():
            return [{}] * len(row.completions) if row.scores is None else [{"known": value} for value in row.scores]
    return [{}]


def _scores(scorer: Scorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], list[list[float]]]:
    """The score of each text, and those of its steps for a process model."""
    steps = scorer.steps(prompts, texts) if scorer.model.kind == "process" else []
    return scorer.score(prompts, texts), steps


def _fits(scorer: Scorer, row: Scorable) -> bool:
    """As in training, where a row is left out if a completion leaves no room for its prompt, or a step is blank."""
    separator = scorer.model.settings.separator
    if isinstance(row, Trace) and not all(one_step(step, separator).strip() for step in row.steps):
        return False
    return all(scorer.text(row.prompt, text).prompt for text in texts_of(row, separator))


def _on_pairs(scorer: Scorer, rows: Sequence[Any], clusters: Sequence[Hashable]) -> RewardEvaluation:
    sides = [[scorer.text(row.prompt, text) for text in (row.chosen, row.rejected)] for row in rows]
    chosen = scorer.score([row.prompt for row in rows], [row.chosen for row in rows])
    rejected = scorer.score([row.prompt for row in rows], [row.rejected for row in rows])
    if scorer.model.kind != "preference":  # probabilities, whose differences are no log-odds: nothing to calibrate
        right = [half_for_ties(*both) for both in zip(chosen, rejected, strict=True)]
        return RewardEvaluation(rows=len(rows), pair_accuracy=share_by_cluster(clusters, right))
    report = pair_report(
        chosen,
        rejected,
        lengths=[(len(a.tokens) - a.prompt, len(b.tokens) - b.prompt) for a, b in sides],
        stated=[row.margin for row in rows],
        clusters=clusters,
    )
    worst = tuple(rows[number].id for number in report.worst)
    return RewardEvaluation(rows=len(rows), pair_accuracy=report.accuracy, report=report, worst=worst)


def _on_traces(scorer: Scorer, rows: Sequence[Any], clusters: Sequence[Hashable], name: str) -> RewardEvaluation:
    kind, separator = scorer.model.kind, scorer.model.settings.separator
    if kind != "process":
        raise UserError(f"{name} holds labelled steps, which this reward model ({kind}) does not score: give it pairs")
    texts = [texts_of(row, separator)[0] for row in rows]
    found = scorer.steps([row.prompt for row in rows], texts)
    whole = [len(steps) == len(row.labels) for steps, row in zip(found, rows, strict=True)]
    if not all(whole):
        raise UserError(
            f"row {rows[whole.index(False)].id} of {name} has more steps than fit in the context: shorten it"
        )
    report = process_report(found, [row.labels for row in rows], clusters=clusters)
    return RewardEvaluation(rows=len(rows), report=report, worst=tuple(rows[number].id for number in report.worst))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """All completions of a prompt with their known scores."""

    ids: list[str] = field(default_factory=list)  # of its rows
    texts: list[str] = field(default_factory=list)
    known: list[float] = field(default_factory=list)


def _on_groups(scorer: Scorer, rows: Sequence[Scorable], clusters: Sequence[Hashable], name: str) -> RewardEvaluation:
    """Rows with labels or known scores; those of one prompt belong together."""
    groups: dict[Prompt, _Group] = {}
    own: dict[Prompt, Hashable] = {}
    for row, cluster in zip(rows, clusters, strict=True):
        known = _known(row, name)
        group = groups.setdefault(row.prompt, _Group())
        own.setdefault(row.prompt, cluster)
        group.ids.append(row.id)
        group.texts.extend(texts_of(row, ""))
        group.known.extend(known)
    prompts = [prompt for prompt, group in groups.items() for _ in group.texts]
    scores = iter(scorer.score(prompts, [text for group in groups.values() for text in group.texts]))
    scored = [[next(scores) for _ in group.texts] for group in groups.values()]
    known_scores = [group.known for group in groups.values()]
    report: OutcomeReport | None = None
    worst: tuple[str, ...] = ()
    if scorer.model.kind != "preference" and all(value in (0, 1) for known in known_scores for value in known):
        report = outcome_report(
            scored, [[value == 1 for value in known] for known in known_scores], clusters=list(own.values())
        )
        listed = list(groups.values())
        worst = tuple(listed[number].ids[0] for number in report.worst)
    return RewardEvaluation(
        rows=len(rows),
        pair_accuracy=_concordance(scored, known_scores, list(own.values())),
        report=report,
        worst=worst,
        best_of_n=_best_of_n(scored, known_scores, list(own.values())),
    )


def _known(row: Scorable, name: str) -> Sequence[float]:
    match row:
        case Labelled():
            return (float(row.label),)
        case Outcomes():
            return tuple(map(float, row.correct))
        case Candidates(scores=tuple(scores)):
            return scores
    raise UserError(
        f"row {row.id} of {name} states nothing to compare scores with: give pairs, or completions with 'correct' or "
        "'scores'; whet score scores rows without them"
    )


def _concordance(
    scored: Sequence[Sequence[float]], known: Sequence[Sequence[float]], clusters: Sequence[Hashable]
) -> Interval | None:
    """Share of the pairs of completions of one prompt with different known scores that the model ranks alike.

    A mean over prompts; None if no prompt has such a pair.
    """
    shares = {}
    for number, (scores, values) in enumerate(zip(scored, known, strict=True)):
        pairs = [(i, j) for i, j in combinations(range(len(values)), 2) if values[i] != values[j]]
        ranked = [(i, j) if values[i] > values[j] else (j, i) for i, j in pairs]
        if ranked:
            shares[number] = fmean(half_for_ties(scores[better], scores[worse]) for better, worse in ranked)
    return share_by_cluster([clusters[number] for number in shares], list(shares.values())) if shares else None


def _best_of_n(
    scored: Sequence[Sequence[float]], known: Sequence[Sequence[float]], clusters: Sequence[Hashable]
) -> tuple[BestOf, ...]:
    """For n = 2, 4, 8, … as far as there are prompts with so many completions."""
    found = []
    n = 2
    while some := [number for number, scores in enumerate(scored) if len(scores) >= n]:
        values = [best_of_n(scored[number], known[number], n) for number in some]
        own = [clusters[number] for number in some]
        is_share = all(0 <= value <= 1 for number in some for value in known[number])
        found.append(
            BestOf(
                n=n,
                prompts=len(some),
                by_model=(share_by_cluster if is_share else mean_by_cluster)(own, values),
                at_random=fmean(fmean(known[number]) for number in some),
                by_oracle=fmean(best_of_n(known[number], known[number], n) for number in some),
                is_share=is_share,
            )
        )
        n *= 2
    return tuple(found)
