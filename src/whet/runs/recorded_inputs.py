"""inputs.json: checksums of a run's input files, and the accepted changes to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.errors import RunFailed
from whet.runs import logs


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """A file or directory that a key of the recipe names."""

    path: str  # as in the recipe
    files: Mapping[str, str]  # name → SHA-256; names are relative to a directory


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """An input that differs from the recorded one."""

    key: str
    sentence: str
    is_setting: bool = False  # a setting that the run is resumed with, such as more steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    known: Mapping[str, Input] = field(default_factory=dict)  # by key of the recipe
    origin: str = ""  # fingerprint of the initial weights; empty before training starts
    accepted: tuple[Mapping[str, Any], ...] = ()  # accepted changes, oldest first

    @property
    def accepted_sentences(self) -> list[str]:
        return [sentence_of(one) for one in self.accepted]

    def changed_since(self, step: int) -> set[str]:
        """The keys of the inputs that changed after this step."""
        return {one["key"] for one in self.accepted if one["after_step"] >= step}


def sentence_of(accepted: Mapping[str, Any]) -> str:
    return f"{accepted['sentence']} (after step {accepted['after_step']})"


def read_inputs(file: Path) -> Inputs | None:
    """The recorded inputs; None in runs of older versions."""
    if not file.exists():
        return None
    try:
        return from_json(logs.read_json(file))
    except (KeyError, TypeError, ValueError, AttributeError, RunFailed) as error:
        why = f" ({error})" if isinstance(error, RunFailed) else ""
        raise RunFailed(
            f"{file} is damaged{why}: restore it, or remove it to resume without comparing inputs"
        ) from error


def write_inputs(file: Path, inputs: Inputs) -> None:
    logs.write_atomic(file, logs.json_bytes(to_json(inputs), indent=1) + b"\n")


def to_json(inputs: Inputs) -> dict[str, Any]:
    known = {key: {"path": one.path, "files": dict(one.files)} for key, one in sorted(inputs.known.items())}
    return {"inputs": known, "origin": inputs.origin, "accepted": list(inputs.accepted)}


def from_json(content: Mapping[str, Any]) -> Inputs:
    """The inverse of `to_json`; invalid content raises KeyError, TypeError, ValueError or AttributeError."""
    known = {key: Input(path=entry["path"], files=dict(entry["files"])) for key, entry in content["inputs"].items()}
    accepted = tuple(map(dict, content["accepted"]))
    texts = [content["origin"], *(one.path for one in known.values())]
    texts += [text for one in known.values() for text in one.files.values()]
    texts += [change[name] for change in accepted for name in ("key", "sentence")]
    if not all(type(text) is str for text in texts) or not all(type(one["after_step"]) is int for one in accepted):
        raise TypeError("a value of another type")
    return Inputs(known=known, origin=content["origin"], accepted=accepted)


def changes(began: Mapping[str, Input], now: Mapping[str, Input]) -> list[Change]:
    """Inputs that are missing or have other content; new ones do not count."""
    found = []
    for key, old in began.items():
        if key not in now:
            found.append(Change(key=key, sentence=f"{key} {old.path} is missing"))
        elif dict(now[key].files) != dict(old.files):
            found.append(
                Change(key=key, sentence=f"{key} {old.path} changed since the run began{_which(old, now[key])}")
            )
    return found


def accept(inputs: Inputs, now: Mapping[str, Input], passed: list[Change], *, after_step: int) -> Inputs:
    """The new inputs, with the changes in their history."""
    history = [
        {
            "after_step": after_step,
            "key": change.key,
            "sentence": change.sentence,
            "before": dict(inputs.known[change.key].files),
            **({"setting": True} if change.is_setting else {}),
        }
        for change in passed
    ]
    return Inputs(known=now, origin=inputs.origin, accepted=(*inputs.accepted, *history))


def _which(old: Input, new: Input) -> str:
    """The changed, missing or new files of a directory."""
    if len(old.files) == len(new.files) == 1:
        return ""
    names = sorted(old.files.keys() | new.files.keys())
    other = [name for name in names if old.files.get(name) != new.files.get(name)]
    return f" ({len(other)} of its {len(names)} files: {other[0]}{', …' if len(other) > 1 else ''})"
