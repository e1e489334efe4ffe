"""Typed access to one column of a row; errors name file, line and column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from whet import files
from whet.errors import UserError
from whet.records import Message

T = TypeVar("T")
Columns = Mapping[str, Any]
Prompt = str | tuple[Message, ...]

SHARED_ROLES = {
    **{"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"},
    **{"function_call": "assistant", "observation": "tool", "tool": "tool"},
}
TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")


def text(row: Columns, name: str, where: str) -> str:
    return _typed(row, name, where, str)


def answer(row: Columns, name: str, where: str) -> str:
    """Text, or a number or boolean as text; empty where the column is missing or null."""
    return files.answer_text(row.get(name), name, where)


def optional_text(row: Columns, name: str, where: str) -> str:
    """Text; empty where the column is missing or null."""
    return "" if row.get(name) is None else text(row, name, where)


def name(row: Columns, column: str, where: str) -> str:
    """A string or integer as text; empty where the column is missing or null."""
    value = row.get(column)
    if value is not None and type(value) not in (str, int):
        raise UserError(f"{where}: '{column}' must be a string or a whole number, not {files.json_type(value)}")
    return "" if value is None else str(value)


def items(row: Columns, name: str, where: str) -> list[Any]:
    return _typed(row, name, where, list)


def texts(row: Columns, name: str, where: str) -> tuple[str, ...]:
    values = items(row, name, where)
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"{where}: '{name}' must be a list of strings")
    return tuple(values)


def fields(row: Columns, name: str, where: str) -> Columns:
    return _typed(row, name, where, dict)


def flag(row: Columns, name: str, where: str) -> bool:
    return as_flag(_value(row, name, where), name, where)


def as_flag(value: Any, name: str, where: str) -> bool:
    """A boolean, 0 or 1, or one of the words `TRUE` and `FALSE`, as in CSV files."""
    if isinstance(value, str) and value.strip().lower() in TRUE + FALSE:
        return value.strip().lower() in TRUE
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    raise UserError(f"{where}: '{name}' must be true or false, not {value!r}")


def numbers(row: Columns, name: str, where: str) -> tuple[float, ...]:
    """A list of finite numbers."""
    values = items(row, name, where)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise UserError(f"{where}: '{name}' must be a list of finite numbers")
    return tuple(map(float, values))


def optional_number(row: Columns, name: str, where: str) -> float | None:
    """A finite number; None where the column is missing, null or empty."""
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: '{name}' must be a number, not {value!r}")
    return number


def messages(row: Columns, name: str, where: str) -> tuple[Message, ...]:
    return files.messages(_value(row, name, where), name, where)


def offered(turns: tuple[Message, ...], row: Columns, where: str) -> tuple[Message, ...]:
    """A conversation with the definitions in the row's column `tools`, if it has any."""
    tools = () if row.get("tools") is None else files.tool_definitions(row["tools"], where)
    return (replace(turns[0], tools=tools), *turns[1:]) if tools and turns else turns


def offered_prompt(asked: Prompt, row: Columns, where: str) -> Prompt:
    """The same of a prompt; one that is plain text has none."""
    return asked if isinstance(asked, str) else offered(asked, row, where)


def untrained(row: Columns, name: str) -> set[int]:
    """The places of the messages with weight 0, in a column that has been read as messages."""
    return {place for place, message in enumerate(row[name]) if message.get("weight") == 0}


def shared_messages(values: Sequence[Any], name: str, where: str) -> tuple[Message, ...]:
    """Messages in the ShareGPT layout, `from` and `value`; also `role` and `content`."""
    return tuple(_shared(value, name, where) for value in values)


def prompt(row: Columns, where: str) -> Prompt:
    """The column `prompt`: text or messages. Empty text passes: the filters count and drop it."""
    value = _value(row, "prompt", where)
    return value if value == "" else offered_prompt(files.prompt(value, where), row, where)


def answered(turns: tuple[Message, ...], name: str, where: str) -> tuple[Message, ...]:
    """Checks that the last message is the assistant's."""
    if not turns or turns[-1].role != "assistant":
        raise UserError(f"{where}: '{name}' must end with an assistant message")
    return turns


def spaced(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def _shared(value: Any, name: str, where: str) -> Message:
    if isinstance(value, dict) and "role" in value and not {"from", "value"} <= set(value):
        return files.messages([value], name, where)[0]
    if not isinstance(value, dict) or not {"from", "value"} <= set(value):
        raise UserError(f"{where}: a message of '{name}' must be an object with 'from' and 'value'")
    role, content = value["from"], value["value"]
    if role not in SHARED_ROLES:
        raise UserError(f"{where}: a message from {role!r} in '{name}' must be from one of {', '.join(SHARED_ROLES)}")
    if not isinstance(content, str):
        raise UserError(f"{where}: the value of a message in '{name}' must be a string, not {files.json_type(content)}")
    if role == "function_call":
        called = files.json_object(content.encode(), f"{where}: a function_call of '{name}'")
        return Message(role="assistant", content="", tool_calls=files.read_tool_calls([called], f"{where}: '{name}'"))
    return Message(role=SHARED_ROLES[role], content=content)


def _typed(row: Columns, name: str, where: str, kind: type[T]) -> T:
    value = _value(row, name, where)
    if not isinstance(value, kind):
        raise UserError(f"{where}: '{name}' must be {files.json_type(kind())}, not {files.json_type(value)}")
    return value


def _value(row: Columns, name: str, where: str) -> Any:
    if name not in row:
        raise UserError(f"{where} has no '{name}' (it has: {', '.join(row) or 'nothing'})")
    return row[name]
