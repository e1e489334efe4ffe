"""Several tasks as one, drawn in proportion to weights; each grades its own examples."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from whet.errors import UserError
from whet.records import PART, Example, Score
from whet.tasks.blending import Draw, alternated, blended, exact_weights
from whet.tasks.loading import guarded_task
from whet.tasks.protocol import HasAlphabet, Improvable, Task

LABEL = re.compile(r"[A-Za-z0-9][\w.-]*")
OF_A_MEMBER = ("name", "weight", "label")  # the other keys are options of the task


@dataclass(frozen=True, kw_only=True)
class Member:
    """One task of a mixture, as a recipe names it."""

    label: str  # in ids and metrics
    name: str
    weight: object
    options: Mapping[str, Any]


def members(tasks: Sequence[Any]) -> list[Member]:
    """The tasks of a mixture; a label that occurs before is numbered."""
    if isinstance(tasks, str):
        raise UserError(f"task mixture: tasks is {tasks!r}, must be a list: tasks=[{tasks}, …]")
    found: list[Member] = []
    for given in tasks:
        one = {"name": given} if isinstance(given, str) else given
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            raise UserError(f"task mixture: tasks has {given!r}, must be a task's name or a mapping with one")
        if one["name"] == "mixture":
            raise UserError("task mixture: a mixture is one of its tasks: list the tasks of both in one")
        plain = str(one.get("label") or one["name"].rpartition(":")[2])
        if not LABEL.fullmatch(plain) or plain == "parts":
            raise UserError(f"task mixture: {plain!r} cannot be a label: use letters, digits, _ and -, and not 'parts'")
        taken = {member.label for member in found}
        label = next(name for name in (plain, *(f"{plain}-{n}" for n in range(2, len(tasks) + 2))) if name not in taken)
        options = {key: value for key, value in one.items() if key not in OF_A_MEMBER}
        found.append(Member(label=label, name=one["name"], weight=one.get("weight", 1), options=options))
    if not found:
        raise UserError("task mixture has no tasks: list some, e.g. tasks: [{name: countdown, weight: 2}, hanoi]")
    return found


class MixedTasks:
    """Tasks by label, with weights. Has an alphabet if all of them have one: the characters of all."""

    name = "mixture"

    def __init__(self, parts: Mapping[str, Task], weights: tuple[Fraction, ...]) -> None:
        self.parts, self.weights = parts, weights
        alphabets = [task.alphabet for task in parts.values() if isinstance(task, HasAlphabet)]
        if len(alphabets) == len(parts):
            self.alphabet = "".join(sorted(set().union(*alphabets)))

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return blended([self._draw(label) for label in self.parts], self.weights, count, seed)

    def held_out(self, count: int) -> list[Example]:
        """The same number of each task, while it has any: accuracies are compared between tasks."""
        sources = [[self._mixed(label, one) for one in task.held_out(count)] for label, task in self.parts.items()]
        return alternated(sources, count)

    def score(self, example: Example, text: str) -> Score:
        task, own = self.owner(example)
        return task.score(own, text)

    def correct(self, example: Example, text: str) -> bool | None:
        task, own = self.owner(example)
        return task.correct(own, text)

    def best(self, example: Example) -> str:
        """The answer, or better where the task knows better."""
        task, own = self.owner(example)
        return task.best(own) if isinstance(task, Improvable) else example.answer

    def owner(self, example: Example) -> tuple[Task, Example]:
        """The task of an example, and the example as that task made it."""
        label, _, own = example.id.partition("/")
        return self.parts[label], replace(example, id=own)

    def with_parts(self, parts: Mapping[str, Task]) -> "MixedTasks":
        """The same mixture of other tasks, under the same labels."""
        return MixedTasks(parts, self.weights)

    def described(self) -> str:
        """The tasks with their shares, in words."""
        total = sum(self.weights)
        shares = zip(self.parts, self.weights, strict=True)
        return "a mixture of " + ", ".join(f"{label} {float(weight / total):.0%}" for label, weight in shares)

    def _draw(self, label: str) -> Draw:
        def draw(count: int, seed: tuple[int, ...]) -> list[Example]:
            drawn = self.parts[label].draw(count, seed=seed)
            if len(drawn) != count:
                raise UserError(f"task {label} drew {len(drawn)} examples instead of {count}: check its draw method")
            return [self._mixed(label, one) for one in drawn]

        return draw

    def _mixed(self, label: str, example: Example) -> Example:
        twin = f"{self.parts[label].name}:{example.twin}" if example.twin else ""
        return replace(example, id=f"{label}/{example.id}", columns={**example.columns, PART: label}, twin=twin)


class Mixture(MixedTasks):
    """Several tasks in one run, in proportion to their weights."""

    tasks: Sequence[Any]  # each a name, or {name, weight, label, options}: weight 1 and the name as label by default

    def __init__(self, *, tasks: Sequence[Any]) -> None:
        named = members(tasks)
        weights = exact_weights({member.label: member.weight for member in named}, "task mixture")
        super().__init__({member.label: guarded_task(member.name, member.options) for member in named}, weights)
        self.members = named
