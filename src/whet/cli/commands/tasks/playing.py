"""`whet tasks play`: a person answers in the terminal, and sees what the reward says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.records import Example, Turn
    from whet.tasks.protocol import Task
    from whet.tasks.stepping.replies import Environments

QUOTES = '"""'  # on a line of its own begins and ends an answer of several lines
HINT = f"one line is an answer; {QUOTES} on a line begins and ends one of several lines; Ctrl-D ends the game"


def play(
    name: str = typer.Argument(..., metavar="NAME", help="A task; your own: file.py:Class."),
    options: arguments.TaskOptions = None,
    count: int = typer.Option(10, min=1, help="Prompts to answer at most."),
    seed: int = typer.Option(0, min=0, help="Seed of the prompts."),
    held_out: bool = typer.Option(False, "--held-out", help="Held-out prompts in place of training prompts."),
    as_json: arguments.AsJson = False,
) -> None:
    """Answer the prompts of a task yourself: each answer is scored as a completion of a model would be.

    One line is one answer, also where input is piped; of a task with an environment it is one turn, and the environment
    answers. An answer of several lines stands between two lines of three double quotes. Ctrl-D or Ctrl-C ends the game
    and prints the counts.

    \b
    Examples:
      whet tasks play countdown level=2
      whet tasks play guessing level=3
      printf '7\\n12\\n' | whet tasks play arithmetic --json
    """
    from whet.tasks.loading import guarded_task

    task = guarded_task(name, arguments.read_options(options or []))
    examples = task.held_out(count) if held_out else task.draw(count, seed=(seed, 1))
    if sys.stdin.isatty():
        say(HINT, err=True)
    rounds: list[dict[str, Any]] = []
    try:
        for example, text, turns in _asked(task, examples, quiet=as_json):
            rounds.append(_scored(task, example, text, turns))
            if not as_json:
                _tell(rounds[-1])
    except KeyboardInterrupt:
        say("", err=True)
    total = {
        "answered": len(rounds),
        "correct": sum(one["correct"] is True for one in rounds),
        "mean_reward": sum(one["reward"] for one in rounds) / len(rounds) if rounds else None,
    }
    if as_json:
        say_json({"task": name, **total, "rounds": rounds})
        return
    mean = f", mean reward {total['mean_reward']:.3g}" if rounds else ""
    say(f"{total['correct']} of {total['answered']} correct{mean}")


def _asked(task: Task, examples: list[Example], *, quiet: bool) -> Iterator[tuple[Example, str, list[Turn]]]:
    """Each example with what is graded and the turns that led to it, until there are no more answers."""
    from whet.tasks.stepping.environment_pool import Limits, environments_of

    answers = _answers()
    environments = environments_of(task, Limits())
    for number, example in enumerate(examples, 1):
        if not quiet:
            say_text(f"\n[{number} of {len(examples)}]\n{example.prompt_text}")
        if environments is None:
            text = next(answers, None)
            turns: list[Turn] = []
        else:
            text, turns = _conversed(environments, example, answers, quiet=quiet)
        if text is None:
            break
        yield example, text, turns
    if environments is not None:
        environments.close()


def _conversed(
    environments: Environments, example: Example, answers: Iterator[str], *, quiet: bool
) -> tuple[str | None, list[Turn]]:
    """The outcome of one conversation and its turns; None if there were no more answers before its end."""
    from whet.records import Turn

    turns: list[Turn] = []
    (reply,) = environments.begin([example])
    while not reply.failure:
        if not quiet and reply.observation:
            say_text(reply.observation)
        if reply.done:
            return (turns[-1].text if reply.outcome is None else reply.outcome), turns
        text = next(answers, None)
        if text is None:
            return None, turns
        (reply,) = environments.step({0: text}).values()
        turns.append(Turn(tokens=0, text=text, reward=reply.reward, observation=reply.observation))
    raise UserError(f"{reply.failure} (turn {len(turns)})")


def _answers() -> Iterator[str]:
    while line := _line():
        if line.strip() != QUOTES:
            yield line.rstrip("\r\n")
            continue
        lines = []
        for inner in sys.stdin:
            if inner.strip() == QUOTES:
                break
            lines.append(inner.rstrip("\r\n"))
        yield "\n".join(lines)


def _line() -> str:
    if sys.stdin.isatty():
        say_text("> ", end="")
        sys.stdout.flush()
    return sys.stdin.readline()


def _scored(task: Task, example: Example, text: str, turns: list[Turn]) -> dict[str, Any]:
    from whet.tasks.grading.turn_grader import with_turns

    score = with_turns(task.score(example, text), turns) if turns else task.score(example, text)
    played = {"turns": [{"text": t.text, "observation": t.observation, "reward": t.reward} for t in turns]}
    return {
        "id": example.id,
        "prompt": example.prompt_text,
        "given": text,
        "answer": example.answer,
        "correct": task.correct(example, text),
        "reward": score.reward,
        "parts": dict(score.parts),
        **(played if turns else {}),
    }


def _tell(one: dict[str, Any]) -> None:
    parts = ", ".join(f"{key} {value:.3g}" for key, value in one["parts"].items())
    verdict = {True: "correct", False: "wrong", None: "not judged"}[one["correct"]]
    say(f"{verdict}: reward {one['reward']:.3g}" + (f" ({parts})" if parts else ""))
    if one["given"] != one["answer"]:
        say_text(f"answer: {one['answer']}")
