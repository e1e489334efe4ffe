"""`check_environment`: tests that a task's environments keep their contract, as Gymnasium's `check_env` does."""

from collections.abc import Sequence
from dataclasses import dataclass

from whet.records import Example
from whet.tasks.check import TaskProblem, attempt
from whet.tasks.protocol import Environment, HasAlphabet, HasEnvironment, HasMoves, Task, has_environment
from whet.tasks.stepping.replies import BadReply, Reply, begun, checked, stepped

PLAYED = 4  # examples of each side
TURNS = 256  # of a conversation that its environment may not end
GARBAGE = ("", " ", "\n", "\x00", "\ufffd", "🦙 ¿?", "}{)(][", "x" * 5000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Play:
    """One conversation."""

    texts: tuple[str, ...]
    replies: tuple[Reply, ...]  # to the reset and to each text

    @property
    def reward(self) -> float:
        return sum(reply.reward for reply in self.replies)


def check_environment(task: Task) -> None:
    """Raises `TaskProblem` at the first violation of the contract."""
    _require(has_environment(task), f"task {task.name} has no environment: give it a method `environment`")
    for example in (*task.held_out(PLAYED), *task.draw(PLAYED, seed=(0, 1))):
        bad = play(task, example, GARBAGE)
        _require(play(task, example, GARBAGE) == bad, f"{_of(example)} answers the same texts otherwise a second time")
        _check_independence(task, example, bad)
        _check_alphabet(task, example, bad)
        if isinstance(task, HasMoves):
            _check_moves(task, example, bad)


def play(task: Task, example: Example, texts: Sequence[str]) -> Play:
    """A new environment's answers to these texts, as long as it is not done."""
    environment = _made(task, example)
    replies = [_begun(environment, example)]
    for text in texts:
        replies.append(_stepped(environment, example, text))
        if replies[-1].done:
            break
    return Play(texts=tuple(texts[: len(replies) - 1]), replies=tuple(replies))


def play_moves(task: Task, example: Example) -> Play:
    """A conversation in which the task itself says what to write; it may break off."""
    assert isinstance(task, HasMoves)
    environment, texts = _made(task, example), list[str]()
    replies = [_begun(environment, example)]
    while len(texts) < TURNS and not replies[-1].done:
        texts.append(attempt(f"move for {example.id}", task.move, example, tuple(texts)))
        replies.append(_stepped(environment, example, texts[-1]))
    return Play(texts=tuple(texts), replies=tuple(replies))


def _made(task: Task, example: Example) -> Environment:
    assert isinstance(task, HasEnvironment)
    environment = attempt("environment", task.environment)
    _require(isinstance(environment, Environment), f"{_of(example)} is no environment: it needs reset and step")
    return environment


def _begun(environment: Environment, example: Example) -> Reply:
    try:
        reply = checked(attempt(f"{_of(example)}: reset", begun, environment, example))
    except BadReply as error:
        raise TaskProblem(f"{_of(example)}: {error}") from None
    return reply


def _stepped(environment: Environment, example: Example, text: str) -> Reply:
    try:
        return checked(attempt(f"{_of(example)}: step on the text {text[:20]!r}", stepped, environment, text))
    except BadReply as error:
        raise TaskProblem(f"{_of(example)}: {error}, on the text {text[:20]!r}") from None


def _check_independence(task: Task, example: Example, alone: Play) -> None:
    """Two environments side by side do not share their state, and one can be begun again."""
    one, other = _made(task, example), _made(task, example)
    mine = [_begun(one, example)]
    _begun(other, example)
    for text in alone.texts:
        mine.append(_stepped(one, example, text))
    _require(tuple(mine) == alone.replies, f"{_of(example)} answers otherwise when another one was begun: shared state")
    _require(_begun(one, example) == alone.replies[0], f"{_of(example)} begins otherwise when it is reset once more")


def _check_alphabet(task: Task, example: Example, seen: Play) -> None:
    if isinstance(task, HasAlphabet):
        missing = {character for reply in seen.replies for character in reply.observation} - set(task.alphabet)
        _require(not missing, f"the alphabet lacks {sorted(missing)[:5]}, which {_of(example)} answers")


def _check_moves(task: Task, example: Example, bad: Play) -> None:
    """The task's own moves win, and pay best."""
    won = play_moves(task, example)
    _check_alphabet(task, example, won)
    _require(won.replies[-1].done, f"{_of(example)} is not done after {TURNS} of the task's own moves")
    outcome = _graded(won)
    _require(task.correct(example, outcome) is True, f"{_of(example)}: the task's own moves end in {outcome!r}, wrong")
    best, worst = (one.reward + task.score(example, _graded(one)).reward for one in (won, bad))
    _require(best > worst, f"{_of(example)}: garbage is paid {worst:g} and the task's own moves {best:g}")


def _graded(played: Play) -> str:
    outcome = played.replies[-1].outcome
    return (played.texts[-1] if played.texts else "") if outcome is None else outcome


def _of(example: Example) -> str:
    return f"the environment of {example.id}"


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise TaskProblem(sentence)
