"""Examines a learner's file in a limited child process: endless loops and crashes end in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whet.learn.exercise import Exercise, Remark
from whet.limited_process import LimitedProcess, ProcessEnded

SECONDS = 20.0  # of CPU time for a file and all checks of it
_EXAMINER = LimitedProcess(Path(__file__).with_name("examiner_process.py"))


@dataclass(frozen=True)
class Verdict:
    passed: int  # checks before the first remark
    remark: Remark | None  # None: the exercise is solved
    printed: str  # what the file printed while it was checked


def examine(exercise: Exercise, file: Path) -> Verdict:
    """What the checks of the exercise say of the file."""
    try:
        told = _EXAMINER.ask({"exercise": exercise.name, "file": str(file.absolute()), "seconds": SECONDS})
    except ProcessEnded as end:
        slow = f"the file does not come to an end within {SECONDS:g} s of CPU time: look for a loop that never ends"
        return Verdict(0, Remark(slow if end.is_slow else f"Python itself ended while it ran the file: it {end}"), "")
    except TimeoutError as error:
        return Verdict(0, Remark(f"the file {error}: it waits for something (sleep, a lock, the network)"), "")
    remark = Remark(**told["remark"]) if told["remark"] else None
    return Verdict(told["passed"], remark, told["printed"])
