"""The meaning of a reward model's outputs, and the settings file beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from whet.errors import RunFailed, UserError
from whet.files import read_object

RewardKind = Literal["preference", "outcome", "process"]
Aggregation = Literal["product", "min", "last"]

SETTINGS = "whet_reward.json"
FORMAT = 2
WITHOUT_LIMIT = 1  # the older format, without max_tokens
BAD = 0  # the class of a bad step; any other class, also neutral, counts as right (Lightman et al. 2023)


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardSettings:
    """Training settings of a reward model that scoring has to follow."""

    kind: RewardKind
    classes: int = 1  # scores per token: 1; for a process model 2 or 3
    every_token: bool = False  # outcome: trained at every token of the completion, not only the last
    separator: str = "\n"  # process: ends each step
    aggregation: Aggregation = "product"  # process: of step probabilities to one reward
    max_tokens: int | None = None  # texts were truncated to so many tokens; None: to the context

    def __post_init__(self) -> None:
        if self.kind not in get_args(RewardKind):
            raise UserError(f"unknown kind of reward model {self.kind!r}: use one of {', '.join(get_args(RewardKind))}")
        if self.aggregation not in get_args(Aggregation):
            raise UserError(f"unknown aggregation {self.aggregation!r}: use one of {', '.join(get_args(Aggregation))}")
        allowed = (2, 3) if self.kind == "process" else (1,)
        if self.classes not in allowed:
            raise UserError(
                f"a {self.kind} reward model has {' or '.join(map(str, allowed))} classes, not {self.classes}: "
                "correct 'classes'"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"a text has at least one token, not {self.max_tokens}: correct 'max_tokens'")
        if self.kind == "process" and not self.separator:
            raise UserError(
                "a process reward model needs a text that ends each step: set 'separator', for example to '\\n'"
            )


def step_classes(labels: Sequence[int], classes: int) -> list[int]:
    """The class of each step labelled 1 (good), 0 (neutral) or −1 (bad): bad, neutral, good; or bad, right."""
    return [label + 1 if classes == 3 else int(label >= 0) for label in labels]


def write_settings(directory: Path, settings: RewardSettings) -> None:
    """Writes whet_reward.json."""
    content = {"format": FORMAT, **asdict(settings)}
    try:
        (directory / SETTINGS).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"{directory}: the model cannot be saved ({error})") from error


def read_settings(directory: Path) -> RewardSettings | None:
    """The settings of whet_reward.json; None if the directory has no such file."""
    path = directory / SETTINGS
    if not path.exists():
        return None
    content = read_object(path)
    written = content.pop("format", None)
    if written not in (WITHOUT_LIMIT, FORMAT):
        raise UserError(f"{path} is of format {written!r}, not {FORMAT}: save the reward model again with this whet")
    if written == WITHOUT_LIMIT:
        content = {"max_tokens": None, **content}
    try:
        return RewardSettings(**_typed(content))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _typed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The entries, each checked to have the type of its field."""
    types: dict[str, tuple[type, ...]] = {
        "kind": (str,),
        "classes": (int,),
        "every_token": (bool,),
        "separator": (str,),
        "aggregation": (str,),
        "max_tokens": (int, type(None)),
    }
    if content.keys() != types.keys():
        wrong = sorted(content.keys() ^ types.keys())[0]
        raise UserError(f"key {wrong!r} is {'unknown' if wrong in content else 'missing'}: save the model again")
    for name, kinds in types.items():
        if type(content[name]) not in kinds:
            raise UserError(f"{name!r} is {content[name]!r}: expected {kinds[0].__name__}")
    return dict(content)
