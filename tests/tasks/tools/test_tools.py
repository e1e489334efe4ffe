"""Tools: schemas of functions, calls in every spelling, errors that are told, and a task with a calculator."""

import json
import math
import random
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from whet.errors import UserError
from whet.records import Example, Message
from whet.tasks.check import check_task
from whet.tasks.loading import load_task
from whet.tasks.stepping.check_environment import check_environment
from whet.tasks.tools.calculator import calculator
from whet.tasks.tools.calls import Call, read_calls
from whet.tasks.tools.tool import BadCall, tool_of
from whet.tasks.tools.tool_environment import ToolEnvironment, told

EXAMPLE = Example(id="x", prompt="x", answer="x")


def search(query: str, most: int = 3, exact: bool = False, words: list[str] | None = None) -> str:
    """Looks a text up
    in the collection.

    Args:
        query: what to look for
        most: results at most

    Returns:
        something: else
    """
    return f"{query} {most} {exact} {words}"


def fails(number: float) -> str:
    """Fails."""
    raise KeyError(f"no {number}")


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answered(text: str, *functions: Callable[..., object]) -> list[dict[str, Any]]:
    """What a turn is answered with, one object for each call."""
    environment = ToolEnvironment(functions or [calculator, fails])
    environment.reset(EXAMPLE)
    observation, reward, done = environment.step(text)
    assert (reward, done, environment.outcome()) == (0.0, False, "")
    pieces = observation.split("<tool_response>\n")[1:]
    return [json.loads(piece.removesuffix("\n").removesuffix("</tool_response>")) for piece in pieces]


def test_a_schema_is_signature_and_docstring() -> None:
    def look(query: str, most: int = 3, exact: bool = False, words: list[str] = []) -> str:  # noqa: B006
        return search(query, most, exact, words)

    look.__doc__ = search.__doc__
    assert tool_of(look).schema() == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks a text up in the collection.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "what to look for"},
                    "most": {"type": "integer", "description": "results at most"},
                    "exact": {"type": "boolean"},
                    "words": {"type": "array"},
                },
                "required": ["query"],
            },
        },
    }


def test_functions_that_cannot_be_told_are_refused() -> None:
    def silent(x: int) -> str:
        return str(x)

    def untyped(x) -> str:  # type: ignore[no-untyped-def]
        """Has a docstring."""
        return str(x)

    def many(*numbers: int) -> str:
        """Has a docstring."""
        return str(numbers)

    for function, message in ((silent, "has no docstring"), (untyped, "type None"), (many, "plain parameters")):
        with pytest.raises(UserError, match=message):
            tool_of(function)
    with pytest.raises(UserError, match="parameter words has the type"):
        tool_of(search)


@pytest.mark.parametrize(
    "text",
    [
        called("calculator", expression="1+2"),
        "Let me see. " + called("calculator", expression="1+2") + " …",
        '<tool_call>{"name": "calculator", "arguments": "{\\"expression\\": \\"1+2\\"}"}</tool_call>',
        '<tool_call>{"name": "calculator", "parameters": {"expression": "1+2"}}',
        '{"name": "calculator", "parameters": {"expression": "1+2"}}',
        '```json\n[{"name": "calculator", "arguments": {"expression": "1+2"}}]\n```',
        "<think>" + called("other") + "</think>" + called("calculator", expression="1+2"),
        '<|python_tag|>{"name": "calculator", "parameters": {"expression": "1+2"}}',
        '{"type": "function", "name": "calculator", "parameters": {"expression": "1+2"}}',
        '{"type": "function", "function": {"name": "calculator", "arguments": "{\\"expression\\": \\"1+2\\"}"}}',
        '<function=calculator>{"expression": "1+2"}</function>',
        '[TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "1+2"}}]',
    ],
)
def test_every_spelling_of_a_call(text: str) -> None:
    assert read_calls(text) == [Call(name="calculator", arguments={"expression": "1+2"})]
    assert answered(text) == [{"name": "calculator", "content": "3"}]


def test_several_calls_without_tags() -> None:
    one, other = ('{"name": "calculator", "parameters": {"expression": "' + text + '"}}' for text in ("1+2", "4"))
    for between in ("; ", "\n", ";"):
        assert [found["content"] for found in answered(one + between + other)] == ["3", "4"]
    assert read_calls(f"{one}, {other}") == read_calls(f"{one} {other} so") == []
    twice = '<function=calculator>{"expression": "1"}</function><function=fails>x</function>'
    assert [call.name or call.problem[:21] for call in read_calls(twice)] == ["calculator", "the call of fails has"]


def test_results_are_messages_too() -> None:
    environment = ToolEnvironment([calculator, fails])
    environment.reset(EXAMPLE)
    assert environment.messages() == []
    environment.step(called("calculator", expression="1+2") + called("abacus"))
    first, second = environment.messages()
    assert first == Message(role="tool", content="3", name="calculator")
    assert json.loads(second.content)["error"].startswith("there is no tool 'abacus'")
    environment.step("3")
    assert environment.messages() == []


@pytest.mark.parametrize(
    "text", ["", "It is 3.", "3", '{"answer": 3}', "[]", "[1, 2]", "<think>" + called("x"), "{" * 5000]
)
def test_anything_else_is_the_answer(text: str) -> None:
    environment = ToolEnvironment([calculator])
    environment.reset(EXAMPLE)
    assert environment.step(text) == ("", 0.0, True)
    assert environment.outcome() == text


def test_calls_of_one_turn_are_answered_in_order() -> None:
    text = called("calculator", expression="2*3") + called("fails", number=1) + called("calculator", expression="7")
    assert answered(text) == [
        {"name": "calculator", "content": "6"},
        {"name": "fails", "error": "KeyError: 'no 1.0'"},
        {"name": "calculator", "content": "7"},
    ]
    many = answered(called("calculator", expression="1") * 20)
    assert len(many) == 17
    assert many[-1] == {"error": "20 calls in one turn, only 16 are answered"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>calculator(3)</tool_call>", "a tool call is no JSON: write <tool_call>"),
        ('<tool_call>{"arguments": {}}</tool_call>', "a tool call has no name"),
        ('<tool_call>{"name": "calculator"}</tool_call>', "the call of calculator has no arguments"),
        (called("abacus"), "there is no tool 'abacus'; there are: calculator, fails"),
        (called("calculator"), "calculator needs the argument 'expression'"),
        (called("calculator", expression="1", base=2), "calculator has no argument 'base'; its arguments are: expr"),
        (called("calculator", expression=3), "calculator: the argument 'expression' must be of type string"),
        (called("fails", number=True), "fails: the argument 'number' must be of type number"),
        (called("calculator", expression="1/0"), "ZeroDivisionError"),
        (called("calculator", expression="9**9**9"), "ValueError: the number is too large"),
    ],
)
def test_errors_are_told_to_the_policy(text: str, error: str) -> None:
    (found,) = answered(text)
    assert found["error"].startswith(error)


def test_a_long_result_is_cut() -> None:
    def long() -> str:
        """Much."""
        return "x" * 10_000

    (found,) = answered(called("long"), long)
    assert found["content"] == "x" * 4_000 + " …"


def test_whole_numbers_are_numbers_and_truths_are_not() -> None:
    tool = tool_of(fails)
    for given in (True, "1", None):
        with pytest.raises(BadCall, match="type number"):
            tool.call({"number": given})


def test_the_calculator_agrees_with_fractions() -> None:
    rng = random.Random(3)

    def made(depth: int) -> str:
        if depth == 0:
            return rng.choice([str(rng.randint(0, 99)), f"{rng.randint(0, 99)}.5"])
        return f"({made(depth - 1)} {rng.choice('+-*/')} {made(depth - 1)})"

    for _ in range(200):
        expression = made(rng.randint(0, 3))
        spelled = re.sub(r"[\d.]+", r"Fraction('\g<0>')", expression)
        try:
            wanted = eval(spelled, {"Fraction": Fraction})
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                calculator(expression)
            continue
        assert math.isclose(float(calculator(expression)), float(wanted), rel_tol=1e-11, abs_tol=1e-11)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1,250 × 4", "5000"),
        ("0.1 + 0.2", "0.3"),
        ("2^10", "1024"),
        ("7 // 2 + 7 % 2", "4"),
        ("1 ÷ 3", "0.333333333333"),
        ("$3.50 − $1", "2.5"),
        ("-(2)**2", "-4"),
        ("10**-2", "0.01"),
    ],
)
def test_what_is_written_in_word_problems(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "text", ["", "x", "__import__('os')", "1 if 2 else 3", "'a'*9", "2**0.5", "1" * 400, "(" * 150, "[1]"]
)
def test_nothing_else_is_computed(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        calculator(text)


def test_a_task_with_tools_keeps_its_contracts() -> None:
    task = load_task("tools", {"task": "arithmetic", "options": {"level": 3, "chat": True}})
    check_task(task)
    check_environment(task)
    (example,) = task.held_out(1)
    (question,) = example.prompt
    assert isinstance(question, Message)
    assert [json.loads(one) for one in question.tools] == [tool_of(calculator).schema()]
    assert question.tools[0] in told([tool_of(calculator)])
    assert question.content.startswith("What is ")
    assert task.correct(example, f"It is {example.answer}")


def test_what_a_task_with_tools_refuses() -> None:
    for options, message in (
        ({"task": "mine.py:Task"}, "is a task of your own: give it a method `environment`"),
        ({"tools": ["calculater"]}, "there is no tool 'calculater' — did you mean|there is no tool 'calculater'"),
        ({"task": "guessing"}, "task guessing is played in turns already"),
    ):
        with pytest.raises(UserError, match=message):
            load_task("tools", options)
