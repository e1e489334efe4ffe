"""The meaning of a reward model's outputs, and the settings file beside its weights."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from whet.errors import RunFailed, UserError
from whet.files import read_object

RewardKind = Literal["preference", "outcome", "process"]
Aggregation = Literal["product", "min", "last"]

SETTINGS = "whet_reward.json"
FORMATS = (1, 2)  # the first without max_tokens
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")  # ends of transformers' class names
BAD = 0  # the class of a bad step; any other class, also neutral, counts as right (Lightman et al. 2023)


@dataclass(frozen=True, kw_only=True, slots=True, config=ConfigDict(strict=True, extra="forbid"))
class RewardSettings:
    """Training settings of a reward model that scoring has to follow."""

    kind: RewardKind
    classes: int = 1  # scores per token: 1; for a process model 2 or 3
    every_token: bool = False  # outcome: trained at every token of the completion, not only the last
    separator: str = "\n"  # process: ends each step
    aggregation: Aggregation = "product"  # process: of step probabilities to one reward
    max_tokens: Annotated[int, Field(ge=1)] | None = None  # length to which texts were truncated; None: the context

    def __post_init__(self) -> None:
        allowed = (2, 3) if self.kind == "process" else (1,)
        if self.classes not in allowed:
            raise UserError(
                f"a {self.kind} reward model has {' or '.join(map(str, allowed))} classes, not {self.classes}: "
                "correct 'classes'"
            )
        if self.kind == "process" and not self.separator:
            raise UserError(
                "a process reward model needs a text that ends each step: set 'separator', for example to '\\n'"
            )


def reward_kind(directory: Path) -> RewardKind | None:
    """The kind of the reward model in a directory, without loading it; None if it holds no reward model.

    As when it is loaded, a classifier without whet_reward.json counts as a preference model.
    """
    settings = read_settings(directory)
    if settings is not None:
        return settings.kind
    config = directory / "config.json"
    names = read_object(config).get("architectures") if config.is_file() else None
    listed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return "preference" if any(name.endswith(CLASSIFIERS) for name in listed) else None


def step_classes(labels: Sequence[int], classes: int) -> list[int]:
    """The class of each step labelled 1 (good), 0 (neutral) or −1 (bad): bad, neutral, good; or bad, right."""
    return [label + 1 if classes == 3 else int(label >= 0) for label in labels]


def write_settings(directory: Path, settings: RewardSettings) -> None:
    """Writes whet_reward.json."""
    content = {"format": FORMATS[-1], **asdict(settings)}
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
    if written not in FORMATS:
        raise UserError(f"{path} is of format {written!r}, not {FORMATS[-1]}: save the reward model again")
    expected = {field.name for field in fields(RewardSettings)} - ({"max_tokens"} if written == FORMATS[0] else set())
    wrong = sorted(content.keys() ^ expected)
    if wrong:
        problem = f"key {wrong[0]!r} is {'unknown' if wrong[0] in content else 'missing'}"
        raise UserError(f"{path}: {problem}: save the model again")
    try:
        return RewardSettings(**content)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{first['loc'][0]!r} is {first['input']!r:.60}: {first['msg']}"
        raise UserError(f"{path}: {problem}; save the model again") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
