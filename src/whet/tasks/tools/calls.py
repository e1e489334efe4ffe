"""Tool calls in a turn, as Hermes and Qwen models write them: <tool_call>{"name": …, "arguments": {…}}</tool_call>.

A turn that is nothing but such an object, or a list of them, is understood without the tags. What a turn thinks
(<think>…</think>) calls nothing.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
OPENING, CLOSING = "<tool_call>", "</tool_call>"
FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
FORM = f'{OPENING}{{"name": …, "arguments": {{…}}}}{CLOSING}'


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
    found = FENCE.fullmatch(said.strip())
    try:
        value = json.loads(found[1] if found else said)
    except (ValueError, RecursionError):
        return []
    several = value if isinstance(value, list) else [value]
    calls = [_call(one) for one in several]
    return calls if calls and not any(one.problem for one in calls) else []


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
