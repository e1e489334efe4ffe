"""`check_task`: tests that a task keeps its contract, as Gymnasium's `check_env` does for environments."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.protocol import HasAlphabet, Improvable, Task, is_reward, too_large
from whet.user_code import one_line

DRAW = 512  # enough to find a leaked evaluation example in a small task
HELD_OUT = 128
GRADED = 32  # examples whose scores are tested
SEEDS = ((0,), (1,), (2,), (0, 1))
GARBAGE = ("", " ", "\n", "\x00", "\ufffd\ufffd", "🦙 ¿?", "}{)(][", "x" * 5000)

P = ParamSpec("P")
T = TypeVar("T")


class TaskProblem(UserError):
    """A task breaks its contract; the message says where."""


def check_task(task: Task) -> None:
    """Raises `TaskProblem` at the first violation of the contract."""
    training, evaluation = _check_sources(task)
    for example in (*training, *evaluation):
        _check_example(example)
    _check_ids(training, evaluation)
    if isinstance(task, HasAlphabet):
        _check_alphabet(task.alphabet, (*training, *evaluation))
    for example in (*evaluation[:GRADED], *training[:GRADED]):
        _check_grading(task, example, [other.answer for other in training[:GRADED]])


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise TaskProblem(sentence)


def attempt(what: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a method of a task; what it raises becomes a `TaskProblem`."""
    try:
        return call(*args, **kwargs)
    except UserError:  # a sentence for the user already
        raise
    except Exception as error:
        raise TaskProblem(f"{what} raises {one_line(error)}") from error


def _check_sources(task: Task) -> tuple[list[Example], list[Example]]:
    """Training and evaluation examples, after checks that they depend on the arguments only."""
    training = attempt("draw", task.draw, DRAW, seed=SEEDS[0])
    _require(isinstance(training, list), f"draw gives a {type(training).__name__}, not a list")
    _require(len(training) == DRAW, f"draw({DRAW}) gives {len(training)} examples")
    again = attempt("draw", task.draw, DRAW, seed=SEEDS[0])
    _require(training == again, "draw gives different examples for the same seed")
    others = [attempt("draw", task.draw, DRAW, seed=seed) for seed in SEEDS[1:]]
    alike = all(other == training for other in others) and any(e != training[0] for e in training)
    _require(not alike, "draw ignores the seed: several seeds give the same examples")
    evaluation = attempt("held_out", task.held_out, HELD_OUT)
    _require(isinstance(evaluation, list), f"held_out gives a {type(evaluation).__name__}, not a list")
    _require(len(evaluation) > 0, "held_out gives no examples: there is nothing to evaluate on")
    _require(len(evaluation) <= HELD_OUT, f"held_out({HELD_OUT}) gives {len(evaluation)} examples")
    again = attempt("held_out", task.held_out, HELD_OUT)
    _require(evaluation == again, "held_out gives different examples the second time")
    fewer = len(evaluation) // 2
    first = attempt("held_out", task.held_out, fewer)
    _require(first == evaluation[:fewer], f"held_out({fewer}) is not the beginning of held_out({HELD_OUT})")
    return [e for some in (training, *others) for e in some], evaluation


def _check_example(example: Example) -> None:
    _require(isinstance(example, Example), f"an example is a {type(example).__name__}, not an Example")
    _require(isinstance(example.id, str) and example.id != "", f"an example has the id {example.id!r}")
    prompt = example.prompt
    if not isinstance(prompt, str):
        messages = isinstance(prompt, tuple) and all(isinstance(message, Message) for message in prompt)
        _require(messages, f"the prompt of {example.id} is neither a string nor a tuple of Messages")
    _require(len(prompt) > 0, f"the prompt of {example.id} is empty")
    _require(isinstance(example.answer, str), f"the answer of {example.id} is not a string")
    _require(isinstance(example.twin, str), f"the twin of {example.id} is not a string")
    try:
        json.dumps(dict(example.columns), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TaskProblem(f"the columns of {example.id} are not JSON: {error}") from error


def _check_ids(training: Sequence[Example], evaluation: Sequence[Example]) -> None:
    named: dict[str, Example] = {}
    for example in (*training, *evaluation):
        same = named.setdefault(example.id, example) == example
        _require(same, f"the id {example.id} names two different examples")
    _require(len({e.id for e in evaluation}) == len(evaluation), "held_out gives the same example twice")
    ids, prompts, twins = {e.id for e in training}, {e.prompt for e in training}, {e.twin for e in training} - {""}
    for example in evaluation:
        _require(example.id not in ids, f"the held-out example {example.id} is also drawn for training")
        _require(example.prompt not in prompts, f"the prompt of held-out {example.id} is also drawn for training")
        _require(example.twin not in twins, f"held-out {example.id} shares its twin (leakage group) with training")


def _check_alphabet(alphabet: str, examples: Sequence[Example]) -> None:
    for example in examples:
        prompt = example.prompt
        text = prompt if isinstance(prompt, str) else "".join(message.content for message in prompt)
        missing = sorted(set(text + example.answer) - set(alphabet))
        _require(not missing, f"the alphabet lacks {missing[:5]}, which {example.id} uses")


def _check_grading(task: Task, example: Example, other_answers: Sequence[str]) -> None:
    """The best completion is correct and has the highest score of all attempts; garbage is wrong and does not raise."""
    name, best = _best(task, example)
    for text in GARBAGE:
        right = attempt(f"correct on the text {text[:20]!r}", task.correct, example, text)
        _require(right is None or isinstance(right, bool), f"correct gives a {type(right).__name__}, not a bool")
        _require(not right or text == best, f"the text {text[:20]!r} counts as correct for {example.id}")
    attempts = (*GARBAGE, best[:-1], best + best, f"{best} {best}", best + "x", example.answer, *other_answers)
    rewards = [_checked_score(task, example, text).reward for text in attempts]
    if best == "" or attempt("correct", task.correct, example, best) is None:
        return  # no reference answer: graded by the user's reward functions
    _require(bool(attempt("correct", task.correct, example, best)), f"the {name} of {example.id} is not correct")
    most = _checked_score(task, example, best).reward
    for text, reward in zip(attempts, rewards, strict=True):
        _require(reward <= most, f"the text {text[:20]!r} scores {reward} on {example.id}, its own {name} only {most}")


def _best(task: Task, example: Example) -> tuple[str, str]:
    """The completion that scores full marks, and its name in errors."""
    if not isinstance(task, Improvable):
        return "answer", example.answer
    best = attempt("best", task.best, example)
    _require(isinstance(best, str), f"best gives a {type(best).__name__}, not a string")
    return "best", best


def _checked_score(task: Task, example: Example, text: str) -> Score:
    shown = f"score on the text {text[:20]!r}"
    score = attempt(shown, task.score, example, text)
    _require(isinstance(score, Score), f"{shown} gives a {type(score).__name__}, not a Score")
    _require(isinstance(score.parts, Mapping), f"{shown} has parts that are not a mapping from name to number")
    for name, value in (("reward", score.reward), *score.parts.items()):
        number = isinstance(value, int | float)
        _require(isinstance(name, str) and number, f"{shown} has a part {name!r} that is not a number: {value!r}")
        _require(is_reward(value), f"{shown} gives {name} = {value}{too_large(value)}")
    again = attempt(shown, task.score, example, text)
    _require(score == again, f"{shown} differs from one call to the next")
    return score
