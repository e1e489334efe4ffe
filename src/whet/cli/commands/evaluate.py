"""`whet eval`: accuracy and pass@k on held-out examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_table, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.api.loaded_model import Target
    from whet.evaluate.evaluation import Answer, Evaluation
    from whet.tasks.protocol import Task


def evaluate(
    model: arguments.Target,
    options: arguments.TaskOptions = None,
    *,
    task: arguments.TaskName = None,
    examples: int = typer.Option(None, min=1, help="Number of held-out prompts.  [default: the run's, else 200]"),
    samples: int = typer.Option(None, min=0, help="Completions per prompt for pass@k.  [default: the run's, else 0]"),
    k: str = typer.Option(None, "--k", metavar="1,4", help="k of pass@k.  [default: the run's, else 1 and SAMPLES]"),
    max_tokens: arguments.MaxTokens = None,
    temperature: float = typer.Option(None, help="Of samples; accuracy is greedy.  [default: the run's, else 1]"),
    seed: int = typer.Option(None, min=0, help="Seed of the samples.  [default: the run's, else 0]"),
    data: str = typer.Option(
        None, "--data", metavar="FILE|NAME", help="Rows for a reward model.  [default: the run's held-out rows]"
    ),
    show: int = typer.Option(0, "--show", min=0, metavar="N", help="Show N correct and N incorrect completions."),
    as_json: arguments.AsJson = False,
    served: arguments.Served = None,
    ids_of: arguments.IdsOf = None,
    key_env: arguments.KeyEnv = None,
    concurrency: arguments.Concurrency = None,
) -> None:
    """Evaluate on held-out prompts: accuracy and pass@k. Accuracy is greedy; intervals are of 95 % confidence.

    Of a reward model: pair accuracy, calibration, and best-of-n where rows have several completions with known scores.

    \b
    Examples:
      whet eval @last
      whet eval smollm2-135m-instruct --task arithmetic level=2 chat=true --samples 8 --k 1,8
      whet eval runs/20260101-120000-reward --data pairs.jsonl
      whet eval http://127.0.0.1:8000/v1 --model NAME --task arithmetic chat=true
    """
    from whet.api.loaded_model import eval_settings, find_target, find_task
    from whet.api.model_limits import chosen_limit
    from whet.cli.commands.score import evaluate_on_rows

    target = find_target(model, served, ids_of, key_env, concurrency)
    given: dict[str, Any] = {"samples": samples, "ks": None if k is None else _read_ks(k), "seed": seed}
    given |= {"max_tokens": max_tokens, "temperature": temperature}
    if target.reward_kind is not None:
        _refuse_generation(model, {"task": task, **given, "show": show or None, "options": options or None})
        evaluate_on_rows(target, data, examples, as_json=as_json)
        return
    if data is not None:
        raise UserError(f"--data is for a reward model, and {model} is a language model: use --task")
    found_task, name, used = find_task(target, task, arguments.read_options(options or []))
    own = target.config if task is None else None  # a run's settings are for its own task
    settings = eval_settings(own, {**given, "examples": examples})
    if k is not None and samples is None:
        say(f"note: --k {k} without --samples: {settings['samples']} samples of each prompt are drawn", err=True)
    result = _measured(target, found_task, settings, limit=chosen_limit(own, max_tokens))
    if result is None:
        return
    if as_json:
        about = {"model": target.name, "task": name, "options": dict(used)}
        say_json({**about, "sampling": asdict(settings["sampling"]), **asdict(result)})
        return
    say(f"{target.name} on {name}: {result.examples} held-out examples, seed {result.seed}")
    _say_result(result, show)


def _say_result(result: Evaluation, show: int) -> None:
    say_table(_rows(result), "measure", "value", "95 % interval")
    if result.accuracy is None:
        say("accuracy is not defined: the task has no reference answers (a run's own rewards: its metrics eval/reward)")
    for answer in _shown(result, show):
        say_text(_story(answer))


def _refuse_generation(model: str, given: Mapping[str, object]) -> None:
    """Refuses options of generation: a reward model only scores."""
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        option = {"ks": "--k", "options": "KEY=VALUE"}.get(wrong, f"--{wrong.replace('_', '-')}")
        raise UserError(f"{option} is for language models, and {model} is a reward model: use --data and --examples")


def _measured(target: Target, task: Task, settings: Mapping[str, Any], *, limit: int) -> Evaluation | None:
    """The evaluation on all ranks; None on those that print nothing."""
    from whet.api.model_limits import fitted
    from whet.distributed.world import World
    from whet.evaluate.evaluation import evaluate as measure

    world = World.init()
    notes: list[str] = []
    try:
        with arguments.sampling_status(f"answering {settings['examples']} examples") as on_token:
            tokenizer, engine = target.open(device=world.device, on_token=on_token)
            task = fitted(task, tokenizer, engine, limit, notes.append)
            result = measure(engine, tokenizer, task, **settings, world=world)
    finally:
        world.close()
    for note in notes if world.is_writer else ():
        say(note, err=True)
    return result if world.is_writer else None


def _read_ks(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--k {text!r} is not a list of whole numbers from 1 on: write e.g. 1,4")
    return tuple(sorted({int(part) for part in parts}))


def _rows(result: Evaluation) -> list[tuple[str, str, str]]:
    shares = {"accuracy (greedy)": result.accuracy} if result.accuracy is not None else {}
    shares |= {f"pass@{k}": value for k, value in result.pass_at.items()}
    length = result.length
    span = "unknown from one answer" if length.high == float("inf") else f"{length.low:.1f} … {length.high:.1f}"
    return [
        *((name, f"{share.mean:.1%}", f"{share.low:.1%} … {share.high:.1%}") for name, share in shares.items()),
        ("tokens per answer", f"{length.mean:.1f}", span),
        ("truncated", f"{result.truncated:.1%}", ""),
    ]


def _shown(result: Evaluation, count: int) -> list[Answer]:
    greedy = [answer for answer in result.answers if answer.sample == 0]
    right = [answer for answer in greedy if answer.correct]
    wrong = [answer for answer in greedy if answer.correct is False]
    ungraded = [answer for answer in greedy if answer.correct is None]
    return right[:count] + wrong[:count] + ungraded[:count]


def _story(answer: Answer) -> str:
    """Prompt and completion as text, and how the completion was judged."""
    verdicts = {True: ["right"], False: [f"wrong, a right answer is {answer.answer}"], None: []}
    rewarded = [] if answer.reward is None else [f"reward {answer.reward:.4g}"]
    verdict = "; ".join(verdicts[answer.correct] + rewarded)
    return f"\n{answer.prompt}\n→ {answer.text}" + (f" ({verdict})" if verdict else "")
