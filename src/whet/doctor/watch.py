"""The doctor beside a run that trains: looks at it now and then, and says an alarm once it has lasted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from whet.doctor.diagnosis import findings_of, ranked
from whet.doctor.findings import LEVELS, Finding, Level
from whet.doctor.history import History
from whet.doctor.settings import Settings, kind_of

LOOKS = 40  # times that a run is looked at, from its first step to its last
HELD = 2  # looks in a row at which an alarm must hold to count
KEPT = 4  # of the newest looks, the rollouts that rules may read, besides those of the first

Rows = Sequence[Mapping[str, Any]]


class Alarms:
    """Which rules have held for how long, from one look to the next."""

    def __init__(self) -> None:
        self._last = -1  # step of the newest look
        self._held: dict[str, list[int]] = {}  # rule → the looks in a row at which it was an alarm
        self._since: dict[str, int] = {}  # rule → the step since which an alarm held that lasted
        self._told: dict[str, Level] = {}  # rule → the most serious level that was told
        self.lasted: dict[str, Finding] = {}  # rule → its newest alarm that lasted, with its first and last step

    def look(self, step: int, findings: Sequence[Finding]) -> list[Finding]:
        """Takes in the findings of a look; returns the alarms that have lasted for the first time at their level."""
        if step <= self._last:  # a step that is evaluated again after an interruption
            return []
        self._last = step
        alarms = {finding.rule: finding for finding in findings if finding.is_alarm}
        self._held = {rule: [*self._held.get(rule, []), step] for rule in alarms}
        told = []
        for rule, steps in self._held.items():
            if len(steps) < HELD:
                continue
            alarm, before = alarms[rule], self._told.get(rule, "ok")
            since = self._since.setdefault(rule, steps[0])
            self.lasted[rule] = replace(alarm, step=since, until=step)
            if LEVELS.index(alarm.level) < LEVELS.index(before):
                self._told[rule] = alarm.level
                told.append(self.lasted[rule])
        return told

    def numbers(self) -> dict[str, Any]:
        """What a checkpoint keeps of them."""
        held = {rule: list(steps) for rule, steps in self._held.items()}
        return {"last": self._last, "held": held, "since": dict(self._since), "told": dict(self._told)}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        self._last = numbers["last"]
        self._held = {rule: list(steps) for rule, steps in numbers["held"].items()}
        self._since, self._told = dict(numbers["since"]), dict(numbers["told"])


class Watch:
    """Looks at a run about `LOOKS` times while it trains."""

    def __init__(
        self, config: Mapping[str, Any], *, steps: int, parameters: int, rows: Rows = (), alarms: Alarms | None = None
    ) -> None:
        """`rows`, `alarms`: the metrics of the steps before and what they led to, of a run that is resumed."""
        self._config, self._steps, self._parameters = config, steps, parameters
        self._rows = list(rows)
        self._rollouts: dict[int, Rows] = {}
        self._answers: dict[int, Rows] = {}
        self._alarms = alarms or Alarms()

    def is_due(self, step: int) -> bool:
        return step % stride(self._steps) == 0 or step >= self._steps

    def keep(self, step: int, rollouts: Rows) -> None:
        """Rollouts of a step that is looked at."""
        self._rollouts[step] = list(rollouts)
        for old in sorted(self._rollouts)[1:-KEPT]:
            del self._rollouts[old]

    def keep_answers(self, step: int, answers: Rows) -> None:
        """Answers to held-out prompts; those of the newest evaluation are kept."""
        self._answers = {step: list(answers)}

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes in the metrics of a step, as the run logs them."""
        self._rows.append({"step": step, **metrics})

    def look(self, step: int, metrics: Mapping[str, Any]) -> list[Finding]:
        """The alarms that have lasted for the first time, by what was logged and the metrics of this step.

        Their causes are in the order in which all alarms so far make them likely.
        """
        if not self.is_due(step):
            return []
        rows = [*self._rows, {"step": step, **metrics}]
        names = {name for row in rows for name in row}
        settings = Settings(config=self._config, kind=kind_of(names), parameters=self._parameters)
        history = History(
            rows=rows,
            settings=settings,
            steps=self._steps,
            rollouts=self._rollouts,
            answers=self._answers,
        )
        told = self._alarms.look(step, findings_of(history))
        order = [cause.name for cause in ranked(list(self._alarms.lasted.values()), settings)]
        return [replace(one, causes=tuple(name for name in order if name in one.causes)) for one in told]


def stride(steps: int) -> int:
    """Steps between looks at a run of so many steps."""
    return max(1, steps // LOOKS)
