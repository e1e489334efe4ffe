"""Evaluation of reward models on pairs, outcomes and steps, from their scores. Plain Python.

Ties count half, so a constant model has accuracy ½. Intervals account for correlation within clusters; without
clusters rows are independent.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

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
from whet.evaluate.statistics import Interval, flat_metrics

CONFIDENCES = tuple(0.5 + index / 20 for index in range(11))  # of a choice between two
PROBABILITIES = tuple(index / 10 for index in range(11))
WORST = 10  # examples listed


@dataclass(frozen=True, kw_only=True, slots=True)
class PairReport:
    """A preference model on held-out pairs."""

    kind: ClassVar[str] = "preference"
    pairs: int
    accuracy: Interval  # ties count half
    ties: int
    margins: tuple[float, ...]  # score of chosen − score of rejected, per pair
    mean_margin: Interval
    loss: float  # mean −log σ(margin)
    bins: tuple[Bin, ...]  # confidence σ(|margin|) against accuracy
    calibration_error: float
    longer: Interval | None  # accuracy of preferring the longer completion: the length bias of the data
    by_length: tuple[Slice, ...]  # quartiles of length of chosen − length of rejected
    by_margin: tuple[Slice, ...]  # quartiles of the margin in the data
    worst: tuple[int, ...]  # pairs with the most negative margins, worst first


def pair_report(
    chosen: Sequence[float],
    rejected: Sequence[float],
    *,
    lengths: Sequence[tuple[int, int]] = (),
    stated: Sequence[float | None] = (),
    clusters: Sequence[Hashable] = (),
) -> PairReport:
    """From the scores of both completions, their lengths, and the margins in the data (`stated`)."""
    margins = [first - second for first, second in zip(chosen, rejected, strict=True)]
    if not margins:
        raise ValueError("a report on pairs needs at least one pair")
    clusters = clusters or range(len(margins))
    right = [half_for_ties(margin, 0.0) for margin in margins]
    bins = calibration([1 / (1 + math.exp(-abs(margin))) for margin in margins], right, CONFIDENCES, clusters)
    differences = [float(first - second) for first, second in lengths]
    if {len(differences), len(stated)} - {0, len(margins)}:
        raise ValueError("lengths and stated margins must be those of all pairs")
    order = sorted(range(len(margins)), key=lambda index: margins[index])
    return PairReport(
        pairs=len(margins),
        accuracy=share_by_cluster(clusters, right),
        ties=margins.count(0.0),
        margins=tuple(margins),
        mean_margin=mean_by_cluster(clusters, margins),
        loss=math.fsum(max(-margin, 0.0) + math.log1p(math.exp(-abs(margin))) for margin in margins) / len(margins),
        bins=bins,
        calibration_error=calibration_error(bins),
        longer=share_by_cluster(clusters, [half_for_ties(value, 0.0) for value in differences])
        if differences
        else None,
        by_length=quartiles(differences, right, clusters),
        by_margin=_by_margin(stated, right, clusters),
        worst=tuple(index for index in order[:WORST] if margins[index] < 0),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeReport:
    """An outcome reward model on held-out problems with several solutions each."""

    kind: ClassVar[str] = "outcome"
    problems: int
    solutions: int
    accuracy: Interval  # over solutions, threshold ½
    top: Interval  # share of problems whose best-scored solution is right
    chance: float  # the same for a random solution
    ceiling: float  # share of problems with a right solution: the upper bound of `top`
    pairwise: Interval | None  # AUC within a problem, mean over problems with both kinds
    area: float | None  # AUC over all solutions
    bins: tuple[Bin, ...]
    calibration_error: float
    worst: tuple[int, ...]  # problems where a wrong solution scores furthest above the best right one


def outcome_report(
    probabilities: Sequence[Sequence[float]],
    correct: Sequence[Sequence[bool]],
    *,
    clusters: Sequence[Hashable] = (),
) -> OutcomeReport:
    """From the predicted probability and the correctness of each solution of each problem."""
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
        worst=tuple(failures[:WORST]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessReport:
    """A process reward model on held-out traces."""

    kind: ClassVar[str] = "process"
    traces: int
    steps: int
    accuracy: Interval  # fine against bad, over steps
    fine_recall: float | None  # None without fine steps
    bad_recall: float | None
    area: float | None  # AUC of fine against bad
    first_error: Interval | None  # traces with a bad step: the first is located exactly
    no_error: Interval | None  # traces without one: none is predicted bad
    f1: float | None  # harmonic mean of the two
    bins: tuple[Bin, ...]
    calibration_error: float
    worst: tuple[int, ...]  # traces with the most confident mistakes


def process_report(
    probabilities: Sequence[Sequence[float]],
    labels: Sequence[Sequence[int]],
    *,
    clusters: Sequence[Hashable] = (),
) -> ProcessReport:
    """From the predicted probability that each step is fine, and its label: 1 good, 0 neither, −1 bad.

    `f1` is that of ProcessBench (Zheng et al. 2024).
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
    found = [_first_bad([value < 0.5 for value, _ in trace]) for trace in traces]
    truth = [_first_bad([label < 0 for _, label in trace]) for trace in traces]
    hits = {number: float(a == b) for number, (a, b) in enumerate(zip(found, truth, strict=True))}
    first_error = _share_of({number: hit for number, hit in hits.items() if truth[number] is not None}, clusters)
    no_error = _share_of({number: hit for number, hit in hits.items() if truth[number] is None}, clusters)
    mistakes = [max(abs(value - float(label >= 0)) for value, label in trace) for trace in traces]
    order = sorted(range(len(traces)), key=lambda number: -mistakes[number])
    return ProcessReport(
        traces=len(traces),
        steps=len(flat),
        accuracy=share_by_cluster(own, [float((value >= 0.5) == (label >= 0)) for value, label in flat]),
        fine_recall=sum(value >= 0.5 for value in fine) / len(fine) if fine else None,
        bad_recall=sum(value < 0.5 for value in bad) / len(bad) if bad else None,
        area=area_under_curve(fine, bad) if fine and bad else None,
        first_error=first_error,
        no_error=no_error,
        f1=harmonic_mean(first_error.mean, no_error.mean) if first_error and no_error else None,
        bins=bins,
        calibration_error=calibration_error(bins),
        worst=tuple(number for number in order[:WORST] if mistakes[number] > 0.5),
    )


Report = PairReport | OutcomeReport | ProcessReport
# Kind of reward model → the metric of its accuracy: of pairs, completions or steps.
ACCURACY_OF = {"preference": "pair_accuracy", "outcome": "outcome_accuracy", "process": "step_accuracy"}


def report_metrics(report: Report) -> dict[str, float]:
    """The metrics of a report; those that could not be measured are left out."""
    names = {
        PairReport: (),
        OutcomeReport: ("top", "chance", "ceiling", "pairwise", "area"),
        ProcessReport: ("fine_recall", "bad_recall", "area", "first_error", "no_error"),
    }
    values: dict[str, Interval | float | None] = {ACCURACY_OF[report.kind]: report.accuracy}
    values |= {name: getattr(report, name) for name in ("calibration_error", *names[type(report)])}
    if isinstance(report, PairReport):
        values |= {"margin": report.mean_margin.mean, "ties": report.ties / report.pairs}
        values |= {"longer": None if report.longer is None else report.longer.mean}
    if isinstance(report, ProcessReport):
        values["first_error_f1"] = report.f1
    return flat_metrics(values)


def harmonic_mean(first: float, second: float) -> float:
    return 0.0 if first + second == 0 else 2 * first * second / (first + second)


def _by_margin(
    stated: Sequence[float | None], right: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[Slice, ...]:
    known = {index: value for index, value in enumerate(stated) if value is not None}
    return quartiles(list(known.values()), [right[index] for index in known], [clusters[index] for index in known])


def _top(problem: Sequence[tuple[float, bool]]) -> float:
    """Whether the best-scored solution is right; among ties the share of right ones."""
    best = max(value for value, _ in problem)
    return fmean(float(is_right) for value, is_right in problem if value == best)


def _first_bad(is_bad: Sequence[bool]) -> int | None:
    return is_bad.index(True) if True in is_bad else None


def _share_of(outcomes: Mapping[int, float], clusters: Sequence[Hashable]) -> Interval | None:
    return share_by_cluster([clusters[number] for number in outcomes], list(outcomes.values())) if outcomes else None
