"""What all answers read from: the folder, and what was read before."""

from dataclasses import dataclass, field

from whet.ui.answers.standings import Standings
from whet.ui.library import Library


@dataclass(frozen=True)
class Sources:
    library: Library
    standings: Standings = field(default_factory=Standings)
