"""Reading recipes: a packaged name or a YAML file, dotted overrides on top, and errors that name the nearest key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from whet.config import OfflineConfig, OnlineConfig
from whet.errors import UserError

Config = OnlineConfig | OfflineConfig
LOOPS: dict[str, type[Config]] = {"online": OnlineConfig, "offline": OfflineConfig}
SHORT = {"lr": "optimizer.lr"}  # what people type most


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A recipe after overrides."""

    name: str
    config: Config
    written: Mapping[str, Any]  # what the file and the command line said, before defaults and presets


def read_recipe(source: str, overrides: Sequence[str] = ()) -> Recipe:
    """A packaged recipe by name, or a YAML file; `a.b=value` overrides on top."""
    text, name = _find(source)
    written = parse_yaml(text, where=source)
    for override in overrides:
        _apply(written, override)
    return Recipe(name=name, config=validate(written, where=source), written=written)


def packaged_recipes() -> dict[str, str]:
    """Name → text of the recipes that ship with the library."""
    files = resources.files("whet.recipes").iterdir()
    return {
        f.name.removesuffix(".yaml"): f.read_text("utf-8") for f in sorted(files, key=str) if f.name.endswith(".yaml")
    }


def validate(written: Mapping[str, Any], *, where: str) -> Config:
    """A config, or a UserError of one line that names the key."""
    loop = written.get("loop", "online")
    if loop not in LOOPS:
        raise UserError(f"{where}: loop is {loop!r}; it must be one of {', '.join(LOOPS)}")
    try:
        return LOOPS[loop].model_validate(written)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error, LOOPS[loop])}") from None


def dump(config: Config) -> str:
    """The resolved config as YAML: reading it again gives an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, *, where: str) -> dict[str, Any]:
    """A YAML mapping in which 5e-6 is a number."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: a recipe is a mapping of keys to values")
    return value


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


class _Loader(yaml.SafeLoader):
    """YAML 1.1 wants a dot in a float, so PyYAML reads 5e-6 as text. Nobody means text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _find(source: str) -> tuple[str, str]:
    packaged = packaged_recipes()
    if source in packaged:
        return packaged[source], source
    path = Path(source)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        try:
            return path.read_text("utf-8"), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{source}: cannot be read: {error}") from None
    raise UserError(f"no recipe {source!r}{nearest(source, packaged)} (see `whet recipes`, or give a .yaml file)")


def _apply(written: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"{override!r} is not an override: write key=value, e.g. optimizer.lr=1e-5")
    *path, last = SHORT.get(key, key).split(".")
    place = written
    for part in path:
        inner = place.get(part)
        if inner is None:
            inner = place[part] = {}
        elif isinstance(inner, str):  # `task: arithmetic` is short for a mapping
            inner = place[part] = {{"algorithm": "preset", "model": "path"}.get(part, "name"): inner}
        elif not isinstance(inner, dict):
            raise UserError(f"{override!r}: {part!r} is a value, not a section")
        place = inner
    try:
        place[last] = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError:
        place[last] = text


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        valid = _fields_at(model, location[:-1])
        return f"unknown key {key!r}{nearest(location[-1], valid)} (valid here: {', '.join(valid)})"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ")
    given = f", not {first['input']!r}" if isinstance(first["input"], str | int | float | bool | None) else ""
    return f"{key}: {message}{given}" if key else message


def _fields_at(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    """The keys of the section that a dotted location leads to."""
    for part in location:
        field = model.model_fields.get(part)
        if field is None:
            continue
        candidates = [field.annotation, *get_args(field.annotation)]
        for candidate in candidates:
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return list(model.model_fields)
