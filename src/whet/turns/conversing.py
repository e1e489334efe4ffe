"""Which tasks are played in turns, and their conductors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whet.errors import UserError
from whet.models.protocol import Tokenizer
from whet.records import Example
from whet.tasks.protocol import Task, has_environment
from whet.tasks.stepping.environment_pool import Limits, environments_of
from whet.turns.conductor import Conductor, Play


class Conversing:
    """Gives a task with environments its conductor; workers live until `close`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        context: int | None = None,
        max_turns: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`context`: tokens of a sequence of the model, if it is known; `max_turns`: of a conversation."""
        self._tokenizer, self._context, self._max_turns = tokenizer, context, max_turns
        self._limits = limits or Limits()
        self._conductors: dict[int, tuple[Task, Conductor | None]] = {}

    def of(self, task: Task) -> Callable[[Sequence[Example]], Play] | None:
        """Makes what plays conversations about examples of a task; None if its rollouts are single answers."""
        if id(task) not in self._conductors:
            self._conductors[id(task)] = task, self._made(task)
        conductor = self._conductors[id(task)][1]
        return None if conductor is None else conductor.about

    def close(self) -> None:
        """Ends the processes of environments."""
        for _, conductor in self._conductors.values():
            if conductor is not None:
                conductor.environments.close()
        self._conductors = {}

    def _made(self, task: Task) -> Conductor | None:
        environments = environments_of(task, self._limits)
        if environments is None:
            return None
        example = (task.held_out(1) or task.draw(1, seed=(0, 1)))[0]
        if not isinstance(example.prompt, str):
            require_history(self._tokenizer, tools=any(message.has_tools for message in example.prompt))
        return Conductor(
            environments=environments, tokenizer=self._tokenizer, max_turns=self._max_turns, context=self._context
        )


def require_history(tokenizer: Tokenizer, *, tools: bool = False) -> None:
    """Refuses a chat template that changes what it wrote when messages follow: the user's, or results of tools."""
    problem = tokenizer.rewrites_history(tools=tools)
    if problem:
        raise UserError(
            f"the chat template {problem} when a conversation goes on, and a policy that learns over several turns has "
            "its own tokens before it as it wrote them: set model.chat_template to one that does not (chatml, or a "
            "Jinja file)"
        )


def require_single_answers(task: Task, what: str) -> None:
    """Refuses a task that is played in turns, for `what` looks at single answers."""
    if has_environment(task):
        raise UserError(f"task {task.name} is played in turns with an environment, and {what}")
