"""How good a reward model is: on pairs, on whole solutions, on steps. Plain Python; knows scores, no models.

Equal scores are half right, so a model that says the same of everything has an accuracy of one half. Rows of a
cluster are alike, which all intervals know; without clusters every row is one of its own.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from whet.evaluate.calibration import (
    Bin,
    Slice,
    area_under_curve,
    calibration,
    calibration_error,
    half_for_ties,
    mean_by_cluster,
    quartiles,
    share_by_cluster,
)
from whet.evaluate.statistics import Interval

CONFIDENCES = tuple(0.5 + index / 20 for index in range(11))  # of a decision between two: from ½ on
PROBABILITIES = tuple(index / 10 for index in range(11))
WORST = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class PairReport:
    """A preference model on held-out pairs."""

    pairs: int
    accuracy: Interval  # ties are half right
    ties: int
    margins: tuple[float, ...]  # score of chosen − score of rejected, pair by pair
    mean_margin: Interval
    loss: float  # the mean of −log σ(margin)
    bins: tuple[Bin, ...]  # confidence σ(|margin|) against the share of right decisions
    calibration_error: float
    longer: Interval | None  # the accuracy of preferring the longer completion: what length alone can explain
    by_length: tuple[Slice, ...]  # quarters of length of chosen − length of rejected, where lengths were given
    by_margin: tuple[Slice, ...]  # quarters of the margin that the data states, of the pairs where it does
    worst: tuple[int, ...]  # numbers of the pairs that are most wrong, worst first


def pair_report(
    chosen: Sequence[float],
    rejected: Sequence[float],
    *,
    lengths: Sequence[tuple[int, int]] = (),
    stated: Sequence[float | None] = (),
    clusters: Sequence[Hashable] = (),
    worst: int = WORST,
) -> PairReport:
    """From the scores of both completions, their lengths, and by how much the data says one was preferred."""
    margins = [first - second for first, second in zip(chosen, rejected, strict=True)]
    if not margins:
        raise ValueError("a report on pairs needs at least one pair")
    clusters = clusters or range(len(margins))
    right = [half_for_ties(margin, 0.0) for margin in margins]
    bins = calibration([sigmoid(abs(margin)) for margin in margins], right, CONFIDENCES, clusters)
    differences = [float(first - second) for first, second in lengths]
    if differences and len(differences) != len(margins):
        raise ValueError(f"lengths of {len(differences)} pairs for the scores of {len(margins)}")
    order = sorted(range(len(margins)), key=lambda index: margins[index])
    return PairReport(
        pairs=len(margins),
        accuracy=share_by_cluster(clusters, right),
        ties=margins.count(0.0),
        margins=tuple(margins),
        mean_margin=mean_by_cluster(clusters, margins),
        loss=math.fsum(softplus(-margin) for margin in margins) / len(margins),
        bins=bins,
        calibration_error=calibration_error(bins),
        longer=share_by_cluster(clusters, [half_for_ties(value, 0.0) for value in differences])
        if differences
        else None,
        by_length=quartiles(differences, right, clusters) if differences else (),
        by_margin=_by_margin(stated, right, clusters),
        worst=tuple(index for index in order[:worst] if margins[index] < 0),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeReport:
    """A model that tells right solutions from wrong ones, on held-out problems with several solutions each."""

    problems: int
    solutions: int
    accuracy: Interval  # of calling a solution right from ½ on, over solutions
    top: Interval  # the share of problems whose best-scored solution is right
    chance: float  # the same for a solution picked at random
    ceiling: float  # the share of problems with any right solution: no choice can do better
    pairwise: Interval | None  # right above wrong within a problem, mean over the problems that have both
    area: float | None  # right above wrong over all solutions: the area under the ROC curve
    bins: tuple[Bin, ...]
    calibration_error: float
    worst: tuple[int, ...]  # problems where a wrong solution stands furthest above the best right one


def outcome_report(
    probabilities: Sequence[Sequence[float]],
    correct: Sequence[Sequence[bool]],
    *,
    clusters: Sequence[Hashable] = (),
    worst: int = WORST,
) -> OutcomeReport:
    """From the stated probability of each solution of each problem, and whether it is right."""
    problems = [list(zip(*both, strict=True)) for both in zip(probabilities, correct, strict=True)]
    if not problems or not all(problems):
        raise ValueError("a report on outcomes needs problems with at least one solution each")
    split = [
        ([value for value, is_right in problem if is_right], [value for value, is_right in problem if not is_right])
        for problem in problems
    ]
    every_right = [value for right, _ in split for value in right]
    every_wrong = [value for _, wrong in split for value in wrong]
    contests = {number: both for number, both in enumerate(split) if all(both)}
    clusters = clusters or range(len(problems))
    flat = [
        (one, value, is_right) for one, problem in zip(clusters, problems, strict=True) for value, is_right in problem
    ]
    own = [one for one, _, _ in flat]
    bins = calibration([value for _, value, _ in flat], [float(mark) for _, _, mark in flat], PROBABILITIES, own)
    gaps = {number: max(wrong) - max(right) for number, (right, wrong) in contests.items()}
    failures = sorted((number for number, gap in gaps.items() if gap > 0), key=lambda number: -gaps[number])
    return OutcomeReport(
        problems=len(problems),
        solutions=len(flat),
        accuracy=share_by_cluster(own, [float((value >= 0.5) == mark) for _, value, mark in flat]),
        top=share_by_cluster(clusters, [_top(problem) for problem in problems]),
        chance=math.fsum(len(right) / (len(right) + len(wrong)) for right, wrong in split) / len(problems),
        ceiling=sum(bool(right) for right, _ in split) / len(problems),
        pairwise=_share_of({number: area_under_curve(*both) for number, both in contests.items()}, clusters),
        area=area_under_curve(every_right, every_wrong) if every_right and every_wrong else None,
        bins=bins,
        calibration_error=calibration_error(bins),
        worst=tuple(failures[:worst]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessReport:
    """A model that judges steps, on held-out traces."""

    traces: int
    steps: int
    accuracy: Interval  # of fine against bad, over steps; those of a trace are alike
    fine_recall: float | None  # the share of fine steps called fine; None without any
    bad_recall: float | None  # the share of bad steps called bad
    area: float | None  # a fine step above a bad one: the area under the ROC curve
    first_error: Interval | None  # of traces with a bad step: the first one is found exactly
    no_error: Interval | None  # of traces without one: none is called bad
    f1: float | None  # the harmonic mean of these two
    bins: tuple[Bin, ...]
    calibration_error: float
    worst: tuple[int, ...]  # traces that hold the most confident mistakes


def process_report(
    probabilities: Sequence[Sequence[float]],
    labels: Sequence[Sequence[int]],
    *,
    threshold: float = 0.5,
    clusters: Sequence[Hashable] = (),
    worst: int = WORST,
) -> ProcessReport:
    """From the stated probability that each step is fine, and its label: 1 good, 0 neither, −1 bad.

    A step is called bad below the threshold. The F1 of first errors is that of Zheng et al. 2024 (ProcessBench).
    """
    traces = [list(zip(*both, strict=True)) for both in zip(probabilities, labels, strict=True)]
    if not traces or not all(traces):
        raise ValueError("a report on steps needs traces with at least one step each")
    clusters = clusters or range(len(traces))
    own = [one for one, trace in zip(clusters, traces, strict=True) for _ in trace]
    flat = [step for trace in traces for step in trace]
    fine = [value for value, label in flat if label >= 0]
    bad = [value for value, label in flat if label < 0]
    bins = calibration([value for value, _ in flat], [float(label >= 0) for _, label in flat], PROBABILITIES, own)
    found = [_first_bad([value < threshold for value, _ in trace]) for trace in traces]
    truth = [_first_bad([label < 0 for _, label in trace]) for trace in traces]
    hits = {number: float(a == b) for number, (a, b) in enumerate(zip(found, truth, strict=True))}
    first_error = _share_of({number: hit for number, hit in hits.items() if truth[number] is not None}, clusters)
    no_error = _share_of({number: hit for number, hit in hits.items() if truth[number] is None}, clusters)
    mistakes = [max(abs(value - float(label >= 0)) for value, label in trace) for trace in traces]
    order = sorted(range(len(traces)), key=lambda number: -mistakes[number])
    return ProcessReport(
        traces=len(traces),
        steps=len(flat),
        accuracy=share_by_cluster(own, [float((value >= threshold) == (label >= 0)) for value, label in flat]),
        fine_recall=sum(value >= threshold for value in fine) / len(fine) if fine else None,
        bad_recall=sum(value < threshold for value in bad) / len(bad) if bad else None,
        area=area_under_curve(fine, bad) if fine and bad else None,
        first_error=first_error,
        no_error=no_error,
        f1=harmonic_mean(first_error.mean, no_error.mean) if first_error and no_error else None,
        bins=bins,
        calibration_error=calibration_error(bins),
        worst=tuple(number for number in order[:worst] if mistakes[number] > 0.5),
    )


Report = PairReport | OutcomeReport | ProcessReport


def report_metrics(report: Report) -> dict[str, float]:
    """The numbers of a report under the names that a run records; what could not be measured is left out."""
    names = {
        PairReport: (),
        OutcomeReport: ("top", "chance", "ceiling", "pairwise", "area"),
        ProcessReport: ("fine_recall", "bad_recall", "area", "first_error", "no_error"),
    }
    values: dict[str, Interval | float | None] = {
        name: getattr(report, name) for name in ("accuracy", "calibration_error", *names[type(report)])
    }
    if isinstance(report, PairReport):
        values |= {"margin": report.mean_margin.mean, "ties": report.ties / report.pairs}
        values |= {"longer": None if report.longer is None else report.longer.mean}
    if isinstance(report, ProcessReport):
        values["first_error_f1"] = report.f1
    return _flat(values)


def sigmoid(value: float) -> float:
    """1 / (1 + e^−x), for any x."""
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    return math.exp(value) / (1 + math.exp(value))


def softplus(value: float) -> float:
    """log(1 + eˣ), for any x."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def harmonic_mean(first: float, second: float) -> float:
    """2ab / (a + b), 0 where both are."""
    return 0.0 if first + second == 0 else 2 * first * second / (first + second)


def _by_margin(
    stated: Sequence[float | None], right: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[Slice, ...]:
    """Accuracy by quarter of the stated margin, of the pairs that have one."""
    if stated and len(stated) != len(right):
        raise ValueError(f"stated margins of {len(stated)} pairs for the scores of {len(right)}")
    known = {index: value for index, value in enumerate(stated) if value is not None}
    return quartiles(list(known.values()), [right[index] for index in known], [clusters[index] for index in known])


def _top(problem: Sequence[tuple[float, bool]]) -> float:
    """Whether the best-scored solution is right; the share of right ones among those that tie for it."""
    best = max(value for value, _ in problem)
    return fmean(float(is_right) for value, is_right in problem if value == best)


def _first_bad(is_bad: Sequence[bool]) -> int | None:
    return is_bad.index(True) if True in is_bad else None


def _share_of(outcomes: Mapping[int, float], clusters: Sequence[Hashable]) -> Interval | None:
    """Of some of the rows, by their numbers; None where there are none."""
    return share_by_cluster([clusters[number] for number in outcomes], list(outcomes.values())) if outcomes else None


def _flat(values: Mapping[str, Interval | float | None]) -> dict[str, float]:
    """What is known, under eval/; an interval also gives its ends."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Interval):
            flat |= {f"eval/{name}": value.mean, f"eval/{name}_low": value.low, f"eval/{name}_high": value.high}
        elif value is not None:
            flat[f"eval/{name}"] = float(value)
    return flat
