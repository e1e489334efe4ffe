"""An environment of tools: a turn that calls some is answered with what they give, any other turn is the answer."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from whet import tool_text
from whet.errors import RunFailed, UserError
from whet.records import Example, Message
from whet.tasks.tools.calls import Call, read_calls
from whet.tasks.tools.tool import BadCall, Tool, tool_of
from whet.user_code import one_line

MOST_CALLS = 16  # of one turn
LONGEST = 4_000  # characters of one result


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a call gave, or what was wrong with it."""

    name: str
    text: str
    is_error: bool = False

    def message(self) -> Message:
        """As a template for tools gets it."""
        text = json.dumps({"error": self.text}, ensure_ascii=False) if self.is_error else self.text
        return Message(role="tool", content=text, name=self.name)


class ToolEnvironment:
    """The tools of one conversation. Its outcome is the answer: a turn without calls."""

    def __init__(self, functions: Sequence[Callable[..., object]]) -> None:
        self._tools = {tool.name: tool for tool in map(tool_of, functions)}
        self._answer = ""
        self._results: list[Result] = []

    @property
    def waits(self) -> bool:
        """Whether its tools wait for other processes, so that several conversations are answered side by side."""
        return any(tool.side_by_side for tool in self._tools.values())

    def reset(self, example: Example) -> str:  # noqa: ARG002 - all tools are there for every example
        self._answer, self._results = "", []
        return ""

    def step(self, text: str) -> tuple[str, float, bool]:
        calls = read_calls(text)
        self._results = []
        if not calls:
            self._answer = text
            return "", 0.0, True
        self._results = self._answers(calls[:MOST_CALLS])
        if len(calls) > MOST_CALLS:
            problem = f"{len(calls)} calls in one turn, only {MOST_CALLS} are answered"
            self._results.append(Result(name="", text=problem, is_error=True))
        told = [tool_text.result_text(one.name, one.text, is_error=one.is_error) for one in self._results]
        return "\n".join(told), 0.0, False

    def messages(self) -> Sequence[Message]:
        """The newest results as messages, for models whose template has them."""
        return [result.message() for result in self._results]

    def outcome(self) -> str:
        return self._answer

    def _answers(self, calls: Sequence[Call]) -> list[Result]:
        """The results in the order of the calls; those of tools that wait for other processes are made side by side."""
        waiting = [call for call in calls if call.name in self._tools and self._tools[call.name].side_by_side]
        if len(waiting) < 2:
            return [self._result(call) for call in calls]
        with ThreadPoolExecutor(len(waiting)) as threads:
            begun = {id(call): threads.submit(self._result, call) for call in waiting}
            return [begun[id(call)].result() if id(call) in begun else self._result(call) for call in calls]

    def _result(self, call: Call) -> Result:
        if call.problem:
            return Result(name="", text=call.problem, is_error=True)
        tool = self._tools.get(call.name)
        if tool is None:
            problem = f"there is no tool {call.name!r}; there are: {', '.join(self._tools)}"
            return Result(name="", text=problem, is_error=True)
        try:
            result = tool.call(call.arguments or {})
        except BadCall as error:
            return Result(name=call.name, text=str(error), is_error=True)
        except (UserError, RunFailed):  # of the machine, not of the call: a sandbox that is refused, say
            raise
        except Exception as error:  # noqa: BLE001 - a tool's errors are told to the policy
            return Result(name=call.name, text=one_line(error), is_error=True)
        return Result(name=call.name, text=result if len(result) <= LONGEST else f"{result[:LONGEST]} …")


def definitions(tools: Sequence[Tool]) -> tuple[str, ...]:
    """What a policy is told of its tools, each as JSON."""
    return tuple(json.dumps(tool.schema(), ensure_ascii=False) for tool in tools)


def told(tools: Sequence[Tool]) -> str:
    """The same as a text for a system message: what a template without tools gets."""
    return tool_text.told(definitions(tools))


def offering(prompt: str | tuple[Message, ...], functions: Sequence[Callable[..., object]]) -> tuple[Message, ...]:
    """A prompt that offers tools: the chat template writes their definitions."""
    first, *rest = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
    return (replace(first, tools=definitions([tool_of(function) for function in functions])), *rest)
