"""Verdicts in sentences that claim no more than the intervals support.

One rule: a method is better or worse than another if the 95 % interval of their difference excludes 0; otherwise they
cannot be told apart. A sweep compares its methods with the best of them, a pipeline with the start model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from whet.evaluate.measures import Measure, measure_of
from whet.evaluate.statistics import Interval, paired_interval, paired_means
from whet.number_format import number
from whet.report.comparison.entries import ACCURACY, Values

PAIRS = 2  # shared seeds that a paired difference needs
BY_ACCURACY = measure_of(ACCURACY)
TRUTHS = {"gold": "gold reward", "score": "score by the task", "judge": "judge's reward"}


def side(interval: Values | None, level: float) -> int:
    """1 if an interval lies above the level, −1 if below, else 0; also 0 without an interval."""
    if interval is None or interval["low"] is None:
        return 0
    return int(interval["low"] > level) - int(interval["high"] < level)


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepVerdict:
    sentence: str
    best: str | None  # best mean among methods with enough seeds
    gaps: dict[str, Values]  # how much worse than the best each other method with enough seeds in common is


def compare_with_best(methods: Sequence[Values], measure: Measure = BY_ACCURACY) -> SweepVerdict:
    """Compares the method with the best mean, the first, with each other one, by paired differences over seeds.

    The same seed means the same start weights, prompts and held-out examples, so paired differences vary less than
    values. The intervals are corrected for multiple comparisons. The best is selected on the same data, which is
    valid for the claim made: "significantly worse than the best" means "is not the best method"; the truly best method
    gets this label only if one of its own differences leaves its interval (Hsu 1984). Of exactly equal methods one gets
    it in more than 5 % of cases (nine methods: about 10 %). Methods below the best are not ranked among each other.
    """
    enough = [method for method in methods if len(finished(method)) >= PAIRS]
    if not enough or len(methods) < 2:
        return SweepVerdict(sentence=_too_few(methods, measure), best=None, gaps={})
    best, *_ = enough
    gaps = _gaps(best, [method for method in methods if method is not best], measure)
    return SweepVerdict(sentence=_sentence(best, methods, gaps, measure), best=best["method"], gaps=gaps)


def finished(method: Values) -> list[Values]:
    """The seeds of a method whose runs finished."""
    return [seed for seed in method["seeds"] if seed["value"] is not None]


def _gaps(best: Values, others: Sequence[Values], measure: Measure) -> dict[str, Values]:
    own = {seed["seed"]: seed["value"] for seed in finished(best)}
    shared = {other["method"]: [seed for seed in finished(other) if seed["seed"] in own] for other in others}
    compared = [other for other in others if len(shared[other["method"]]) >= PAIRS]
    gaps: dict[str, Values] = {}
    for other in compared:
        seeds = shared[other["method"]]
        pair = [own[seed["seed"]] for seed in seeds], [seed["value"] for seed in seeds]
        first, second = pair if measure.is_higher_better else pair[::-1]
        if measure.is_share:
            trials = min(seed["examples"] for seed in (*finished(best), *finished(other)))
            paired = paired_interval(first, second, trials=trials, comparisons=len(compared))
        else:
            paired = _paired_numbers(first, second, [finished(best), finished(other)], len(compared))
        interval = asdict(paired)
        gaps[other["method"]] = {**interval, "seeds": len(seeds), "worse": side(interval, 0.0) > 0}
    return gaps


def _paired_numbers(
    first: Sequence[float], second: Sequence[float], measured: Sequence[Sequence[Values]], comparisons: int
) -> Interval:
    """Of values that are no shares; their errors over examples are left out where they are not known."""
    errors = [error for seeds in measured if (error := error_over_examples(seeds)) is not None]
    return paired_means(first, second, errors=errors, comparisons=comparisons)


def error_over_examples(seeds: Sequence[Values]) -> float | None:
    """The standard error of a method's mean over the same examples: at most the root mean square of the seeds' own."""
    errors = [seed["error"] for seed in seeds]
    return None if None in errors else math.sqrt(fmean(error**2 for error in errors))


def _too_few(methods: Sequence[Values], measure: Measure) -> str:
    first = methods[0]
    if first["value"] is None:
        return "No run finished, so there is nothing to compare."
    mean = first["value"]["mean"]
    done = [method for method in methods if method["value"] is not None]
    equal = [method["method"] for method in done if method["value"]["mean"] == mean]
    if len(equal) == 1:
        highest = f"the {_extreme(measure)} {measure.label} is that of {first['method']}, {_value(mean, measure)}"
    elif len(equal) < len(done):
        highest = f"{listed(equal)} share the {_extreme(measure)} {measure.label}, {_value(mean, measure)}"
    else:
        highest = f"{listed(equal)} are equal in {measure.label}, {_value(mean, measure)}"
    if len(methods) == 1:
        return f"There is one method, so there is nothing to compare: {highest}."
    return f"One finished seed cannot tell methods apart, so nothing is claimed; {highest}."


def _sentence(best: Values, methods: Sequence[Values], gaps: Mapping[str, Values], measure: Measure) -> str:
    name, mean = best["method"], best["value"]["mean"]
    tied = [method["method"] for method in methods if method["method"] in gaps and method["value"]["mean"] == mean]
    worse = [method for method, gap in gaps.items() if gap["worse"]]
    unclear = [method for method, gap in gaps.items() if not gap["worse"] and method not in tied]
    left_out = [method["method"] for method in methods if method is not best and method["method"] not in gaps]
    verb = "share" if tied else "has"
    parts = [f"{listed([name, *tied])} {verb} the {_extreme(measure)} mean {measure.label}, {_value(mean, measure)}"]
    if worse:
        parts.append(f"significantly worse than the best {'is' if len(worse) == 1 else 'are'} {listed(worse)}")
    if unclear:
        parts.append(f"{'' if worse else 'but '}{listed(unclear)} cannot be told apart from {name}")
    if left_out:
        parts.append(f"too few seeds of {listed(left_out)} finished to compare")
    return "; ".join(parts) + (f" ({_basis(best, gaps, measure)})." if gaps else ".")


def _basis(best: Values, gaps: Mapping[str, Values], measure: Measure) -> str:
    counts = [gap["seeds"] for gap in gaps.values()]
    seeds = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    together = "a 95 % interval" if len(gaps) == 1 else f"{len(gaps)} intervals that hold together with 95 %"
    done = finished(best)
    known = measure.is_share or error_over_examples(done) is not None
    examples = f" and {done[0]['examples']} held-out examples" if known else ""
    return f"{together}, from paired differences over {seeds} seeds{examples}"


def _extreme(measure: Measure) -> str:
    return "highest" if measure.is_higher_better else "lowest"


def _value(value: float, measure: Measure) -> str:
    return f"{100 * value:.1f} %" if measure.is_share else number(value)


def compare_with_start(results: Values) -> list[str]:
    """Verdict of a pipeline: by the task, by each judge, and which methods over-optimise the proxy."""
    methods, start, key = measured_methods(results), results["start_name"], task_key(results)
    name = TRUTHS[key] if key else ""
    task = {m["method"]: side(m["summary"][f"{key}_gain"], 0.0) for m in methods} if key else {}
    judge = {m["method"]: side(m["summary"]["wins"]["rate"], 0.5) for m in methods if m["summary"]["wins"]}
    asked = {m["method"]: side(m["pairwise"]["rate"], 0.5) for m in methods if m["pairwise"]}
    proxy = {m["method"]: side(m["summary"]["proxy_gain"], 0.0) for m in methods}
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
