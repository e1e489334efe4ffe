"""The doctor beside a training run: says its alarms when they first hold, and may end the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from whet.config.loops import Trained
from whet.distributed.world import World
from whet.doctor.causes import CAUSES
from whet.doctor.findings import ENDED, Finding
from whet.doctor.rules.all_rules import RULES
from whet.doctor.rules.rule import ANSWERS, ROLLOUTS
from whet.doctor.watch import Alarms, Watch
from whet.runs.directory import RunDirectory
from whet.runs.logs import plain_numbers
from whet.train.session.callbacks import Progress
from whet.train.session.checkpointed import Checkpointed

# Rules that read rollouts or answers end no run: a resumed one does not have those of before.
OF_ROLLOUTS = {name for rule in RULES if {ROLLOUTS, ANSWERS} & set(rule.reads) for name in rule.names}
CAUSES_TOLD = 2  # of an alarm
ENDING = {"critical": ("critical",), "warning": ("critical", "warning"), "never": ()}  # early_stopping.alarm → levels


class AlarmState(Checkpointed):
    """The alarms so far: a resumed run ends at the same step as one that was never stopped."""

    def __init__(self) -> None:
        self.alarms = Alarms()

    def numbers(self) -> dict[str, Any]:
        return self.alarms.numbers()

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        self.alarms.restore(numbers)


class AlarmWatch:
    """Only the process that writes the run looks; all end together."""

    def __init__(self, config: Trained, run: RunDirectory, world: World, progress: Progress) -> None:
        self._config, self._run, self._world, self._progress = config, run, world, progress
        self._evaluated = -1  # newest evaluation whose answers were read
        self._state = AlarmState()
        self._watch: Watch | None = None

    @property
    def kept(self) -> dict[str, Checkpointed]:
        """What checkpoints hold of it, where alarms may end the run."""
        return {"alarms": self._state} if ENDING[self._config.early_stopping.alarm] else {}

    def begin(self, parameters: int) -> None:
        """After the run is restored: the metrics that it has logged so far count."""
        if self._run.is_writer:
            settings, steps = self._config.model_dump(mode="json"), self._config.steps
            rows, alarms = self._run.metrics(), self._state.alarms
            self._watch = Watch(settings, steps=steps, parameters=parameters, rows=rows, alarms=alarms)

    def keep(self, step: int, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """The rollouts of a step, if it will be looked at."""
        if self._watch is not None and groups and self._watch.is_due(step):
            self._watch.keep(step, [row for group in groups for row in group])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """What the run logs of a step."""
        if self._watch is not None:
            self._watch.log(step, plain_numbers(metrics))

    def look(self, step: int, metrics: Mapping[str, float]) -> str:
        """Says the alarms that this step brings, before its evaluation; returns why they end the run, else ''."""
        found: list[Finding] = []
        if self._watch is not None:
            self._read_answers()
            found = self._watch.look(step, plain_numbers(metrics))
        for finding in found:
            self._progress.note(f"{finding.level}: {told(finding)}; see whet doctor {self._run.path}")
        rows = [{"rule": one.rule, "level": one.level, "finding": one.sentence} for one in found]
        self._run.show(step, "doctor/alarms", rows)
        levels = ENDING[self._config.early_stopping.alarm]
        if not levels:
            return ""
        fatal = [finding for finding in found if finding.level in levels and finding.rule not in OF_ROLLOUTS]
        if not self._world.max(float(bool(fatal))):
            return ""
        return f"{ENDED}: {fatal[0].rule}: {fatal[0].sentence}" if fatal else ENDED  # other ranks do not look

    def _read_answers(self) -> None:
        steps = self._run.answer_steps()
        if steps and steps[-1] > self._evaluated and self._watch is not None:
            self._evaluated = steps[-1]
            self._watch.keep_answers(steps[-1], self._run.answers(steps[-1]))


def told(finding: Finding) -> str:
    """An alarm in a line: what, since when, and what may cause it."""
    causes = "; or ".join(re.split("[:;]", CAUSES[name].sentence)[0] for name in finding.causes[:CAUSES_TOLD])
    return f"since step {finding.step}: {finding.sentence}" + (f" (perhaps: {causes})" if causes else "")
