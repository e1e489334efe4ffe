"""Programs that a policy runs: what they print, how they fail, and that calls of one turn are answered in order."""

import json
from collections.abc import Callable

import pytest

from whet.records import Example
from whet.tasks.sandbox.isolation import Limits
from whet.tasks.sandbox.sandbox import Sandbox
from whet.tasks.stepping.in_process import OwnEnvironments
from whet.tasks.tools import python_tool
from whet.tasks.tools.calculator import calculator
from whet.tasks.tools.python_tool import PythonTool
from whet.tasks.tools.tool_environment import ToolEnvironment

EXAMPLE = Example(id="x", prompt="x", answer="x")


@pytest.fixture(scope="module")
def python() -> Callable[..., object]:
    """The tool, with a second for a program, on any machine."""
    box = Sandbox(Limits(cpu_seconds=1, wall_seconds=20.0), isolation="none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_tool, "_sandbox", lambda _: box)
        yield PythonTool("none").tool()
    box.close()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(1 + 1)", "2"),
        ("x = 2\nx ** 70", "1180591620717411303424"),
        ("print('a')\n'b'", "a\n'b'"),
        ("def f(n):\n    return n and n * f(n - 1) or 1\nf(5)", "120"),
        ("if __name__ == '__main__':\n    print('run')", "run"),
        ("x = 1", "(nothing was printed)"),
        ("None", "(nothing was printed)"),
        ("print('before')\n1 / 0", "before\nZeroDivisionError: division by zero (line 2)"),
        ("raise SystemExit(4)", "SystemExit: 4 (line 1)"),
        ("import sys\nprint('x', file=sys.stderr)", "x"),
        ("print('é' * 9000)", "é" * 4000),
    ],
)
def test_a_program_says_what_it_prints_and_its_last_value(python: Callable[..., object], code: str, said: str) -> None:
    assert python(code=code) == said


def test_a_program_that_is_none_says_so(python: Callable[..., object]) -> None:
    assert "SyntaxError" in str(python(code="x ="))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os\nos._exit(3)", "RuntimeError: the program ended its process"),
        ("while True:\n    pass", "TimeoutError: the program took more than"),
        ("#" * 20_001, "ValueError: the program has 20001 characters"),
    ],
)
def test_a_program_that_does_not_end_is_an_error(python: Callable[..., object], code: str, error: str) -> None:
    environment = ToolEnvironment([python])
    environment.reset(EXAMPLE)
    observation, _, done = environment.step(call("python", code=code))
    (found,) = results(observation)
    assert found["error"].startswith(error)
    assert not done


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def results(observation: str) -> list[dict[str, str]]:
    return [json.loads(piece.split("\n</tool")[0]) for piece in observation.split("<tool_response>\n")[1:]]


def test_calls_of_one_turn_are_answered_in_order(python: Callable[..., object]) -> None:
    environment = ToolEnvironment([python, calculator])
    environment.reset(EXAMPLE)
    codes = [call("python", code=f"print({number})") for number in range(3)]
    text = codes[0] + call("calculator", expression="7*7") + codes[1] + call("nothing") + codes[2]
    said = [one.get("content", one.get("error")) for one in results(environment.step(text)[0])]
    assert said == ["0", "49", "1", "there is no tool 'nothing'; there are: python, calculator", "2"]
    assert [message.content for message in environment.messages()][:2] == ["0", "49"]


def test_conversations_are_answered_side_by_side(python: Callable[..., object]) -> None:
    environments = OwnEnvironments(lambda: ToolEnvironment([python]))
    environments.begin([EXAMPLE] * 5)
    replies = environments.step({number: call("python", code=f"{number} * 10") for number in (4, 0, 2)})
    assert {number: results(reply.observation)[0]["content"] for number, reply in replies.items()} == {
        **{4: "40", 0: "0", 2: "20"}
    }
