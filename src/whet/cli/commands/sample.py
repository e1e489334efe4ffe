"""`whet sample`: completions of a prompt, or of held-out examples of a task."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.api.loaded_model import Model, Target
    from whet.records import Sampling
    from whet.tasks.protocol import Task

Temperature = Annotated[float | None, typer.Option(help="0 is greedy.  [default: the run's, else 1]")]
TopK = Annotated[
    int | None, typer.Option(help="Sample from the k most likely tokens; 0: all.  [default: the run's, else 0]")
]
TopP = Annotated[
    float | None, typer.Option(help="Sample from the most likely tokens of this mass.  [default: the run's, else 1]")
]
MinP = Annotated[
    float | None, typer.Option(help="Least share of the top token's probability.  [default: the run's, else 0]")
]
Infill = Annotated[
    str | None, typer.Option("--infill", metavar="TEXT", help="Fill the blanks of a text (bidirectional models).")
]
Blank = Annotated[str, typer.Option("--blank", metavar="CHARACTER", help="With --infill: stands for one token.")]
Order = Annotated[
    str | None,
    typer.Option(help="Of a bidirectional model: tokens are revealed at random or by confidence.  [default: random]"),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Of a bidirectional model: passes.  [default: one for each token]")
]


def sample(
    model: arguments.Target,
    words: list[str] = typer.Argument(
        None, metavar="PROMPT|KEY=VALUE", help="A prompt in quotes (- reads standard input); with --task, its options."
    ),
    *,
    task: arguments.TaskName = None,
    examples: int = typer.Option(3, min=1, help="Number of held-out prompts."),
    count: int = typer.Option(4, min=1, help="Completions per prompt."),
    max_tokens: arguments.MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: arguments.Seed = 0,
    infill: Infill = None,
    blank: Blank = "_",
    order: Order = None,
    steps: Steps = None,
    raw: bool = typer.Option(False, "--raw", help="Give a chat model the prompt as it is, not as a user's message."),
    as_json: arguments.AsJson = False,
    served: arguments.Served = None,
    ids_of: arguments.IdsOf = None,
    key_env: arguments.KeyEnv = None,
    concurrency: arguments.Concurrency = None,
) -> None:
    """Sample completions of a prompt, or of a task's prompts.

    \b
    Examples:
      whet sample smollm2-135m-instruct "Name three colours." --temperature 0.7
      whet sample @last --count 2
      whet sample MODEL --task arithmetic level=2
      whet sample MODEL --infill "To be, or ___ to be" --order confidence
      whet sample http://127.0.0.1:8000/v1 "Name three colours." --model NAME
    """
    from whet.api.loaded_model import Model, choose_sampling, find_model
    from whet.api.model_limits import chosen_limit

    target = find_model(model, served, ids_of, key_env, concurrency)
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    own = target.config if task is None else None
    sampling = choose_sampling(own, given)
    asked = _question(target, task, words or [], infill)
    notes: list[str] = []
    settings: dict[str, Any] = {"n": count, "seed": seed, "note": notes.append}
    settings["limit"] = chosen_limit(own, max_tokens)
    with arguments.sampling_status("sampling") as on_token:
        loaded = Model(target, *target.open(on_token=on_token, logprobs="raw"))
        if infill is not None or order is not None or steps is not None:
            loaded = _unmasking(loaded, order, steps)
        if infill is not None:
            rows = _infilled(loaded, infill, sampling, n=count, seed=seed, blank=blank)
        elif isinstance(asked, str):
            rows = loaded.rows(asked, sampling, raw=raw, **settings)
        else:
            rows = loaded.task_rows(asked, examples, sampling, **settings)
    facts = {"model": target.name, "seed": seed} if as_json else None
    _say(rows, notes, facts, is_greedy=sampling.temperature == 0)


def _say(
    rows: Sequence[dict[str, Any]], notes: Sequence[str], facts: dict[str, Any] | None, *, is_greedy: bool
) -> None:
    """The rows as text, or with `facts` as JSON."""
    for note in notes:
        say(note, err=True)
    if facts is not None:
        say_json({**facts, "prompts": list(rows)})
        return
    for row in rows:
        say_text(_story(row, is_greedy=is_greedy))


def _unmasking(loaded: Model, order: str | None, steps: int | None) -> Model:
    from whet.api.infilling import revealing

    return revealing(loaded, order, steps)


def _infilled(loaded: Model, text: str, sampling: Sampling, **settings: Any) -> list[dict[str, Any]]:
    from whet.api.infilling import infill_row

    return [infill_row(loaded, text, sampling, **settings)]


def _question(target: Target, task: str | None, words: Sequence[str], infill: str | None) -> str | Task:
    """A typed prompt, a text with blanks, or a task with held-out examples."""
    from whet.api.loaded_model import find_task

    if infill is not None:
        if task is not None or words:
            raise UserError("--infill has its own text: leave the prompt and --task out")
        return infill
    if task is None and len(words) > 1:
        raise UserError(f"{len(words)} prompts were given: put the prompt in quotes, or name a --task for options")
    if task is None and words:
        return _standard_input() if words[0] == "-" else words[0]
    if task is None and target.config is None:
        raise UserError("nothing to complete: give a prompt in quotes (- reads standard input), or --task NAME")
    return find_task(target, task, arguments.read_options(words))[0]


def _standard_input() -> str:
    try:
        return sys.stdin.read().removesuffix("\n")  # `echo` adds it
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not text in {error.encoding}") from error


def _story(row: dict[str, Any], *, is_greedy: bool) -> str:
    """A prompt, its answer and the completions. Greedy tokens have probability 1, so their log-prob says nothing."""
    answer = row.get("answer", "")
    is_graded = any("correct" in completion for completion in row["completions"])
    what = "a right answer" if is_graded else "reference completion"  # of a text, which can go on in many ways
    told = f"\n{what}:\n{answer}" if "\n" in answer else f"   ({what}{' is' if is_graded else ':'} {answer})"
    lines = [row["prompt"] + (told if answer else "")]
    for number, completion in enumerate(row["completions"], start=1):
        facts = [f"{completion['tokens']} tokens"]
        facts += ["greedy"] if is_greedy else []
        has_logprob = not math.isnan(completion["logprob"]) and not (is_greedy and completion["logprob"] == 0)
        facts += [f"log-prob {completion['logprob']:.2f}"] if has_logprob else []
        facts += ["truncated"] if completion["finish"] == "length" else []
        facts += [("wrong", "right")[completion["correct"]]] if "correct" in completion else []
        lines.append(f"── {number} · {' · '.join(facts)}\n{completion['text']}")
    return "\n".join(lines) + "\n"
