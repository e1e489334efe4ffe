"""`whet eval`: accuracy and pass@k on held-out examples."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_table, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.evaluate.evaluation import Answer, Evaluation


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
    show: int = typer.Option(0, "--show", min=0, metavar="N", help="Show N correct and N incorrect completions."),
    as_json: arguments.AsJson = False,
    served: arguments.Served = None,
    ids_of: arguments.IdsOf = None,
    key_env: arguments.KeyEnv = None,
    concurrency: arguments.Concurrency = None,
) -> None:
    """Evaluate on held-out prompts: accuracy and pass@k. Accuracy is greedy; intervals are of 95 % confidence.

    \b
    Examples:
      whet eval runs/20260101-120000-grpo-sorting
      whet eval smollm2-135m-instruct --task arithmetic level=2 chat=true --samples 8 --k 1,8
      whet eval http://127.0.0.1:8000/v1 --model NAME --task arithmetic chat=true
    """
    from whet.api.loaded_model import eval_settings, find_model, find_task
    from whet.distributed.world import World
    from whet.evaluate.evaluation import evaluate as measure

    target = find_model(model, served, ids_of, key_env, concurrency)
    found_task, name, used = find_task(target, task, arguments.read_options(options or []))
    own = target.config if task is None else None  # a run's settings are for its own task
    given = {"examples": examples, "samples": samples, "ks": None if k is None else _read_ks(k), "seed": seed}
    settings = eval_settings(own, {**given, "max_tokens": max_tokens, "temperature": temperature})
    world = World.init()
    try:
        with arguments.sampling_status(f"answering {settings['examples']} examples") as on_token:
            tokenizer, engine = target.open(device=world.device, on_token=on_token)
            result = measure(engine, tokenizer, found_task, **settings, world=world)
    finally:
        world.close()
    if not world.is_writer:
        return
    if as_json:
        about = {"model": target.name, "task": name, "options": dict(used)}
        say_json({**about, "sampling": asdict(settings["sampling"]), **asdict(result)})
        return
    say(f"{target.name} on {name}: {result.examples} held-out examples, seed {result.seed}")
    say_table(_rows(result), "measure", "value", "95 % interval")
    if result.accuracy is None:
        say("accuracy is not defined: the task has no reference answers (a run's own rewards: its metrics eval/reward)")
    for answer in _shown(result, show):
        say_text(_story(answer))


def _read_ks(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--k {text!r} is not a list of whole numbers: write e.g. 1,4")
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
    verdicts = {True: " (right)", False: f" (wrong, a right answer is {answer.answer!r})", None: ""}
    return f"\n{answer.prompt}\n→ {answer.text!r}{verdicts[answer.correct]}"
