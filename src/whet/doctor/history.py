"""What rules read: the metrics of a run up to a step, its settings, and some of its rollouts and answers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from whet.doctor import thresholds as at
from whet.doctor.settings import Settings
from whet.evaluate.measures import Measure, headline
from whet.runs.series import Rows, Series, columns, series

RECENT = 20  # steps of "now", if the run has at least twice as many
FEW = 5  # steps averaged as the start
SURE = 4.0  # standard errors by which a curve has moved
RISING = 2.0  # standard errors that excuse an alarm: some sign that the run learns
INTERVAL = 3.92  # standard errors from end to end of a 95 % interval
SOLVED = 0.9  # held-out accuracy of a nearly solved task
CONFIRMED = 2  # evaluations in a row that must be worse before a result counts as fallen

Row = Mapping[str, Any]
NOTHING = Series((), ())


class History:
    """A run until some step."""

    def __init__(
        self,
        *,
        rows: Rows,
        settings: Settings,
        steps: int = 0,
        rollouts: Mapping[int, Sequence[Row]] | None = None,
        answers: Mapping[int, Sequence[Row]] | None = None,
    ) -> None:
        """`steps` of the whole run, 0 if unknown; rollouts of some steps; answers to held-out prompts, of some."""
        self.rows, self.settings, self.steps = rows, settings, steps
        self.rollouts, self.answers = rollouts or {}, answers or {}
        self._columns: dict[str, Series] = {}  # of the whole run, shared by all its prefixes
        self._is_filled = False  # with all of them
        self._evaluations: dict[Measure, list[Row]] = {}
        self._last: int | None = None  # of a prefix

    def until(self, step: int) -> History:
        """The same run as it was after a step."""
        earlier = History(
            rows=self.rows[: bisect_right(self.rows, step, key=lambda row: int(row["step"]))],
            settings=self.settings,
            steps=self.steps,
            rollouts={at: rows for at, rows in self.rollouts.items() if at <= step},
            answers={at: rows for at, rows in self.answers.items() if at <= step},
        )
        self._fill()
        earlier._columns, earlier._last = self._columns, step
        first = self._first_evaluated  # not looked for again in every prefix
        earlier._first_evaluated = None if first is None or int(first["step"]) > step else first
        return earlier

    def _fill(self) -> None:
        """Reads all columns of the whole run."""
        if self._last is None and not self._is_filled:
            self._columns |= columns(self.rows)
            self._is_filled = True

    def series(self, name: str) -> Series:
        """The finite values of a metric, as steps and values; empty if it was not logged."""
        if name not in self._columns:
            if self._last is not None:
                return NOTHING
            self._columns[name] = series(self.rows, name)
        whole = self._columns[name]
        if self._last is None:
            return whole
        count = bisect_right(whole.steps, self._last)
        return whole if count == len(whole) else Series(whole.steps[:count], whole.values[:count])

    @cached_property
    def names(self) -> set[str]:
        """The names of all metrics."""
        return {name for row in self.rows for name in row}

    @cached_property
    def done(self) -> int:
        """Steps so far."""
        return max((int(row["step"]) for row in self.rows), default=0)

    @property
    def every_rollout(self) -> list[Row]:
        return [row for rows in self.rollouts.values() for row in rows]

    @cached_property
    def measure(self) -> Measure | None:
        """The headline of the evaluations."""
        return None if self._first_evaluated is None else headline(self._first_evaluated)

    @cached_property
    def _first_evaluated(self) -> Row | None:
        return next((row for row in self.rows if headline(row) is not None), None)

    def ends(self, measure: Measure | None = None) -> tuple[Row, Row] | None:
        """First and last row with a measure (the headline) and its interval; None without two."""
        measure = measure or self.measure
        rows = [] if measure is None else self.evaluations(measure)
        return (rows[0], rows[-1]) if len(rows) > 1 else None

    def evaluations(self, measure: Measure) -> list[Row]:
        """The rows that have a measure and its interval."""
        names = (measure.metric, *measure.interval)
        if measure not in self._evaluations:
            found = [row for row in self.rows if all(row.get(name) is not None for name in names)]
            self._evaluations[measure] = found
        return self._evaluations[measure]

    @property
    def result(self) -> float:
        """The newest held-out result where it is a share; else 0."""
        ends = self.ends()
        return 0.0 if ends is None else self._share(ends[1])

    @property
    def is_solved(self) -> bool:
        return self.result >= SOLVED

    @property
    def is_never_right(self) -> bool:
        """Whether held-out results are shares, and all of them 0."""
        measure = self.measure
        results = self.series(measure.metric).values if measure is not None and measure.is_share else ()
        return bool(results) and max(results) == 0

    def _share(self, row: Row) -> float:
        measure = self.measure
        return float(row[measure.metric]) if measure is not None and measure.is_share else 0.0

    @property
    def has_gained(self) -> bool | None:
        """Whether the held-out result is better than before training, intervals apart; None without two evaluations."""
        ends, measure = self.ends(), self.measure
        return None if ends is None or measure is None else _is_worse(measure, ends[0], ends[1])

    @property
    def has_lost(self) -> bool | None:
        """Whether the held-out result has become worse than before training; None without two evaluations."""
        return None if self.measure is None else self.has_fallen(self.measure)

    def has_fallen(self, measure: Measure) -> bool | None:
        """Whether a result is worse than before training, intervals apart; None without two evaluations.

        One bad evaluation is not enough while the run goes on: the last two must be worse, and not be rising again. In
        its first half a policy that leaves what it imitated may dip and recover: there most of the result must be
        lost, while training does not rise either: neither correct rollouts nor a reward that is the task's own.
        """
        rows = self.evaluations(measure)
        if len(rows) < 2:
            return None
        wanted = 1 if self.is_over else CONFIRMED
        newest = rows[1:][-wanted:]
        if len(newest) < wanted or not all(_is_worse(measure, row, rows[0]) for row in newest):
            return False
        if self.is_over or not measure.is_higher_better:
            return True
        before, last = (row[measure.metric] for row in newest)
        if self.done >= self.steps / 2:
            return bool(last <= before)
        return last <= min(before, at.DIPPED * rows[0][measure.metric]) and not self._trains_well

    @property
    def _trains_well(self) -> bool:
        """Whether more rollouts are correct than at the start, or are worth more to the task's own reward."""
        has_own_reward = self.settings.get("reward.functions") or self.settings.get("reward.model")
        curves = ("correct",) if has_own_reward else ("correct", "reward/mean")
        return any(moved(self.series(name)) >= RISING for name in curves)

    @property
    def risen(self) -> float:
        """By how many standard errors the held-out result became better, by a line through all evaluations.

        The errors are those of independent samples. Evaluations share their prompts, so what is chance is less.
        """
        rows = [] if self.measure is None else self.evaluations(self.measure)
        if self.measure is None or len(rows) < 2:
            return 0.0
        low, high = self.measure.interval
        error = _mean([float(row[high]) - float(row[low]) for row in rows]) / INTERVAL
        middle = _mean([float(row["step"]) for row in rows])
        places = [float(row["step"]) - middle for row in rows]
        spread = math.sqrt(math.fsum(place * place for place in places))
        if not error > 0 or spread == 0:
            return 0.0
        change = math.fsum(place * float(row[self.measure.metric]) for place, row in zip(places, rows, strict=True))
        return change / (spread * error) * (1.0 if self.measure.is_higher_better else -1.0)

    @property
    def is_over(self) -> bool:
        """Whether all steps are made, as far as their number is known."""
        return self.done >= self.steps


def _is_worse(measure: Measure, row: Row, than: Row) -> bool:
    """Whether the interval of a result is wholly on the bad side of another's."""
    low, high = measure.interval
    return bool(row[high] < than[low] if measure.is_higher_better else row[low] > than[high])


def start(curve: Series) -> float:
    """The mean of the first steps."""
    return _mean(curve.values[:FEW])


def recent(curve: Series) -> int:
    """Number of steps of `now`: at most half of all, so that they do not overlap the start."""
    return min(RECENT, (len(curve) + 1) // 2)


def now(curve: Series) -> float:
    """The mean of the last steps."""
    return _mean(curve.values[-recent(curve) :])


def last_steps(curve: Series) -> str:
    count = recent(curve)
    return "the last step" if count == 1 else f"the last {count} steps"


def moved(curve: Series) -> float:
    """By how many standard errors the last quarter of a curve is above its first; 0 for a short or constant one.

    The noise of a step is estimated from differences of neighbours, which a slow trend hardly changes.
    """
    quarter = len(curve) // 4
    if quarter < 2:
        return 0.0
    differences = [after - before for before, after in zip(curve.values, curve.values[1:], strict=False)]
    noise = math.sqrt(sum(gap * gap for gap in differences) / (2 * len(differences)))
    change = _mean(curve.values[-quarter:]) - _mean(curve.values[:quarter])
    if noise == 0 or change == 0:
        return 0.0 if change == 0 else math.copysign(math.inf, change)
    return change / (noise * math.sqrt(2 / quarter))


def newer_half(curve: Series) -> Series:
    """The second half of its steps."""
    middle = len(curve) // 2
    return Series(curve.steps[middle:], curve.values[middle:])


def share_above(curve: Series, limit: float) -> float:
    """The share of the last steps that are above a limit."""
    values = curve.values[-recent(curve) :]
    return sum(value > limit for value in values) / len(values)


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # of values near the largest float
        return math.fsum(value / len(values) for value in values)
