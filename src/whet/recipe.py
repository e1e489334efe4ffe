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
WHOLE = {"algorithm": "preset", "model": "path", "task": "name"}  # the key that a plain value of a section stands for
YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)  # ValueError: PyYAML builds dates and numbers unchecked
WANTED = {  # pydantic's kind of mistake → our words
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "tuple_type": "must be a list, e.g. [a, b]",
    **dict.fromkeys(("model_type", "model_attributes_type"), "must be a section with keys of its own"),
}


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
    if not isinstance(loop, str) or loop not in LOOPS:
        raise UserError(f"{where}: loop is {loop!r}; it must be one of {', '.join(LOOPS)}")
    try:
        return LOOPS[loop].model_validate(written)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error, LOOPS[loop])}") from None


def dump(config: Config) -> str:
    """The resolved config as YAML: reading it again gives an equal config."""
    written = config.model_dump(mode="json")
    if isinstance(config, OnlineConfig):  # without the options of all the cells that it does not use
        written["algorithm"] = {key: value for key, value in written["algorithm"].items() if value is not None}
    # In ASCII: PyYAML writes U+0085 as it is and reads it as a new line.
    return yaml.dump(written, Dumper=_Dumper, sort_keys=False)


def parse_yaml(text: str, *, where: str) -> dict[str, Any]:
    """A YAML mapping in which 5e-6 is a number."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except YAML_ERRORS as error:
        raise UserError(f"{where}: not valid YAML: {_yaml_problem(error)}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: a recipe is a mapping of keys to values, e.g. a line `steps: 100`")
    return value


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


class _Loader(yaml.SafeLoader):
    """YAML 1.1 wants a dot in a float, so PyYAML reads 5e-6 as text, and takes the last of two equal keys in silence.

    Nobody means that.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} comes again", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes that `_Loader` would take for a number."""


for _yaml in (_Loader, _Dumper):
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )


def _find(source: str) -> tuple[str, str]:
    packaged = packaged_recipes()
    if source in packaged:
        return packaged[source], source
    path = Path(source).expanduser()
    if path.is_dir():
        raise UserError(
            f"{source} is a directory: give a .yaml file, or go on with a run by whet train {source} --resume"
        )
    if path.suffix not in {".yaml", ".yml"}:
        raise UserError(f"no recipe {source!r}{nearest(source, packaged)} (see `whet recipes`, or give a .yaml file)")
    try:
        return path.read_text("utf-8"), path.stem
    except OSError as error:
        raise UserError(f"cannot read the recipe {source}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not a text file in UTF-8: {error.reason} at byte {error.start}") from None


def _apply(written: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"{override!r} is not an override: write key=value, e.g. optimizer.lr=1e-5")
    *path, last = SHORT.get(key, key).split(".")
    place = written
    for part in path:
        inner = place.get(part)
        if inner is None:
            inner = place[part] = {}
        elif isinstance(inner, str):  # `task: arithmetic` is short for a mapping
            inner = place[part] = {WHOLE.get(part, "use" if ":" in inner else "name"): inner}
        elif not isinstance(inner, dict):
            raise UserError(f"{override!r}: {part!r} is a value, not a section")
        place = inner
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except YAML_ERRORS:
        value = text
    if (path, last) == (["task"], "name") and place.get("name") != value:
        place.clear()  # the options were those of the other task
    if (path, last) == (["model"], "path"):
        place.pop("new", None)
    place[last] = value


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        valid = _fields_at(model, location[:-1])
        return f"unknown key {key!r}{nearest(location[-1], valid)} (valid here: {', '.join(valid)})"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    if first["type"] == "value_error":  # ours: it names the value itself
        message = first["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    wanted = WANTED.get(first["type"], first["msg"].replace("Input should be", "must be"))
    given = f", not {first['input']!r}" if isinstance(first["input"], str | int | float | bool | None) else ""
    return f"{key} {wanted}{given}"


def _yaml_problem(error: Exception) -> str:
    """What is wrong and where, without the excerpt that PyYAML draws over several lines."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} in line {mark.line + 1}, column {mark.column + 1}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())


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
