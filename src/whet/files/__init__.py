"""Users' files: lines, JSON and chat messages; errors name file and line."""

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from whet.errors import UserError
from whet.records import Message, ToolCall

ROLES = ("system", "user", "assistant", "tool")
# Keys of a message that would change its text if the chat template got them. Others (`id`, `timestamp`) are ignored.
REFUSED_KEYS = {
    "function_call": "the old layout of a call: write it as one of 'tool_calls'",
    **dict.fromkeys(("reasoning_content", "thinking"), "which would be lost: write it into 'content'"),
}
LARGEST_OBJECT = 2**26  # bytes of a JSON file; the largest published ones have half as many
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ROW_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")  # each also as .gz or .xz
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".py")


def unpacked_suffix(name: str) -> str:
    """The ending of a file's name in small letters, without that of its compression."""
    return Path(name.lower().removesuffix(".gz").removesuffix(".xz")).suffix


def home_directory(name: str) -> Path:
    """A cache directory: $WHET_HOME/name, else ~/.cache/whet/name."""
    home = os.environ.get("WHET_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "whet") / name


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file, decompressed if it is .gz or .xz; what cannot be read is an error of one line, also while it is read."""
    packing = {".gz": "gzip", ".xz": "xz"}.get(path.suffix, "")
    try:
        with _open(path, packing) as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path} is not a complete {packing} file: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _open(path: Path, packing: str) -> BinaryIO:
    match packing:
        case "gzip":
            return cast("BinaryIO", gzip.open(path, "rb"))
        case "xz":
            return cast("BinaryIO", lzma.open(path, "rb"))
    return path.open("rb")


def content(path: Path) -> bytes:
    """The bytes of a file, decompressed if it is .gz or .xz, without a byte-order mark."""
    with opened(path) as file:
        return file.read().removeprefix(BYTE_ORDER_MARK)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model; bounded as in `read_json`."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a JSON {type(value).__name__}: expected an object")
    return value


def read_json(path: Path, *, repair: str = "copy the file again") -> Any:
    """The JSON in a file of a model; NaN and infinities pass, because published files hold them.

    Safe for untrusted files: huge and deeply nested ones, pipes and devices are errors. `repair` is the fix to suggest.
    """
    try:
        if not path.is_file():
            raise UserError(f"{path} is no regular file: {repair}")
        size = path.stat().st_size
        if size > LARGEST_OBJECT:
            raise UserError(
                f"{path} has {size} bytes, more than the {LARGEST_OBJECT} that are read: is it what it says?"
            )
        return json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise UserError(f"{path} is not valid JSON (nested too deeply): {repair}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): {repair}") from error


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-blank lines of a file, numbered from 1; only one is in memory at a time."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            plain = (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).removesuffix(b"\n")
            if plain.strip():
                yield number, plain


def json_object(line: bytes, where: str) -> dict[str, Any]:
    """One line of JSON, which must be an object."""

    def refuse(constant: str) -> NoReturn:
        raise UserError(f"{where}: {constant} is not JSON: use null or leave the column out")

    try:
        value = json.loads(line.decode("utf-8"), parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from error
    return checked_object(value, where)


def checked_object(value: Any, where: str) -> dict[str, Any]:
    """Checks that the value is an object that can be written as JSON again."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{where} holds a lone surrogate, or bytes that are not UTF-8: remove them") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a JSON object, not {json_type(value)}")
    return value


def prompt(value: Any, where: str) -> str | tuple[Message, ...]:
    """A prompt: text, or messages that do not end with the assistant's."""
    if isinstance(value, str):
        if not value:
            raise UserError(f"{where}: 'prompt' is empty")
        return value
    if not isinstance(value, list):
        raise UserError(f"{where}: 'prompt' must be a string or a list of messages, not {json_type(value)}")
    found = messages(value, "prompt", where)
    if not found or found[-1].role == "assistant":
        raise UserError(f"{where}: 'prompt' must end with a message for the assistant to answer")
    return found


def answer_text(value: Any, column: str, where: str) -> str:
    """An answer as text: numbers and booleans as JSON has them (12.0, which tables make of 12, as 12), null as ""."""
    if isinstance(value, list | dict):
        raise UserError(f"{where}: '{column}' must be text, a number, true, false or null, not {json_type(value)}")
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def messages(value: Any, column: str, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise UserError(f"{where}: '{column}' must be a list of messages, not {json_type(value)}")
    return tuple(_message(item, column, where) for item in value)


def _message(value: Any, column: str, where: str) -> Message:
    # In tables all messages have the same fields; null means absent, and so does the empty list of tool calls.
    given = {key: part for key, part in value.items() if part not in (None, [])} if isinstance(value, dict) else {}
    for key, why in REFUSED_KEYS.items():
        if key in given:
            raise UserError(f"{where}: a message of '{column}' has '{key}', {why}")
    calls = read_tool_calls(given.get("tool_calls", []), f"{where}: a message of '{column}'")
    content = given.get("content", "" if calls else None)
    if "role" not in given or content is None:
        raise UserError(f"{where}: a message of '{column}' must be an object with 'role' and 'content'")
    role = given["role"]
    if role not in ROLES:
        raise UserError(f"{where}: the role {role!r} of a message must be one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise UserError(f"{where}: the content of a message must be a string, not {json_type(content)}")
    weight = given.get("weight", 1)
    if weight not in (0, 1):
        raise UserError(f"{where}: the weight {weight!r} of a message must be 1 (imitated) or 0 (not imitated)")
    for key, only in (("tool_calls", "assistant"), ("tool_call_id", "tool"), ("name", "tool")):
        if key in given and role != only:
            raise UserError(f"{where}: a message of '{column}' has '{key}', and its role is {role!r}, not '{only}'")
    name, call = (_optional_name(given, key, column, where) for key in ("name", "tool_call_id"))
    tools = tool_definitions(given.get("tools", []), f"{where}: a message of '{column}'")  # as `Message.plain` has them
    return Message(role=role, content=content, tool_calls=calls, name=name, call_id=call, tools=tools)


def _optional_name(given: dict[str, Any], key: str, column: str, where: str) -> str:
    if not isinstance(given.get(key, ""), str):
        raise UserError(f"{where}: '{key}' of a message of '{column}' must be a string, not {json_type(given[key])}")
    return str(given.get(key, ""))


def read_tool_calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    """Calls in OpenAI's layout, arguments as JSON text, or in that of chat templates, arguments as an object."""
    if not isinstance(value, list):
        raise UserError(f"{where} must have a list of 'tool_calls', not {json_type(value)}")
    return tuple(_tool_call(one, where) for one in value)


def _tool_call(value: Any, where: str) -> ToolCall:
    function = value.get("function") or value if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name or not isinstance(function, dict):
        raise UserError(f"{where} has a tool call without a function and its name")
    given = function.get("arguments", {})
    if isinstance(given, str):
        given = json_object(given.encode(), f"{where} has arguments of {name}, which")
    if not isinstance(given, dict):
        raise UserError(f"{where} has a call of {name} with {json_type(given)} for arguments, not an object")
    # In tables the arguments of all calls have the same fields; null means absent.
    kept = {key: one for key, one in given.items() if one is not None}
    number = value.get("id")
    arguments = json.dumps(kept, ensure_ascii=False)
    return ToolCall(name=name, arguments=arguments, id=number if isinstance(number, str) else "")


def tool_definitions(value: Any, where: str) -> tuple[str, ...]:
    """The column `tools`: definitions as a list, or as JSON text of one; a bare function is wrapped."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: 'tools' is not JSON: {error}") from error
    if not isinstance(value, list):
        raise UserError(f"{where}: 'tools' must be a list of definitions, not {json_type(value)}")
    return tuple(json.dumps(_definition(one, where), ensure_ascii=False) for one in value)


def _definition(value: Any, where: str) -> dict[str, Any]:
    whole = {"type": "function", "function": value} if isinstance(value, dict) and "function" not in value else value
    function = whole.get("function") if isinstance(whole, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UserError(f"{where}: a definition of 'tools' must be an object with a function and its name")
    return dict(_without_nulls(whole))


def _without_nulls(value: Any) -> Any:
    """The same without keys of null, which tables have where other rows have a value."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def json_type(value: Any) -> str:
    """The type of a JSON value, in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
