"""Tools as text, as Hermes models have them, for models whose chat template knows none."""

import json
from collections.abc import Sequence
from typing import Any

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FORM = f'{OPENING}{{"name": …, "arguments": {{…}}}}{CLOSING}'


def told(definitions: Sequence[str]) -> str:
    """What a policy is told of its tools, at the end of the system message; each definition is a JSON object."""
    lines = "\n".join(definitions)
    return (
        f"These tools can be called:\n<tools>\n{lines}\n</tools>\n"
        f"To call one, write {FORM} and end the turn; several calls may follow each other. The results come in "
        "<tool_response></tool_response>. Answer without a call when you are done."
    )


def call_text(name: str, arguments: str) -> str:
    """A call; its arguments are a JSON object."""
    return f'{OPENING}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n{CLOSING}'


def result_text(name: str, result: str, *, is_error: bool = False) -> str:
    """What a call gave, or what was wrong with it; the name is empty where there is none."""
    named: dict[str, Any] = {"name": name} if name else {}
    content = json.dumps({**named, "error" if is_error else "content": result}, ensure_ascii=False)
    return f"<tool_response>\n{content}\n</tool_response>"
