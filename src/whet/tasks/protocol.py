"""The interface of tasks: a source of examples and a grader of completions. Imports no models and no tensors."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from whet.records import LARGEST_REWARD, Example, Message, Sampled, Score

Awaited = Callable[[], list[Score]]  # waits for scores


@runtime_checkable
class Task(Protocol):
    """What training and evaluation need of a task. `check_task` tests an implementation.

    The answers of its examples score full marks, unless the task is also `Improvable`.
    """

    @property
    def name(self) -> str: ...

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        """`count` training examples, determined by the seed.

        The seed ends with the step, so that a finite task can go through all its examples before it repeats one.
        """
        ...

    def held_out(self, count: int) -> list[Example]:
        """The first `count` evaluation examples, or all if there are fewer; none is ever drawn for training."""
        ...

    def score(self, example: Example, text: str) -> Score:
        """The training reward. Pure: the same arguments give the same score."""
        ...

    def correct(self, example: Example, text: str) -> bool | None:
        """The evaluation metric, independent of the training reward; None if the example has no reference answer."""
        ...


@runtime_checkable
class Improvable(Protocol):
    """A task whose answers are for imitation and may be mediocre."""

    def best(self, example: Example) -> str:
        """A completion that is correct and scores full marks."""
        ...


@runtime_checkable
class Gold(Protocol):
    """A task whose true (gold) reward is known, so that over-optimisation of another reward can be measured."""

    def gold(self, example: Example, text: str) -> float: ...


@runtime_checkable
class Votes(Protocol):
    """A task whose completions state an answer that samples can agree on, for a majority vote (maj@k)."""

    def vote(self, example: Example, text: str) -> str | None:
        """The answer, spelled alike in completions that agree; None if the completion states none."""
        ...


@runtime_checkable
class HasAlphabet(Protocol):
    """A task that lists the characters of its prompts and answers, for a character tokeniser."""

    @property
    def alphabet(self) -> str: ...


@runtime_checkable
class HasText(Protocol):
    """A task whose prompts and answers are pieces of a text: tokenisers are trained on it, and bigrams counted."""

    def training_text(self) -> Iterator[str]:
        """The whole text that training examples are taken from, in pieces; nothing that is held out."""
        ...


@runtime_checkable
class Adaptive(Protocol):
    """A task whose draws depend on how the policy does; its state is saved with every checkpoint."""

    def learn(self, passed: Sequence[tuple[str, bool]]) -> dict[str, float]:
        """Takes in which rollouts of a step were correct, by id, in the same order on every rank; gives metrics."""
        ...

    def state(self) -> dict[str, Any]:
        """As JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class HasWrongPlay(Protocol):
    """A task that can write answers in the right form and by its rules that solve nothing.

    The reward bench (`tasks/bench/`) grades them: each must score less than full marks.
    """

    def wrong_play(self, example: Example, *, seed: int) -> list[str]: ...


@runtime_checkable
class OpenEnded(Protocol):
    """A task without one final answer (constraints on a text, or its style): more text may leave a right one right.

    The reward bench leaves out the attacks that add or remove text.
    """

    @property
    def is_open_ended(self) -> bool: ...


@runtime_checkable
class Batched(Protocol):
    """A task that scores many completions faster than one by one."""

    def score_many(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]: ...


@runtime_checkable
class HasNotes(Protocol):
    """A task that says something when a run begins."""

    def notes(self) -> list[str]: ...


@runtime_checkable
class Environment(Protocol):
    """The other side of one conversation. `check_environment` tests an implementation.

    Its answers are a function of the example and of the texts so far: a run that is resumed, and an environment whose
    process had to be started again, then see the same ones.
    """

    def reset(self, example: Example) -> str:
        """Begins; gives the first observation, which stands after the prompt ("": the prompt says it all)."""
        ...

    def step(self, text: str) -> tuple[str, float, bool]:
        """The answer to what the policy wrote in its turn: observation, reward of the turn, whether it is done."""
        ...


@runtime_checkable
class HasOutcome(Protocol):
    """An environment that says what was achieved, whatever the policy wrote."""

    def outcome(self) -> str:
        """What `Task.score` and `Task.correct` are asked about, at any time; otherwise the text of the last turn is."""
        ...


@runtime_checkable
class AnswersInMessages(Protocol):
    """An environment whose observations are messages, as results of tools are."""

    def messages(self) -> Sequence[Message]:
        """The newest observation, for chat templates that write such messages; others get its text as the user's."""
        ...


@runtime_checkable
class HasEnvironment(Protocol):
    """A task whose rollouts are conversations: `score` and `correct` then grade their outcome.

    The reward of a conversation is the sum of its turns' rewards, and of the score of its outcome.
    """

    def environment(self) -> Environment:
        """A new one, for one conversation."""
        ...


@runtime_checkable
class HasMoves(Protocol):
    """A task with an environment that knows how to win: `check_environment` plays it."""

    def move(self, example: Example, texts: Sequence[str]) -> str:
        """What to write next, after these turns; the outcome is then correct in the end."""
        ...


def has_environment(task: object) -> bool:
    """Whether the rollouts of a task are conversations; also of a task within another that passes it on."""
    return callable(getattr(task, "environment", None))


class Grader(Protocol):
    """Scores batches of completions. Rows of the same prompt are next to each other."""

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        """`sampled`: what is known of the completions besides their texts, for reward functions that ask for it."""
        ...

    def shares(self, prompts: int) -> list[range]:
        """The prompts of a batch that are scored together, in order. It depends on nothing but their number."""
        ...

    def submit(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> Awaited:
        """Begins to score the rows of one share where that is possible beside other work; the result is waited for."""
        ...

    def close(self) -> None: ...


def is_reward(value: float) -> bool:
    """Whether the value is finite and within ±`LARGEST_REWARD`."""
    return abs(value) <= LARGEST_REWARD


def too_large(value: float) -> str:
    """The end of an error about a value that fails `is_reward`; empty if it is not finite."""
    return f", beyond ±{LARGEST_REWARD:g}, where training overflows: scale it down" if math.isfinite(value) else ""
