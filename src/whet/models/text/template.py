"""Renders chat templates, which come with models and are programs, in a child process with resource limits.

Limited are the template's length, its CPU time and memory (`template_worker`), and the length of its output. Errors say
whether the template is broken or refuses these messages.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.limited_process import LimitedProcess, ProcessEnded
from whet.models.text.tool_messages import as_rendered, tools_of
from whet.records import Message

# For models without roles: the contents of the messages, one per line.
PLAIN_TEMPLATE = r"{{ messages | map(attribute='content') | join('\n') }}"
LARGEST = 2**20  # characters of a template; the longest published ones have some 30,000
SECONDS = 2.0  # CPU time for one rendering; real templates take a thousandth of it
WORKER = Path(__file__).with_name("template_worker.py")


class BrokenTemplate(UserError):
    """A template that no conversation can be rendered with."""


class MessagesRefused(UserError):
    """A template's `raise_exception`: it does not accept these messages."""


def render_template(
    source: Any, messages: Sequence[Message], variables: Mapping[str, Any], *, add_generation_prompt: bool, owner: str
) -> str:
    """The conversation rendered by a template; `owner` is the tokeniser's directory or name, for errors."""
    name = f"the chat template of {owner}" if owner else "the chat template"
    if source == PLAIN_TEMPLATE:  # our own, trusted
        return "\n".join(message.content for message in messages)
    if not isinstance(source, str):
        raise BrokenTemplate(f"{name} is not text: correct chat_template in tokenizer_config.json")
    if not source.strip():
        raise BrokenTemplate(f"{name} is empty: write it, or remove it and give prompts as plain text")
    if len(source) > LARGEST:
        raise BrokenTemplate(f"{name} has {len(source)} characters, more than {LARGEST}: shorten it")
    turns = [as_rendered(message) for message in messages]
    tools = [json.loads(one) for one in tools_of(messages)] or None
    values = {"messages": turns, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
    reply = _reply({"template": source, "seconds": SECONDS, "values": {**values, **variables}})
    if "text" in reply:
        return str(reply["text"])
    line = "" if reply["line"] is None else f"line {reply['line']}: "
    if "refused" in reply:
        roles = ", ".join(message.role for message in messages)
        raise MessagesRefused(f"{name} refuses the roles [{roles}]: {line}{reply['refused']}; change the messages")
    kind = BrokenTemplate if reply["fatal"] else UserError
    raise kind(f"{name}: {line}{reply['broken']}; correct the template, or give the prompt as plain text")


def _reply(question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _RENDERER.ask(question)
    except (TimeoutError, ProcessEnded) as error:
        problem = f"the process that renders it {error}"
        if isinstance(error, ProcessEnded) and error.is_slow:
            problem = f"it takes more than {SECONDS:g} s of processor time"
    return {"broken": problem, "line": None, "fatal": True}


_RENDERER = LimitedProcess(WORKER)
