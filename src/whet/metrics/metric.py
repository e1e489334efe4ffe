"""One row of the table of metrics, and how the name of a logged metric leads to it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

Loop = Literal["online", "sft", "lm", "denoise", "preference", "reward", "collect", "control", "off_policy"]
Better = Literal["higher", "lower", ""]
LOOPS: tuple[Loop, ...] = get_args(Loop)
EVERY_STEP: tuple[Loop, ...] = tuple(loop for loop in LOOPS if loop != "collect")  # loops with optimizer steps
ACTING: tuple[Loop, ...] = ("control", "off_policy")  # in environments
# Capitals in a name stand for a number or for a name that a recipe gives.
NUMBERS, NAMES = ("AGE", "K"), ("NAME", "TASK")
CAPITALS = re.compile(r"\b(" + "|".join((*NUMBERS, *NAMES)) + r")\b")


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """What is to be known of a metric."""

    name: str  # as it is logged; capitals stand for a name or a number
    label: str  # in words
    formula: str  # with what it is a mean or a sum over
    healthy: str  # where it is in runs that learn
    rises: str  # what it means when it rises, and what to look at next
    falls: str
    loops: tuple[Loop, ...]  # that log it
    code: str  # FILE:FUNCTION that computes it
    unit: str = ""
    better: Better = ""  # empty: neither, or it depends
    needs: str = ""  # what a run must have for it to be logged
    band: tuple[float | None, float | None] = (None, None)  # healthy values in numbers
    has_interval: bool = False  # whether NAME_low and NAME_high are logged too: the ends of its 95 % interval
    rules: tuple[str, ...] = ()  # of the doctor, that read it
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # library → its name there

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What the names of its values match."""
        parts = CAPITALS.split(self.name)
        written = "".join(
            re.escape(part) if number % 2 == 0 else r"\d+" if part in NUMBERS else ".+"
            for number, part in enumerate(parts)
        )
        return re.compile(written + ("(_low|_high)?" if self.has_interval else ""))
