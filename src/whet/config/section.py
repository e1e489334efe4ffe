"""Base classes of the sections of a recipe, and the types of their keys."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from whet.errors import nearest

Positive = Annotated[int, Field(gt=0, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Above = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]  # at most a day
Amount = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch's generators take
ADAPTER = "adapter_config.json"
# Of a model, an adapter, a run or a checkpoint.
MODEL_FILES = ("config.json", ADAPTER, "best_model", "config.yaml", "model/config.json", f"model/{ADAPTER}")


def _is_url(value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError(f"{value!r} is not the address of a server: write e.g. http://127.0.0.1:8000")
    return value


Url = Annotated[str, AfterValidator(_is_url)]  # of a server; empty: none


def absolute_file(value: str, *, names: tuple[str, ...] = ()) -> str:
    """The path of a file or directory that exists, made absolute; one of the names, or one on the hub, as it is."""
    try:
        path = Path(value).expanduser()
        return str(path.absolute()) if value and value not in names and path.exists() else value
    except (OSError, ValueError, RuntimeError):  # not a path: too long, a null byte, no such user
        return value


def absolute_folder(value: str) -> str:
    """The path of a directory, which need not exist, made absolute."""
    try:
        return str(Path(value).expanduser().absolute()) if value else value
    except RuntimeError:  # no such user
        return value


def absolute_model(value: str) -> str:
    """The directory of a model or a run, made absolute; the name of a pulled model as it is."""
    place = absolute_file(value)
    # Path.exists raises for a name that no file system takes.
    return place if any(os.path.exists(f"{place}/{name}") for name in MODEL_FILES) else value


def absolute_code(value: str) -> str:
    """`file.py:name` with an absolute path; a module of this directory is named by its file."""
    place, colon, name = value.rpartition(":")
    if place.isidentifier() and place not in sys.modules:
        place = f"{place}.py" if Path(f"{place}.py").is_file() else place
    return f"{absolute_file(place)}:{name}" if colon and place.endswith(".py") else value


# A run keeps absolute paths, so that it can be resumed and evaluated from any directory.
DataPath = Annotated[str, AfterValidator(absolute_file)]
Folder = Annotated[str, AfterValidator(absolute_folder)]
ModelPath = Annotated[str, AfterValidator(absolute_model)]
CodePath = Annotated[str, AfterValidator(absolute_code)]


class Section(BaseModel):
    """A part of a recipe: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    shorthand: ClassVar[str] = ""  # the key that a text in place of the section sets; empty: there is none
    saved_if_set: ClassVar[tuple[str, ...]] = ()  # keys that a saved config has only if they differ from their default

    @model_serializer(mode="wrap")
    def _dumped(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = dump(self)
        for key in self.saved_if_set:
            if getattr(self, key) == type(self).model_fields[key].get_default(call_default_factory=True):
                written.pop(key, None)
        return written

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {cls.shorthand: value} if cls.shorthand and isinstance(value, str) else value

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts True as 1, and `steps: yes` would be one step.
        annotation = cls.model_fields[str(info.field_name)].annotation
        choices = [annotation, *get_args(annotation)]
        choices += [get_args(choice)[0] for choice in choices if get_origin(choice) is Annotated]  # of `Above | None`
        if isinstance(value, bool) and any(choice in (int, float) for choice in choices):
            raise ValueError(f"must be a number, not {str(value).lower()}")
        return value


class OpenSection(Section):
    """A section whose other keys are options of what it names."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def one_of(value: str, table: Mapping[str, Any], *, what: str = "name") -> str:
    """The value, if the table has it."""
    if value not in table:
        raise ValueError(f"unknown {what} {value!r}{nearest(value, table)} (known: {', '.join(table)})")
    return value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins; nested mappings are merged key by key."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
