"""inputs.json: the files that a run was made from, by their checksums, and which changes of them were accepted.

Knows nothing about recipes: what the files are, and why they are read, is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.errors import RunFailed
from whet.runs import logs


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """What a key of a recipe names: a file, or a directory of files."""

    path: str  # as the recipe writes it
    files: Mapping[str, str]  # name → SHA-256; names are relative to a directory


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """An input that is not what it was."""

    key: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What a run was made from."""

    known: Mapping[str, Input] = field(default_factory=dict)  # by key of the recipe
    origin: str = ""  # fingerprint of the weights that training begins with; empty before it does
    accepted: tuple[Mapping[str, Any], ...] = ()  # changes that somebody let pass, oldest first


def read_inputs(file: Path) -> Inputs | None:
    """What was recorded; None where nothing was, as in runs of older versions."""
    if not file.exists():
        return None
    content = logs.read_json(file)
    try:
        known = {key: Input(path=entry["path"], files=dict(entry["files"])) for key, entry in content["inputs"].items()}
        return Inputs(known=known, origin=str(content["origin"]), accepted=tuple(map(dict, content["accepted"])))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunFailed(f"{file} is damaged: put it back, or remove it to go on without comparing inputs") from error


def write_inputs(file: Path, inputs: Inputs) -> None:
    """Puts the file in place whole."""
    known = {key: {"path": one.path, "files": dict(one.files)} for key, one in sorted(inputs.known.items())}
    content = {"inputs": known, "origin": inputs.origin, "accepted": list(inputs.accepted)}
    logs.write_atomic(file, logs.json_bytes(content, indent=1) + b"\n")


def changes(began: Mapping[str, Input], now: Mapping[str, Input]) -> list[Change]:
    """What is gone or has another content; what was not there at the beginning is no change."""
    found = []
    for key, old in began.items():
        if key not in now:
            found.append(Change(key=key, sentence=f"{key} {old.path} is gone"))
        elif dict(now[key].files) != dict(old.files):
            found.append(
                Change(key=key, sentence=f"{key} {old.path} changed since the run began{_which(old, now[key])}")
            )
    return found


def accept(inputs: Inputs, now: Mapping[str, Input], passed: list[Change], *, after_step: int) -> Inputs:
    """The inputs of now, and in the history that they changed after a step."""
    history = [
        {
            "after_step": after_step,
            "key": change.key,
            "sentence": change.sentence,
            "before": dict(inputs.known[change.key].files),
        }
        for change in passed
    ]
    return Inputs(known=now, origin=inputs.origin, accepted=(*inputs.accepted, *history))


def _which(old: Input, new: Input) -> str:
    """Which files of a directory are others, missing or new."""
    if len(old.files) == len(new.files) == 1:
        return ""
    names = sorted(old.files.keys() | new.files.keys())
    other = [name for name in names if old.files.get(name) != new.files.get(name)]
    return f" ({len(other)} of its {len(names)} files: {other[0]}{', …' if len(other) > 1 else ''})"
