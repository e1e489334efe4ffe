"""What to say about an unknown key: its name here, the section that has it, or the nearest key."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from whet.config import DATA_OF_A_TASK, TASK_OF_DATA
from whet.config.spellings import known_as
from whet.errors import nearest


def unknown_key(
    key: str, location: Sequence[str], value: Any, model: type[BaseModel], written: Mapping[str, Any]
) -> str:
    """The error for a key that leads to `location` in a recipe of this model, of which `written` are the keys."""
    known, inner = known_as(".".join(location)), key
    while not known and isinstance(value, Mapping) and value:  # a section of verl: the name of a key in it may help
        name, value = next(iter(value.items()))
        inner, known = f"{inner}.{name}", known_as(str(name))
    if known:
        return f"unknown key {inner!r}{known}"
    same = [one for one in _dotted_keys(model, written) if one.rpartition(".")[2] == location[-1]]
    if same:
        return f"unknown key {key!r}; did you mean {' or '.join(filter(None, (', '.join(same[:-1]), same[-1])))}?"
    valid = _fields_at(model, location[:-1])
    return f"unknown key {key!r}{nearest(location[-1], valid)} (valid here: {', '.join(valid)})"


def _fields_at(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    """The keys of the section that a dotted location leads to."""
    for part in location:
        field = model.model_fields.get(part)
        model = model if field is None else _section(field.annotation) or model
    names = list(model.model_fields)
    if not location and _takes_prompts(model):
        names.insert(names.index("task") + 1, "data")
    return names


def _dotted_keys(model: type[BaseModel], written: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Every key of a recipe, those of named sets left out."""
    for name, field in model.model_fields.items():
        yield above + name
        section = _section(field.annotation)
        if section is not None:
            yield from _dotted_keys(section, {}, f"{above}{name}.")
    if not above and _takes_prompts(model):
        section_of_prompts = "task" if "task" in written else "data"
        yield from (f"{section_of_prompts}.{name}" for name in (*DATA_OF_A_TASK, *TASK_OF_DATA))


def _takes_prompts(model: type[BaseModel]) -> bool:
    """Whether `data` in recipes of this model is short for the task data."""
    return "task" in model.model_fields and "data" not in model.model_fields


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section of a key `section` or `section | None`."""
    members = [annotation, *(get_args(annotation) if type(None) in get_args(annotation) else ())]
    return next((one for one in members if isinstance(one, type) and issubclass(one, BaseModel)), None)
