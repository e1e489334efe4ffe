"""What all answers read from: the folder, and what was read before."""

from collections import OrderedDict
from dataclasses import dataclass, field

from whet.runs.directory import RunDirectory
from whet.runs.rollout_files import RolloutFiles
from whet.ui.answers.standings import Standings
from whet.ui.library import Library

KEPT = 4  # runs whose rollouts stay listed in memory


@dataclass(frozen=True)
class Sources:
    library: Library
    standings: Standings = field(default_factory=Standings)
    _rollouts: OrderedDict[str, RolloutFiles] = field(default_factory=OrderedDict)

    def rollouts(self, run: RunDirectory) -> RolloutFiles:
        """The rollouts of a run; those of the runs that were looked at last stay listed."""
        found = self._rollouts.pop(str(run.path), None) or RolloutFiles(run.path)
        self._rollouts[str(run.path)] = found
        while len(self._rollouts) > KEPT:
            self._rollouts.popitem(last=False)
        return found
