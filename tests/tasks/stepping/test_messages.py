"""Environments that answer in messages: what reaches the conversation, also through a worker, and what is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from whet.records import Example, Message
from whet.tasks.loading import guarded_task
from whet.tasks.stepping.environment_pool import Limits, environments_of
from whet.tasks.stepping.in_process import OwnEnvironments
from whet.tasks.tools.tool_environment import ToolEnvironment

EXAMPLE = Example(id="x", prompt="x", answer="x")
TOOL_TASK = """
from whet.records import Example, Score
from whet.tasks.tools.tool_environment import ToolEnvironment, offering

def price(item: str) -> str:
    '''Looks a price up.'''
    return f"{len(item)} dollars"

class Shopping:
    name = "shopping"
    def draw(self, count, *, seed):
        return [Example(id=str(n), prompt=offering("How much?", [price]), answer="3") for n in range(count)]
    def held_out(self, count):
        return [Example(id="h", prompt=offering("How much is it?", [price]), answer="3")]
    def score(self, example, text):
        return Score(reward=float(text == example.answer), parts={})
    def correct(self, example, text):
        return text == example.answer
    def environment(self):
        return ToolEnvironment([price])
"""


class Saying(ToolEnvironment):
    """Its newest observation is whatever it is given."""

    def __init__(self, found: object) -> None:
        super().__init__([])
        self.found = found

    def step(self, text: str) -> tuple[str, float, bool]:
        return "text", 0.0, False

    def messages(self) -> Sequence[Message]:
        return self.found  # type: ignore[return-value]


def answered(make: Callable[[], Any]) -> Any:
    environments = OwnEnvironments(make)
    (begun,) = environments.begin([EXAMPLE])
    assert begun.messages == ()
    return environments.step({0: "x"})[0]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ("text", "messages gave 'text', not a list of messages"),
        (["text"], "messages gave a list, not a list of messages"),
        ([Message(role="user", content="x")], "a message that is no result of a tool"),
        ([Message(role="tool", content=b"x")], "messages gave b'x', not a text"),  # type: ignore[arg-type]
        ([Message(role="tool", content="x" * 2**19)], "524,288 characters, more than 262,144"),
        ([Message(role="tool", content="\ud800")], "half of a surrogate pair"),
        ([Message(role="tool", content="x", name=3)], "no result of a tool"),  # type: ignore[arg-type]
    ],
)
def test_messages_that_are_none_lose_their_conversation(found: object, problem: str) -> None:
    assert problem in answered(lambda: Saying(found)).failure


def test_results_come_through_a_worker_with_the_tools_of_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TOOL_TASK)
    task = guarded_task(f"{tmp_path / 'shop.py'}:Shopping", {})
    environments = environments_of(task, Limits())
    assert environments is not None
    environments.begin(task.draw(2, seed=(1,)))
    replies = environments.step({1: '{"name": "price", "arguments": {"item": "pen"}}', 0: "3"})
    assert replies[1].messages == (Message(role="tool", content="3 dollars", name="price"),)
    assert (replies[0].messages, replies[0].done, replies[0].outcome) == ((), True, "3")
    environments.close()
