"""Reading recipes: a packaged name or a YAML file, dotted overrides on top, and errors that name the nearest key.

A recipe is of one run, or a pipeline of several.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from whet.config import OnlineConfig, loops
from whet.config.loops import LOOPS, NAMED, WHOLE
from whet.config.pipeline import PipelineConfig
from whet.config.unknown_keys import unknown_key
from whet.errors import UserError, nearest
from whet.runs.catalogue import MARK, find_run, runs_called, runs_root

Config = loops.Config
PIPELINE = "pipeline"  # the loop of a recipe that consists of others
RUNS_OF_PIPELINE = ("stages", "methods")
LENGTHS = {"steps": "epochs", "epochs": "steps"}  # a run has one of the two: an override of one replaces the other
WARM_UPS = {"warmup_steps": "warmup_share", "warmup_share": "warmup_steps"}  # likewise
QUOTES = ('""', "''", "[]", "{}")  # around values that are YAML, or nothing
SHORT = {"lr": "optimizer.lr"}  # the most common override
KEY_AND_VALUE = re.compile(r"(\w+):(\S.*)", re.DOTALL)
PASTED_LINE = re.compile(r"[ -]*(\w+):(?!//)(\S.*?)(?:\s+#.*|\s*)")  # a line of block style without the space
YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)  # ValueError: PyYAML builds dates and numbers unchecked
PROBLEMS = {  # pydantic's type of error → our words
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "string_pattern_mismatch": "must have letters, digits, - and _ only, and begin with a letter or a digit",
    "tuple_type": "must be a list, e.g. [a, b]",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be a section with keys of its own"),
}


# Keys that take a run, as @last or @PART of its name; the last three are of the section compare of a pipeline.
TAKES_RUN = re.compile(
    r"(model|reward\.model|data|task)(\.path)?|(data|data\.sets|task\.sets)\.\d+(\.path)?|reference|start|reward|judge"
)
ADVICE = {  # about keys that a recipe cannot do without
    "model": ": add model=DIR (a directory, a pulled name or a run)",
    "task": ": add data=FILE (your prompts), or task=NAME",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A recipe after overrides."""

    name: str
    config: Config
    written: Mapping[str, Any]  # the keys of the file and the command line, before defaults and presets


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A pipeline after overrides."""

    name: str
    config: PipelineConfig
    written: Mapping[str, Any]

    def stages(self) -> list[Recipe]:
        """The recipes of the stages in order, with `@name` as written."""
        written = self.written.get("stages", {})
        return [Recipe(name=name, config=config, written=written[name]) for name, config in self.config.stages.items()]

    def methods(self) -> list[Recipe]:
        """The recipes of the methods."""
        written = self.written.get("methods", {})
        return [Recipe(name=name, config=config, written=written[name]) for name, config in self.config.methods.items()]

    def runs(self) -> dict[str, Recipe]:
        """Dotted name → recipe of every stage and method."""
        stages = {f"stages.{recipe.name}": recipe for recipe in self.stages()}
        return stages | {f"methods.{recipe.name}": recipe for recipe in self.methods()}


def read_recipe(source: str, overrides: Sequence[str] = (), *, runs: Path | None = None) -> Recipe:
    """The recipe of one run: a packaged one by name, or a YAML file; `a.b=value` overrides on top.

    `runs` is the folder in which runs are looked up by name.
    """
    found = read_any(source, overrides, runs=runs)
    if isinstance(found, Pipeline):
        raise UserError(f"recipe {source} is a pipeline of several runs, and this needs a recipe of one run")
    return found


def read_any(source: str, overrides: Sequence[str] = (), *, runs: Path | None = None) -> Recipe | Pipeline:
    """A recipe of one run or of a pipeline, as `read_recipe` finds it."""
    written, name = written_recipe(source)
    for override in overrides:
        apply_override(written, override)
    return validated(written, name=name, where=source, runs=runs)


def written_recipe(source: str) -> tuple[dict[str, Any], str]:
    """The keys of a recipe before overrides and defaults, and its name."""
    text, name = _find(source)
    return parse_yaml(text, where=source), name


def validated(written: Mapping[str, Any], *, name: str, where: str, runs: Path | None = None) -> Recipe | Pipeline:
    """The recipe of a mapping of keys; `@last` and `@PART` of the name of a run are replaced by its directory."""
    written = _with_runs(written, runs_root(runs))
    if written.get("loop") == PIPELINE:
        return Pipeline(name=name, config=validate_pipeline(written, where=where), written=written)
    return Recipe(name=name, config=validate(written, where=where), written=written)


def _with_runs(written: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """What was written, with directories in place of the names of runs; in a pipeline, stages come before runs."""
    if written.get("loop") != PIPELINE:
        return {key: _named(value, key, lambda text: find_run(text, root)) for key, value in written.items()}
    stages = written.get("stages")
    known = set(stages) if isinstance(stages, Mapping) else set()

    def found(text: str) -> Path | None:
        is_stage = text.removeprefix(MARK).partition("/")[0] in known
        return find_run(text, root) if not is_stage and runs_called(text, root) else None

    def inside(section: Any) -> Any:
        if not isinstance(section, Mapping):
            return section
        return {key: _named(value, str(key), found) for key, value in section.items()}

    changed = {key: inside(written[key]) for key in ("shared", "compare") if key in written}
    for part in RUNS_OF_PIPELINE:
        if isinstance(written.get(part), Mapping):
            changed[part] = {name: inside(own) for name, own in written[part].items()}
    return {**written, **changed}


def _named(value: Any, key: str, find: Callable[[str], Path | None]) -> Any:
    """A value of a recipe with the directory in place of each `@name` that `find` knows."""
    if isinstance(value, str) and value.startswith(MARK) and TAKES_RUN.fullmatch(key):
        run = find(value)
        return value if run is None else str(run.absolute())
    if isinstance(value, Mapping):
        return {inner: _named(one, f"{key}.{inner}", find) for inner, one in value.items()}
    return [_named(one, f"{key}.{i}", find) for i, one in enumerate(value)] if isinstance(value, list) else value


def is_pipeline(source: str) -> bool:
    """Whether a recipe is a pipeline; one that cannot be found or read is an error."""
    return written_recipe(source)[0].get("loop") == PIPELINE


def packaged_recipes() -> dict[str, str]:
    """Name → text of the recipes that ship with the library."""
    files = resources.files("whet.recipes").iterdir()
    return {
        f.name.removesuffix(".yaml"): f.read_text("utf-8") for f in sorted(files, key=str) if f.name.endswith(".yaml")
    }


def validate(written: Mapping[str, Any], *, where: str) -> Config:
    """The config of one run, or a UserError of one line that names the key."""
    loop = written.get("loop", "online")
    if loop == PIPELINE:
        raise UserError(f"{where}: a pipeline of several runs, and this needs one run: name one of its stages")
    if "loop" not in written and (part := next((part for part in RUNS_OF_PIPELINE if part in written), "")):
        raise UserError(f"{where}: only a pipeline has {part!r}: add loop: pipeline")
    if not isinstance(loop, str) or loop not in LOOPS:
        raise UserError(f"{where}: loop is {loop!r}; it must be one of {', '.join([*LOOPS, PIPELINE])}")
    try:
        return LOOPS[loop].model_validate(written)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error, LOOPS[loop], written)}") from None


def validate_pipeline(written: Mapping[str, Any], *, where: str) -> PipelineConfig:
    """The config of a pipeline, every run of it checked, or a UserError of one line that names the key."""
    try:
        return PipelineConfig.model_validate(written)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error, PipelineConfig, written)}") from None


def dump(config: Config | PipelineConfig) -> str:
    """The resolved config as YAML: reading it again gives an equal config."""
    # In ASCII: PyYAML writes U+0085 as it is and reads it as a new line.
    return yaml.dump(plain(config), Dumper=_Dumper, sort_keys=False)


def plain(config: Config | PipelineConfig) -> dict[str, Any]:
    """The resolved config as plain data: validating it gives an equal config."""
    written = config.model_dump(mode="json")
    if isinstance(config, PipelineConfig):
        runs = {"stages": config.stages, "methods": config.methods}
        own = {part: {name: plain(one) for name, one in named.items()} for part, named in runs.items()}
        return {**written, **own}
    if isinstance(config, OnlineConfig):  # without the options of all the cells that it does not use
        written["algorithm"] = {key: value for key, value in written["algorithm"].items() if value is not None}
    return written


def parse_yaml(text: str, *, where: str) -> dict[str, Any]:
    """A YAML mapping in which 5e-6 is a number."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except YAML_ERRORS as error:
        problem = _pasted_line(error, text) or _yaml_problem(error)
        raise UserError(f"{where}: not valid YAML: {problem}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: a recipe is a mapping of keys to values, e.g. a line `steps: 100`")
    return value


class _NoSpace(yaml.constructor.ConstructorError):
    """A key such as `path:rows.jsonl`, which YAML reads as one word without a value."""


class _Loader(yaml.SafeLoader):
    """Reads 5e-6 as a number, for which YAML 1.1 requires a dot; refuses a key that comes twice, and {key:value}."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, value in ((key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)):
            pasted = KEY_AND_VALUE.fullmatch(key.value) if node.flow_style and value.value == "" else None
            if pasted and key.style is None:
                way = f"write a space after the colon: {pasted[1]}: {pasted[2]}"
                raise _NoSpace(None, None, f"{key.value!r} has no value: {way}", key.start_mark)
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


def apply_override(written: dict[str, Any], override: str) -> None:
    """Changes one key of what was written; in a pipeline `stages.NAME.KEY=value` is KEY of that stage's recipe."""
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"{override!r} is not an override: write key=value, e.g. optimizer.lr=1e-5")
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except _NoSpace as error:
        raise UserError(f"{override!r}: {error.problem}") from None
    except YAML_ERRORS as error:
        if text[:1] + text[-1:] in QUOTES:  # not meant as plain text
            advice = r"in double quotes \ begins an escape: use single quotes" if text[0] == '"' else "correct it"
            raise UserError(f"{override}: the value is no valid YAML ({_yaml_problem(error)}): {advice}") from None
        value = text
    set_key(written, key, value, said=override)


def set_key(written: dict[str, Any], key: str, value: Any, *, said: str) -> None:
    """Changes one dotted key of what was written; errors quote `said`."""
    if written.get("loop") == PIPELINE:
        written, key = _run_of(written, key)
    key = f"{key}.{NAMED[key]}" if key in NAMED and isinstance(value, str) else SHORT.get(key, key)
    *path, last = key.split(".")
    place = written
    for part in path:
        inner = place.get(part)
        if inner is None:
            inner = place[part] = {}
        elif isinstance(inner, str):  # `task: arithmetic` is short for a mapping
            named = (WHOLE | NAMED).get(part, "use" if ":" in inner else "name")
            inner = place[part] = {named: inner}
        elif not isinstance(inner, dict):
            raise UserError(f"{said!r}: {part!r} is a value, not a section")
        place = inner
    if path in (["task"], ["objective"]) and last == "name" and place.get("name") != value:
        place.clear()  # the options were those of the other one
    if (path, last) == (["model"], "path"):
        place.pop("new", None)
    if not path and last in LENGTHS and LENGTHS[last] in _keys_of(written):
        place.pop(LENGTHS[last], None)
    if path == ["optimizer"] and last in WARM_UPS:
        place.pop(WARM_UPS[last], None)
    place[last] = value


def _keys_of(written: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the loop of a run that is written down."""
    loop = LOOPS.get(loops.loop_of(written))
    return {} if loop is None else loop.model_fields


def _run_of(written: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The part of a pipeline that a key is about, and what the key is called in it."""
    part, _, inside = key.partition(".")
    place = written.get(part)
    if part in RUNS_OF_PIPELINE and "." in inside and isinstance(place, dict):
        name, _, inside = inside.partition(".")
        if name not in place:
            raise UserError(
                f"{key}: {part} has no {name!r}{nearest(name, place)} (known: {', '.join(map(str, place))})"
            )
        place = place[name]
    elif part != "shared" or not inside:
        return written, key
    return (place, inside) if isinstance(place, dict) else (written, key)


def _explain(error: ValidationError, model: type[BaseModel], written: Mapping[str, Any]) -> str:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"] if part not in ("[key]", "")]  # "": a set without a name
    key = ".".join(location)
    if model is PipelineConfig and location[:1] and location[0] in RUNS_OF_PIPELINE and len(location) > 2:
        part, name, loop, *location = location  # pydantic puts the tag of the loop there
        model, key, written = LOOPS[loop], ".".join([part, name, *location]), written[part][name]
    if first["type"] == "extra_forbidden":
        return unknown_key(key, location, first["input"], model, written)
    if first["type"] == "missing":
        return f"key {key!r} is missing{ADVICE.get(key, '')}"
    if first["type"] == "value_error":  # ours: it names the value itself
        message = first["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    problem = PROBLEMS.get(first["type"], first["msg"].replace("Input should be", "must be"))
    given = f", not {first['input']!r}" if isinstance(first["input"], str | int | float | bool | None) else ""
    return f"{key} {problem}{given}"


def _pasted_line(error: Exception, text: str) -> str:
    """The line such as `steps:4` that YAML joins with the next one, and how to write it; empty if there is none."""
    joined = ("mapping values are not allowed here", "could not find expected ':'")
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None or error.problem not in joined:
        return ""
    for number, line in reversed(list(enumerate(text.splitlines()[: error.problem_mark.line + 1], start=1))):
        if pasted := PASTED_LINE.fullmatch(line):
            return f"line {number}: write a space after the colon: {pasted[1]}: {pasted[2]}"
    return ""


def _yaml_problem(error: Exception) -> str:
    """What is wrong and where, without the excerpt that PyYAML draws over several lines."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        hint = ": quote the name of a run or a stage, e.g. '@last'" if "'@'" in str(error.problem) else ""
        return f"{error.problem} in line {mark.line + 1}, column {mark.column + 1}{hint}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())
