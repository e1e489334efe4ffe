"""What is checked: the score of a task, or reward functions on the rows of a task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.errors import UserError
from whet.imports import OBJECTS, is_object, load_named, passing
from whet.records import Example
from whet.tasks.check import attempt
from whet.tasks.grading.graders import WorkerGrader, make_grader
from whet.tasks.loading import is_packaged, load_task
from whet.tasks.protocol import Grader, Improvable, OpenEnded, Task

ANSWER = "{answer}"  # in the form of a right answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A reward: that of a task by name, or of functions that score the task's rows."""

    name: str  # for people
    task: Task
    task_name: str
    options: Mapping[str, Any]
    rewards: tuple[tuple[str, float], ...] = ()  # functions and their weights; none: the task's own score
    objects: Mapping[str, object] = field(default_factory=dict)  # passed from Python, by name
    form: str = ""  # of a right completion, with {answer}; empty: found by trying
    open_ended: bool = False  # more text may leave a right answer right

    def __post_init__(self) -> None:
        if self.form and ANSWER not in self.form:
            raise UserError(f"the form of right answers {self.form!r} has no {ANSWER}, where each answer goes")

    @property
    def is_here(self) -> bool:
        """Whether it is graded in this process: objects cannot be sent to another, and no limit applies to them."""
        return any(is_object(spec) for spec in ([spec for spec, _ in self.rewards] or [self.task_name]))

    @property
    def has_one_answer(self) -> bool:
        return not (self.open_ended or (isinstance(self.task, OpenEnded) and self.task.is_open_ended))

    def grader(self, seconds: float) -> Grader:
        """A grader with nothing left of earlier ones, except for objects: they keep what they remember."""
        if not self.is_here:
            grader = WorkerGrader(
                self.task_name, self.options, self.rewards, time_limit_seconds=seconds, may_abstain=True
            )
            grader.start()
            return grader
        with passing(self.objects):
            return make_grader(self.task_name, self.options, self.rewards, seconds, may_abstain=True, task=self.task)

    def answer(self, example: Example) -> str:
        """The right answer, or "" if the example has none."""
        return attempt("best", self.task.best, example) if isinstance(self.task, Improvable) else example.answer


def subject_of(
    what: str | Task | Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    *,
    task: str | Task | None = None,
    form: str = "",
    open_ended: bool = False,
) -> Subject:
    """The subject that a name or an object stands for; a reward function needs a `task` for its rows.

    `options` are those of the task.
    """
    options = dict(options or {})
    more: dict[str, Any] = {"form": form, "open_ended": open_ended}
    found, spec, objects = _found(what)
    if found is None or isinstance(found, type | Task):
        if task is not None:
            raise UserError(f"{spec} is a task and has rows of its own: leave out the other task or data")
        return _of_task(spec, options, objects, more)
    if not callable(found):
        raise UserError(f"{spec} is a {type(found).__name__}, neither a task nor a reward function")
    if task is None:
        raise UserError(f"{spec} is a reward function and needs rows to score: add --data FILE or --task NAME")
    _, rows_name, more_objects = _found(task)
    base = _of_task(rows_name, options, more_objects, more)
    return Subject(
        name=f"{spec.removeprefix(f'{OBJECTS}:')} on {base.name}",
        task=base.task,
        task_name=base.task_name,
        options=options,
        rewards=((spec, 1.0),),
        objects={**base.objects, **objects},
        **more,
    )


def subject_of_parts(
    name: str,
    task_name: str,
    options: Mapping[str, Any],
    rewards: Sequence[tuple[str, float]],
    *,
    form: str = "",
    open_ended: bool = False,
) -> Subject:
    """The subject of a recipe: its task and its reward functions."""
    return Subject(
        name=name,
        task=load_task(task_name, options),
        task_name=task_name,
        options=options,
        rewards=tuple(rewards),
        form=form,
        open_ended=open_ended,
    )


def _found(what: object) -> tuple[Any, str, dict[str, object]]:
    """The object (None: a packaged task), its name, and the objects that were passed from Python."""
    if not isinstance(what, str):
        name = getattr(what, "__name__", type(what).__name__)
        name = name if name.isidentifier() else type(what).__name__  # a lambda
        return what, f"{OBJECTS}:{name}", {name: what}
    if is_packaged(what) or ":" not in what:
        return None, what, {}
    found = load_named(what, "task or reward function")
    if isinstance(found, type) or not isinstance(found, Task):
        return found, what, {}
    name = what.rpartition(":")[2]
    return found, f"{OBJECTS}:{name}", {name: found}


def _of_task(spec: str, options: Mapping[str, Any], objects: Mapping[str, object], more: Mapping[str, Any]) -> Subject:
    with passing(objects):
        task = load_task(spec, options)
    spelled = " ".join([spec.removeprefix(f"{OBJECTS}:"), *(f"{key}={value}" for key, value in options.items())])
    return Subject(name=spelled, task=task, task_name=spec, options=options, objects=objects, **more)
