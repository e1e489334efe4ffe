"""An environment of tools: a turn that calls some is answered with what they give, any other turn is the answer."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.records import Example
from whet.tasks.tools.calls import FORM, Call, read_calls
from whet.tasks.tools.tool import BadCall, Tool, tool_of
from whet.user_code import one_line

MOST_CALLS = 16  # of one turn
LONGEST = 4_000  # characters of one result


class ToolEnvironment:
    """The tools of one conversation. Its outcome is the answer: a turn without calls."""

    def __init__(self, functions: Sequence[Callable[..., object]]) -> None:
        self._tools = {tool.name: tool for tool in map(tool_of, functions)}
        self._answer = ""

    def reset(self, example: Example) -> str:  # noqa: ARG002 - all tools are there for every example
        self._answer = ""
        return ""

    def step(self, text: str) -> tuple[str, float, bool]:
        calls = read_calls(text)
        if not calls:
            self._answer = text
            return "", 0.0, True
        replies = [self._replied(call) for call in calls[:MOST_CALLS]]
        if len(calls) > MOST_CALLS:
            replies.append({"error": f"{len(calls)} calls in one turn, only {MOST_CALLS} are answered"})
        return "\n".join(map(_response, replies)), 0.0, False

    def outcome(self) -> str:
        return self._answer

    def _replied(self, call: Call) -> Mapping[str, Any]:
        """The result of a call, or what was wrong with it."""
        if call.problem:
            return {"error": call.problem}
        tool = self._tools.get(call.name)
        if tool is None:
            return {"error": f"there is no tool {call.name!r}; there are: {', '.join(self._tools)}"}
        try:
            result = tool.call(call.arguments or {})
        except BadCall as error:
            return {"name": call.name, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - a tool's errors are told to the policy
            return {"name": call.name, "error": one_line(error)}
        return {"name": call.name, "content": result if len(result) <= LONGEST else f"{result[:LONGEST]} …"}


def _response(reply: Mapping[str, Any]) -> str:
    return f"<tool_response>\n{json.dumps(reply, ensure_ascii=False)}\n</tool_response>"


def told(tools: Sequence[Tool]) -> str:
    """What the policy is told of its tools, at the end of the system message."""
    schemas = "\n".join(json.dumps(tool.schema(), ensure_ascii=False) for tool in tools)
    return (
        f"These tools can be called:\n<tools>\n{schemas}\n</tools>\n"
        f"To call one, write {FORM} and end the turn; several calls may follow each other. The results come in "
        "<tool_response></tool_response>. Answer without a call when you are done."
    )
