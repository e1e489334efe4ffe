"""Tool calls in a turn, as the templates of models have them.

Hermes, Qwen   <tool_call>{"name": …, "arguments": {…}}</tool_call>
Llama 3        {"name": …, "parameters": {…}}, alone, several with ";" between them, or after <|python_tag|>
Llama 3, own   <function=name>{…}</function>
Mistral        [TOOL_CALLS][{"name": …, "arguments": {…}}]
OpenAI         {"type": "function", "function": {"name": …, "arguments": "…"}}

A turn that is nothing but such objects, or a list of them, is understood without tags. What a turn thinks
(<think>…</think>) calls nothing.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from whet.tool_text import CLOSING, FORM, OPENING

THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
MARKER = re.compile(r"\A(?:<\|python_tag\|>|\[TOOL_CALLS\])\s*")
BETWEEN = re.compile(r"[\s;]*")
DECODER = json.JSONDecoder()
FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call, or why it is none."""

    name: str = ""
    arguments: dict[str, Any] | None = None
    problem: str = ""


def read_calls(text: str) -> list[Call]:
    """The calls of a turn, in order; none if it is an answer."""
    said = THOUGHT.sub("", text)
    if OPENING in said:
        return [_read(piece) for piece in _tagged(said)]
    if FUNCTION.search(said):
        return [_of_function(found[1], found[2]) for found in FUNCTION.finditer(said)]
    bare = MARKER.sub("", said.strip())
    fenced = FENCE.fullmatch(bare)
    calls = [_call(one) for one in _objects(fenced[1] if fenced else bare)]
    return calls if calls and not any(one.problem for one in calls) else []


def _objects(text: str) -> list[Any]:
    """The JSON objects that a text is made of, alone, in a list, or with ";" or white space between them."""
    found: list[Any] = []
    place = 0
    while place < len(text):
        try:
            value, place = DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        found += value if isinstance(value, list) else [value]
        between = BETWEEN.match(text, place)
        place = between.end() if between else place
    return found


def _of_function(name: str, arguments: str) -> Call:
    """A call in Llama's own layout, with the arguments between tags."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        return Call(problem=f"the call of {name} has no arguments: write {FORM}")
    return Call(name=name, arguments=given)


def _tagged(text: str) -> Iterator[str]:
    """What stands between the tags; a call that is not closed goes up to the next one."""
    for piece in text.split(OPENING)[1:]:
        yield piece.partition(CLOSING)[0]


def _read(piece: str) -> Call:
    try:
        return _call(json.loads(piece))
    except (ValueError, RecursionError):
        return Call(problem=f"a tool call is no JSON: write {FORM}")


def _call(value: object) -> Call:
    """A call from JSON; arguments may be spelled as text, or be called parameters."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):  # OpenAI's layout
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call(problem=f"a tool call has no name: write {FORM}")
    given = value.get("arguments", value.get("parameters"))
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = None
    if not isinstance(given, dict):
        return Call(problem=f"the call of {value['name']} has no arguments: write {FORM}")
    return Call(name=value["name"], arguments=given)
