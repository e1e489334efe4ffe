"""Verdicts in sentences that claim no more than the intervals support.

One rule: a method is above or below another if the 95 % interval of their difference excludes 0; otherwise they cannot
be told apart. A sweep compares its methods with the best of them, a pipeline with the start model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whet.evaluate.statistics import Interval, paired_interval
from whet.report.comparison.entries import Values

if TYPE_CHECKING:
    from whet.report.comparison.sweep_results import MethodResult

PAIRS = 2  # shared seeds that a paired difference needs
TRUTHS = {"gold": "gold reward", "score": "score by the task", "judge": "judge's reward"}


def side(low: float | None, high: float | None, level: float) -> int:
    """1 if an interval lies above the level, −1 if below, else 0; also 0 without an interval."""
    return 0 if low is None or high is None else int(low > level) - int(high < level)


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Accuracy of the best method minus that of another, paired by seed."""

    interval: Interval
    seeds: int  # number of pairs

    @property
    def below(self) -> bool:
        """Whether the method is significantly below the best."""
        return side(self.interval.low, self.interval.high, 0.0) > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepVerdict:
    sentence: str
    best: str | None  # highest mean among methods with enough seeds
    gaps: dict[str, Gap]  # of other methods that share enough seeds with it


def compare_with_best(results: Sequence[MethodResult]) -> SweepVerdict:
    """Compares the method with the highest mean with each other one, by paired differences over seeds.

    The same seed means the same start weights, prompts and held-out examples, so paired differences vary less than
    accuracies. The intervals are corrected for multiple comparisons. The best is selected on the same data, which is
    valid for the claim made: "significantly below the best" means "is not the best method"; the truly best method gets
    this label only if one of its own differences leaves its interval (Hsu 1984). Of exactly equal methods one gets it
    in more than 5 % of cases (nine methods: about 10 %). Methods below the best are not ranked among each other.
    """
    enough = [result for result in results if len(result.finished) >= PAIRS]
    if not enough or len(results) < 2:
        return SweepVerdict(sentence=_too_few(results), best=None, gaps={})
    best, *_ = enough
    gaps = _gaps(best, [result for result in results if result is not best])
    return SweepVerdict(sentence=_sentence(best, results, gaps), best=best.method, gaps=gaps)


def _gaps(best: MethodResult, others: Sequence[MethodResult]) -> dict[str, Gap]:
    shared = {other.method: [seed for seed in best.accuracies if seed in other.accuracies] for other in others}
    compared = [other for other in others if len(shared[other.method]) >= PAIRS]
    gaps = {}
    for other in compared:
        seeds = shared[other.method]
        interval = paired_interval(
            [best.accuracies[seed] for seed in seeds],
            [other.accuracies[seed] for seed in seeds],
            trials=min(result.examples for result in (*best.finished, *other.finished)),
            comparisons=len(compared),
        )
        gaps[other.method] = Gap(interval=interval, seeds=len(seeds))
    return gaps


def _too_few(results: Sequence[MethodResult]) -> str:
    first = results[0]
    if first.accuracy is None:
        return "No run finished, so there is nothing to compare."
    highest = f"the highest held-out accuracy is that of {first.method}, {_percent(first.accuracy.mean)}"
    if len(results) == 1:
        return f"There is one method, so there is nothing to compare: {highest}."
    return f"One finished seed cannot tell methods apart, so nothing is claimed; {highest}."


def _sentence(best: MethodResult, results: Sequence[MethodResult], gaps: Mapping[str, Gap]) -> str:
    assert best.accuracy is not None
    tied = [r.method for r in results if r.method in gaps and r.accuracy and r.accuracy.mean == best.accuracy.mean]
    below = [method for method, gap in gaps.items() if gap.below]
    unclear = [method for method, gap in gaps.items() if not gap.below and method not in tied]
    left_out = [result.method for result in results if result is not best and result.method not in gaps]
    verb = "share" if tied else "has"
    parts = [
        f"{listed([best.method, *tied])} {verb} the highest mean held-out accuracy, {_percent(best.accuracy.mean)}"
    ]
    if below:
        parts.append(f"significantly below the best {'is' if len(below) == 1 else 'are'} {listed(below)}")
    if unclear:
        parts.append(f"{'' if below else 'but '}{listed(unclear)} cannot be told apart from {best.method}")
    if left_out:
        parts.append(f"too few seeds of {listed(left_out)} finished to compare")
    return "; ".join(parts) + (f" ({_basis(best, gaps)})." if gaps else ".")


def _basis(best: MethodResult, gaps: Mapping[str, Gap]) -> str:
    counts = [gap.seeds for gap in gaps.values()]
    seeds = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    together = "a 95 % interval" if len(gaps) == 1 else f"{len(gaps)} intervals that hold together with 95 %"
    return f"{together}, from paired differences over {seeds} seeds and {best.finished[0].examples} held-out examples"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def compare_with_start(results: Values) -> list[str]:
    """Verdict of a pipeline: by the task, by each judge, and which methods over-optimise the proxy."""
    methods, start, key = measured_methods(results), results["start_name"], task_key(results)
    name = TRUTHS[key] if key else ""
    task = {m["method"]: _sign(m["summary"][f"{key}_gain"], 0.0) for m in methods} if key else {}
    judge = {m["method"]: _sign(m["summary"]["wins"]["rate"], 0.5) for m in methods if m["summary"]["wins"]}
    asked = {m["method"]: _sign(m["pairwise"]["rate"], 0.5) for m in methods if m["pairwise"]}
    proxy = {m["method"]: _sign(m["summary"]["proxy_gain"], 0.0) for m in methods}
    fooled = [method for method, sign in task.items() if sign <= 0 and proxy[method] > 0]
    preferred = ("is", "are", f"preferred to {start}", f"liked less than {start}")
    sentences = [
        _claims(task, start, ("has", "have", f"a higher {name} than {start}", "a lower one")),
        _claims(judge, start, preferred, by="By the judge: "),
        _claims(asked, start, preferred, by=f"By {results['settings']['judge_model']}: "),
        _fooled(fooled, name),
    ]
    return [sentence for sentence in sentences if sentence]


def measured_methods(results: Values) -> list[Values]:
    """Methods with results, best first."""
    return [method for method in results["methods"] if method["summary"] is not None]


def task_key(results: Values) -> str | None:
    """Key of the task's own measure: `gold` (true reward), `score`, or None."""
    return next((key for key in ("gold", "score") if results["start"][key] is not None), None)


def _sign(interval: Values | None, level: float) -> int:
    return 0 if interval is None else side(interval["low"], interval["high"], level)


def _claims(signs: Mapping[str, int], start: str, words: tuple[str, str, str, str], by: str = "") -> str:
    """Which methods are better, worse, or cannot be told apart, from method → sign."""
    up, down, unclear = ([method for method, sign in signs.items() if sign == wanted] for wanted in (1, -1, 0))
    one, many, better, worse = words
    parts = [
        f"{listed(names)} {one if len(names) == 1 else many} {what}"
        for names, what in ((up, better), (down, worse))
        if names
    ]
    if unclear:
        parts.append(f"{listed(unclear)} cannot be told apart from {start}")
    return f"{by}{'; '.join(parts)}." if parts else ""


def _fooled(names: Sequence[str], truth: str) -> str:
    if not names:
        return ""
    one = len(names) == 1
    return (
        f"{listed(names)} {'pleases' if one else 'please'} the reward model that {'it was' if one else 'they were'} "
        f"trained against, but not the {truth}: over-optimised."
    )
