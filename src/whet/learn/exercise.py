"""What an exercise is: a file to fill in, checks of it, and hints.

A check looks at the learner's functions and returns None, or a remark: what is wrong and why, with an example. No
remark says how to write the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STUBS = Path(__file__).with_name("stubs")
PHASES = ("language models", "policy gradients", "preferences", "bug hunt", "broken runs")


@dataclass(frozen=True)
class Remark:
    sentence: str
    example: str = ""  # the call that shows it, with both answers


Functions = Mapping[str, Any]  # what the learner's file defines, by name
Check = Callable[[Functions], Remark | None]


@dataclass(frozen=True)
class Exercise:
    name: str
    title: str
    phase: str  # one of PHASES
    chapter: str  # its page in docs/learn
    checks: tuple[Check, ...]  # the first that finds something ends the examination
    hints: tuple[str, ...]  # from a nudge to the last step before the code

    @property
    def stub(self) -> Path:
        """The file that the learner starts from."""
        return STUBS / self.phase.replace(" ", "_") / f"{self.name.replace('-', '_')}.py"

    @property
    def recipe(self) -> Path | None:
        """The recipe that the learner runs, if the exercise is about one."""
        file = self.stub.with_suffix(".yaml")
        return file if file.is_file() else None
