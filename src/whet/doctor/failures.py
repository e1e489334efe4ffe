"""What made a run fail, by the error that it recorded: whose code raised, or what was used up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from whet.doctor.by_kind import of_lost_numbers
from whet.doctor.settings import Settings

# Causes that only an error shows, besides `reward-fails`; none of them is voted for by a curve.
FAILURES: Mapping[str, str] = {
    "task-fails": "the code of the task raises or returns what a task may not",
    "environment-fails": "the environment raises, or does not answer in time",
    "own-code-fails": "a function of your own that the recipe names raises",
    "out-of-memory": "the memory of the device does not suffice; the error names the keys that need less",
    "disk-full": "the disk of the run directory is full, or cannot be written",
    "data-fails": "a row or a file of the data is not what the recipe says",
    "model-fails": "the error arose within the model: in its files, its forward pass or its tokeniser",
    "engine-fails": "the error arose while completions were sampled: in the engine, or the server that it asks",
}
NOT_FINITE = "not finite"  # in the error of a loss or gradient
MESSAGES = (
    (re.compile(r"out of memory|memory.{0,40} does not suffice", re.IGNORECASE), "out-of-memory"),
    (re.compile(r"No space left on device|Disk quota exceeded|Read-only file system|^[^:]*cannot write "), "disk-full"),
    (re.compile(r"^(task \S+: |step \d+: )*the environment\b"), "environment-fails"),
)
SECTIONS = {"reward": "reward-fails", "task": "task-fails", "environment": "environment-fails"}
ROOMS = {"data": "data-fails", "files": "data-fails", "models": "model-fails", "engines": "engine-fails"}
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
OURS = re.compile(r"/whet/(\w+)[/.]")  # a file of the library; its room
INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<")

Frame = Mapping[str, str]  # file, line, function


def causes_of(kind: str, failure: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """Names of causes, none if the error does not say; `kind` is the beginning of the name of its file."""
    error = str(failure.get("error", ""))
    if kind == "loss" or NOT_FINITE in error:
        return of_lost_numbers(settings)
    found = next((cause for message, cause in MESSAGES if message.search(error)), "")
    if not found and kind == "reward":
        is_own = bool(settings.get("reward.functions") or settings.get("reward.model"))
        found = "reward-fails" if is_own else "task-fails"
    if not found and kind == "task":
        found = "task-fails"
    return (found,) if found else _of_frames(list(frames(failure)), settings)


def frames(failure: Mapping[str, Any]) -> Iterator[Frame]:
    """Of the recorded traceback, the innermost last."""
    lines = failure.get("traceback")
    for line in lines if isinstance(lines, list) else ():
        if found := FRAME.match(str(line)):
            yield found.groupdict()


def last_frame(failure: Mapping[str, Any]) -> str:
    """The innermost frame of a user's own code, else the innermost of the library, in words; empty without any."""
    found = list(frames(failure))
    chosen = [one for one in found if _is_own(one)] or [one for one in found if OURS.search(one["file"])]
    if not chosen:
        return ""
    frame = chosen[-1]
    return f"{PurePath(frame['file']).name}:{frame['line']} in {frame['function']}"


def _of_frames(found: list[Frame], settings: Settings) -> tuple[str, ...]:
    own = [frame for frame in found if _is_own(frame)]
    if own:
        return (SECTIONS.get(_section(PurePath(own[-1]["file"]).stem, settings.config), "own-code-fails"),)
    rooms = [ours[1] for frame in found if (ours := OURS.search(frame["file"]))]
    return (ROOMS[rooms[-1]],) if rooms and rooms[-1] in ROOMS else ()


def _is_own(frame: Frame) -> bool:
    return not OURS.search(frame["file"]) and not INSTALLED.search(frame["file"])


def _section(module: str, config: Mapping[str, Any]) -> str:
    """The section of the recipe that names a function of this file; empty if none does."""
    return next((name for name, value in config.items() if any(_is_in(module, text) for text in _texts(value))), "")


def _is_in(module: str, text: str) -> bool:
    """Whether `file.py:name` or `package.module:name` is in a file of this name."""
    place, colon, _ = text.rpartition(":")
    return bool(colon) and module in (PurePath(place).stem, place.rpartition(".")[2])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
