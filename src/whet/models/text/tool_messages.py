"""Messages with tools for chat templates: as templates read them, as plain text for those that know none, disguised."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from whet.errors import UserError
from whet.records import Message, ToolCall
from whet.tool_text import call_text, result_text, told

PROBE = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe description",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": ["probe_key"]},
    },
}
PROBING = (  # what a template that takes tools writes all of
    Message(role="user", content="question", tools=(json.dumps(PROBE),)),
    Message(
        role="assistant", content="", tool_calls=(ToolCall(name="probe_tool", arguments='{"probe_key": "given"}'),)
    ),
    Message(role="tool", content="probe result", name="probe_tool"),
)
PROBED = ("probe description", "probe_key", "given", "probe result")


def tools_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """The definitions that a conversation comes with."""
    return next((message.tools for message in messages if message.tools), ())


def as_rendered(message: Message) -> dict[str, Any]:
    """A message as chat templates read it: the arguments of calls are objects."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            | ({"id": call.id} if call.id else {})
            for call in message.tool_calls
        ]
    named = {"name": message.name, "tool_call_id": message.call_id}
    return {**found, **{key: value for key, value in named.items() if value}}


def flattened(messages: Sequence[Message]) -> list[Message]:
    """The same with roles and texts alone: definitions stand in the system message, results in one of the user's."""
    definitions = [_spelled(one) for one in tools_of(messages)]
    found: list[Message] = []
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            results.append(result_text(message.name, message.content))
            continue
        if results:
            found.append(Message(role="user", content="\n".join(results)))
            results = []
        calls = [call_text(call.name, _spelled(call.arguments)) for call in message.tool_calls]
        text = "\n".join(filter(None, [message.content, *calls]))
        found.append(Message(role=message.role, content=text))
    if results:
        found.append(Message(role="user", content="\n".join(results)))
    if not definitions:
        return found
    if found and found[0].role == "system":
        return [replace(found[0], content=f"{found[0].content}\n\n{told(definitions)}"), *found[1:]]
    return [Message(role="system", content=told(definitions)), *found]


def texts_of(message: Message) -> Iterator[str]:
    """Every text of a message that a template may write and that others wrote."""
    yield message.content
    yield message.name
    yield message.call_id
    for call in message.tool_calls:
        yield call.name
        yield call.id
        yield from _strings(json.loads(call.arguments))
    for definition in message.tools:
        yield from _strings(json.loads(definition))


def keys_of(message: Message) -> Iterator[str]:
    """The names in arguments and definitions, which `changed` leaves as they are."""
    for text in (*message.tools, *(call.arguments for call in message.tool_calls)):
        yield from _keys(json.loads(text))


def changed(message: Message, change: Callable[[str], str]) -> Message:
    """The message with all its texts changed."""

    def inside(text: str) -> str:
        return json.dumps(_changed(json.loads(text), change), ensure_ascii=False)

    calls = [
        ToolCall(name=change(call.name), arguments=inside(call.arguments), id=change(call.id))
        for call in message.tool_calls
    ]
    return Message(
        role=message.role,
        content=change(message.content),
        tool_calls=tuple(calls),
        name=change(message.name),
        call_id=change(message.call_id),
        tools=tuple(inside(definition) for definition in message.tools),
    )


def with_tools_kept(kept: tuple[Message, ...], whole: Sequence[Message]) -> tuple[Message, ...]:
    """A part of a conversation with the definitions of the whole, whose first message may have been left out."""
    definitions = tools_of(whole)
    if not kept or not definitions or tools_of(kept):
        return kept
    return (replace(kept[0], tools=definitions), *kept[1:])


def require_objects(messages: Sequence[Message]) -> None:
    """Refuses calls and definitions that are no JSON objects, of messages that were made in Python."""
    for message in messages:
        for what, text in (
            *(("the arguments of a tool call", call.arguments) for call in message.tool_calls),
            *(("the definition of a tool", one) for one in message.tools),
        ):
            try:
                is_object = isinstance(json.loads(text), dict)
            except (ValueError, RecursionError, TypeError):
                is_object = False
            if not is_object:
                raise UserError(f"{what} must be a JSON object as text, not {text!r:.80}")


def _spelled(text: str) -> str:
    """JSON as it is always spelled here."""
    return json.dumps(json.loads(text), ensure_ascii=False)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    if isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _keys(one)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(one, change) for one in value]
    if isinstance(value, dict):
        return {key: _changed(one, change) for key, one in value.items()}
    return value
