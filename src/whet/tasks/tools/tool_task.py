"""A packaged task whose prompts come with tools: the same examples and grading, of the turn that calls none."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from whet.errors import UserError, nearest
from whet.records import Example, Score
from whet.tasks.loading import is_packaged, load_task
from whet.tasks.protocol import Task, has_environment
from whet.tasks.sandbox.sandbox import LEVELS
from whet.tasks.tools.calculator import calculator
from whet.tasks.tools.python_tool import PythonTool
from whet.tasks.tools.search import read_collection
from whet.tasks.tools.tool_environment import ToolEnvironment, offering

TOOLS = ("calculator", "python", "search")


@dataclass(frozen=True, kw_only=True)
class WithTools(ABC):
    """A task of single answers, played with tools."""

    tools: Sequence[str] = ("calculator",)  # which of the packaged tools: calculator, python, search
    collection: str = ""  # what `search` looks through: a folder of .txt and .md files, or rows with a column text
    isolation: str = "full"  # demanded of the machine for `python`: full, minimum, none

    name = "tools"

    def __post_init__(self) -> None:
        for tool in self.tools:
            if tool not in TOOLS:
                known = f"{nearest(tool, TOOLS)} (known: {', '.join(TOOLS)})"
                raise UserError(f"task {self.name}: there is no tool {tool!r}{known}")
        if ("search" in self.tools) != bool(self.collection):
            problem = "the tool search needs a collection" if "search" in self.tools else "a collection is for search"
            raise UserError(f"task {self.name}: {problem}: set both, or neither")
        if self.isolation not in LEVELS:
            raise UserError(f"task {self.name}: isolation is {self.isolation!r}, must be one of {', '.join(LEVELS)}")

    @cached_property
    @abstractmethod
    def _inner(self) -> Task:
        """The task of single answers."""

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._with_tools(example) for example in self._inner.draw(count, seed=seed)]

    def held_out(self, count: int) -> list[Example]:
        return [self._with_tools(example) for example in self._inner.held_out(count)]

    def score(self, example: Example, text: str) -> Score:
        return self._inner.score(example, text)

    def correct(self, example: Example, text: str) -> bool | None:
        return self._inner.correct(example, text)

    def best(self, example: Example) -> str:
        """The answer, or better where the task knows better."""
        known = getattr(self._inner, "best", None)
        return str(known(example)) if callable(known) else example.answer

    def environment(self) -> ToolEnvironment:
        return ToolEnvironment(self._functions)

    def notes(self) -> list[str]:
        """What isolates programs on this machine, where they are run."""
        return [PythonTool(self.isolation).note()] if "python" in self.tools else []

    @cached_property
    def _functions(self) -> list[Callable[..., object]]:
        make: Mapping[str, Callable[[], Callable[..., object]]] = {
            "calculator": lambda: calculator,
            "python": lambda: PythonTool(self.isolation).tool(),
            "search": lambda: read_collection(self.collection).tool(),
        }
        return [make[name]() for name in self.tools]

    def _with_tools(self, example: Example) -> Example:
        return replace(example, prompt=offering(example.prompt, self._functions))


@dataclass(frozen=True, kw_only=True)
class ToolTask(WithTools):
    """Another packaged task, played with tools."""

    task: str = "arithmetic"  # a packaged task
    options: Mapping[str, Any] = field(default_factory=dict)  # of that task

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_packaged(self.task):
            raise UserError(
                f"task tools: {self.task} is a task of your own: give it a method `environment` that makes "
                "whet.tasks.tools.tool_environment.ToolEnvironment with your functions, and it runs with limits"
            )
        if has_environment(self._inner):
            raise UserError(f"task tools: task {self.task} is played in turns already: use a task of single answers")

    @cached_property
    def _inner(self) -> Task:
        return load_task(self.task, self.options)
