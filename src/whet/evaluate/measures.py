"""Headline metrics of evaluations: what each is called in words, how it is written, and which direction is better."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

LOWER_IS_BETTER = (
    *("loss", "bits_per_character", "bits_per_byte", "truncated", "calibration_error", "ties"),
    *("bound", "bound_bits_per_character", "bound_bits_per_byte", "masked_loss"),
)
PARTS = "parts"  # of the reward: eval/parts/NAME, of which more is always better
# eval/prompts: how many were answered; graded: those with a reference answer; scored: those with a reward.
COUNTS = ("prompts", "graded", "scored", "rows", "windows")
OF_TEXT = ("windows", "rows")  # windows of a text, or rows of data
SHARES = ("match", "matched")  # parts of the reward: tokens, or characters, that are those of the text


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A metric `eval/NAME`; of a named evaluation set `eval/SET/NAME`."""

    metric: str
    label: str
    is_share: bool = False
    counted_by: tuple[str, ...] = ("prompts",)  # of COUNTS, the first that an evaluation has is its sample size

    @property
    def is_higher_better(self) -> bool:
        return _is_part(self.metric) or self.metric.rpartition("/")[2] not in LOWER_IS_BETTER

    @property
    def interval(self) -> tuple[str, str]:
        """The metrics of its 95 % interval."""
        return f"{self.metric}_low", f"{self.metric}_high"

    @property
    def counts(self) -> tuple[str, ...]:
        """The metrics of its sample size; the first that was measured counts."""
        return tuple(f"{self.metric.rpartition('/')[0]}/{name}" for name in self.counted_by)

    def text(self, value: float) -> str:
        return f"{value:.1%}" if self.is_share else f"{value:.4g}"

    def with_interval(self, row: Mapping[str, Any]) -> str:
        """The value in a row of metrics, with its interval if it has one."""
        ends = self.ends(row)
        return self.text(row[self.metric]) + (f" [{' … '.join(ends)}]" if len(ends) == 2 else "")

    def ends(self, row: Mapping[str, Any]) -> list[str]:
        """The ends of its interval in a row of metrics; those of a share are within 0 and 1."""
        found = [row[name] for name in self.interval if row.get(name) is not None]
        is_bounded = self.is_share or self._is_share_in(row)
        return [self.text(min(1.0, max(0.0, end)) if is_bounded else end) for end in found]

    def _is_share_in(self, row: Mapping[str, Any]) -> bool:
        """Whether it is a part of the reward that is a share, or a reward that equals one."""
        above, _, name = self.metric.rpartition("/")
        if _is_part(self.metric):
            return name in SHARES
        shares = [f"{above}/{PARTS}/{part}" for part in SHARES] if name == "reward" else []
        ends = ("", "_low", "_high")
        return any(all(row.get(share + end) == row.get(self.metric + end) for end in ends) for share in shares)

    def sample_size(self, row: Mapping[str, Any]) -> str:
        """`on 8 prompts`, from the counts in a row of metrics; empty if it has none."""
        named = zip(self.counted_by, self.counts, strict=True)
        name, count = next(((name, row[key]) for name, key in named if row.get(key) is not None), ("", None))
        if count is None:
            return ""
        unit = name if name in OF_TEXT else self.counted_by[-1]
        return f"on {count:,.0f} {unit.removesuffix('s') if count == 1 else unit}"

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is an improvement; an equal one is none."""
        return value > than if self.is_higher_better else value < than


# In this order the first that was measured stands for the evaluation: what the task calls correct, then the reward,
# then the metrics of the rows that an offline run learns from.
MEASURES = (
    Measure(metric="eval/accuracy", label="held-out accuracy", is_share=True, counted_by=("graded", "prompts")),
    Measure(metric="eval/reward", label="held-out reward", counted_by=("scored", "prompts")),
    Measure(metric="eval/pair_accuracy", label="held-out pair accuracy", is_share=True, counted_by=("rows",)),
    Measure(metric="eval/label_accuracy", label="held-out label accuracy", is_share=True, counted_by=("rows",)),
    Measure(metric="eval/outcome_accuracy", label="held-out outcome accuracy", is_share=True, counted_by=("rows",)),
    Measure(metric="eval/step_accuracy", label="held-out step accuracy", is_share=True, counted_by=("rows",)),
    Measure(metric="eval/loss", label="held-out loss", counted_by=OF_TEXT),
    Measure(metric="eval/bound", label="held-out bound (nats a token)", counted_by=OF_TEXT),
    Measure(metric="eval/masked_loss", label="held-out masked loss", counted_by=OF_TEXT),
    Measure(metric="eval/token_accuracy", label="held-out token accuracy", is_share=True, counted_by=OF_TEXT),
)
PLACES = {one.metric: place for place, one in enumerate(MEASURES)}
# Others with a name in words; they do not stand for an evaluation.
OTHERS = (
    Measure(metric="eval/gold", label="held-out gold reward"),
    Measure(metric="eval/length", label="held-out tokens per answer"),
    Measure(metric="eval/truncated", label="held-out truncated", is_share=True),
    Measure(metric="eval/margin", label="held-out margin", counted_by=("rows",)),
    Measure(metric="eval/masked_accuracy", label="held-out masked accuracy", is_share=True, counted_by=OF_TEXT),
    Measure(metric="eval/bits_per_character", label="held-out bits per character", counted_by=OF_TEXT),
    Measure(metric="eval/bits_per_byte", label="held-out bits per byte", counted_by=OF_TEXT),
    Measure(metric="eval/bound_bits_per_character", label="held-out bound, bits per character", counted_by=OF_TEXT),
    Measure(metric="eval/bound_bits_per_byte", label="held-out bound, bits per byte", counted_by=OF_TEXT),
)


def measures_in(measured: Mapping[str, Any]) -> list[Measure]:
    """The headline measures among these metrics, the most important first; those of named evaluation sets last."""
    found = [
        measure_of(metric) for metric, value in measured.items() if metric.startswith("eval/") and value is not None
    ]
    known = [one for one in found if _plain(one.metric) in PLACES]

    def order(one: Measure) -> tuple[bool, int, str]:
        return bool(_set(one.metric)), PLACES[_plain(one.metric)], _set(one.metric)

    return sorted(known, key=order)


def headline(measured: Mapping[str, Any]) -> Measure | None:
    """The measure that stands for an evaluation."""
    return next(iter(measures_in(measured)), None)


def evaluations(
    metrics: Sequence[Mapping[str, Any]], results: Mapping[str, Any] | None
) -> dict[Measure, list[Mapping[str, Any]]]:
    """Each headline measure that was evaluated → its evaluations before and after training.

    From the final results or else from the metrics so far; only the last if the evaluation before training is lost.
    """
    evaluated = [row for row in metrics if measures_in(row)]
    ends = [evaluated[0], evaluated[-1]] if len(evaluated) > 1 and evaluated[0].get("step", 0) == 0 else evaluated[-1:]
    if results is not None and results.get("after"):
        ends = [row for row in (results.get("before"), results["after"]) if row]
    found = measures_in(ends[-1]) if ends else []
    return {measure: [row for row in ends if row.get(measure.metric) is not None] for measure in found}


def main_result(metrics: Sequence[Mapping[str, Any]], results: Mapping[str, Any] | None) -> str:
    """The headline measure before and after training, in words; empty if nothing was evaluated."""
    for measure, rows in evaluations(metrics, results).items():
        return f"{measure.label} {' → '.join(measure.text(row[measure.metric]) for row in rows)}"
    return ""


def measure_of(metric: str) -> Measure:
    """The measure of a metric's name; an unknown one is a plain number, or a share if its name says so."""
    known = next((one for one in (*MEASURES, *OTHERS) if one.metric == _plain(metric)), None)
    if known is None:
        name = metric.removeprefix("eval/")
        words = name if "parts/" in name else name.replace("_", " ")  # parts are called as the user's functions are
        is_share = name.endswith("accuracy") or name.rpartition("/")[2].startswith(("pass@", "maj@", "best-of-"))
        return Measure(metric=metric, label=f"held-out {words}", is_share=is_share)
    return known if known.metric == metric else replace(known, metric=metric, label=f"{known.label} on {_set(metric)}")


def is_count(metric: str) -> bool:
    """Whether a metric of an evaluation is a number of prompts or rows, which measures nothing itself."""
    return _plain(metric).removeprefix("eval/") in COUNTS


def of_set(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an evaluation set, under its name."""
    return {f"eval/{name}/{key.removeprefix('eval/')}" if name else key: value for key, value in metrics.items()}


def _set(metric: str) -> str:
    return metric.removeprefix("eval/").rpartition("/")[0]


def _plain(metric: str) -> str:
    """The metric without its evaluation set; that of a part of the reward as it is."""
    return metric if _is_part(metric) else f"eval/{metric.rpartition('/')[2]}"


def _is_part(metric: str) -> bool:
    return PARTS in metric.split("/")[1:-1]
