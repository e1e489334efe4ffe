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

    @property
    def accepted_sentences(self) -> list[str]:
        """Which inputs were exchanged on the way, a sentence each."""
        return [f"{one['sentence']} (after step {one['after_step']})" for one in self.accepted]

    def changed_since(self, step: int) -> set[str]:
        """The keys of the inputs that were exchanged after this step."""
        return {one["key"] for one in self.accepted if one["after_step"] >= step}


def read_inputs(file: Path) -> Inputs | None:
    """What was recorded; None where nothing was, as in runs of older versions."""
    if not file.exists():
        return None
    try:
        return from_json(logs.read_json(file))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunFailed(f"{file} is damaged: put it back, or remove it to go on without comparing inputs") from error


def write_inputs(file: Path, inputs: Inputs) -> None:
    """Puts the file in place whole."""
    logs.write_atomic(file, logs.json_bytes(to_json(inputs), indent=1) + b"\n")


def to_json(inputs: Inputs) -> dict[str, Any]:
    """The inputs as JSON can say them."""
    known = {key: {"path": one.path, "files": dict(one.files)} for key, one in sorted(inputs.known.items())}
    return {"inputs": known, "origin": inputs.origin, "accepted": list(inputs.accepted)}


def from_json(content: Mapping[str, Any]) -> Inputs:
    """The inverse of `to_json`; whatever is not of its making raises one of Python's errors for wrong values."""
    known = {key: Input(path=entry["path"], files=dict(entry["files"])) for key, entry in content["inputs"].items()}
    accepted = tuple(map(dict, content["accepted"]))
    texts = [content["origin"], *(one.path for one in known.values())]
    texts += [text for one in known.values() for text in one.files.values()]
    texts += [change[name] for change in accepted for name in ("key", "sentence")]
    if not all(type(text) is str for text in texts) or not all(type(one["after_step"]) is int for one in accepted):
        raise TypeError("a value of another type")
    return Inputs(known=known, origin=content["origin"], accepted=accepted)


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
