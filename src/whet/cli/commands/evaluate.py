"""`whet eval`: accuracy, pass@k, maj@k, best-of-k, the rewards of a run and the metrics of its held-out rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_table, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.api.loaded_model import Target
    from whet.api.own_measures import FoundTask
    from whet.config.loops import Training
    from whet.evaluate.evaluation import Answer, Evaluation
    from whet.evaluate.statistics import Interval

EvaluatedFile = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="FILE|NAME", help="Evaluate on all rows of a file.  [default: the run's held-out rows]"
    ),
]
Bench = Annotated[
    str | None,
    typer.Option(
        "--rewardbench",
        metavar="FILE",
        help="Of a reward model: accuracy by subset on RewardBench's or JudgeBench's rows.",
    ),
]
RewardModel = Annotated[
    str | None,
    typer.Option(metavar="RUN|DIR", help="Also best-of-k: the accuracy of the sample that this model scores highest."),
]


def evaluate(
    model: arguments.Target,
    options: arguments.TaskOptions = None,
    *,
    task: arguments.TaskName = None,
    examples: int = typer.Option(None, min=1, help="Number of held-out prompts.  [default: the run's, else 200]"),
    samples: int = typer.Option(None, min=0, help="Completions per prompt for pass@k.  [default: the run's, else 0]"),
    k: str = typer.Option(None, "--k", metavar="1,4", help="k of pass@k, maj@k.  [default: the run's, or 1, SAMPLES]"),
    max_tokens: arguments.MaxTokens = None,
    temperature: float = typer.Option(None, help="Of samples; accuracy is greedy.  [default: the run's, else 1]"),
    seed: int = typer.Option(None, min=0, help="Seed of the samples.  [default: the run's, else 0]"),
    data: EvaluatedFile = None,
    reward_model: RewardModel = None,
    rewardbench: Bench = None,
    show: int = typer.Option(0, "--show", min=0, metavar="N", help="Show N correct and N incorrect completions."),
    as_json: arguments.AsJson = False,
    served: arguments.Served = None,
    ids_of: arguments.IdsOf = None,
    key_env: arguments.KeyEnv = None,
    concurrency: arguments.Concurrency = None,
) -> None:
    """Evaluate on held-out prompts: accuracy and pass@k. Accuracy is greedy; intervals are of 95 % confidence.

    With samples also maj@k, the majority vote of k of them, and with a reward model best-of-k.
    Of an online run also its rewards, of an offline run the loss and other metrics of held-out rows; --task leaves both
    out. Of a reward model: pair accuracy, calibration, and best-of-n where rows have several scored completions.

    \b
    Examples:
      whet eval @last
      whet eval @last --data test.jsonl
      whet eval smollm2-135m-instruct --task arithmetic level=2 chat=true --samples 8 --k 1,8
      whet eval runs/20260101-120000-reward --data pairs.jsonl
      whet eval RM --rewardbench rewardbench.jsonl
      whet eval http://127.0.0.1:8000/v1 --model NAME --task arithmetic chat=true
    """
    from whet.api.loaded_model import eval_settings, find_target, find_task, on_file
    from whet.api.model_limits import chosen_limit

    target = find_target(model, served, ids_of, key_env, concurrency)
    given: dict[str, Any] = {"samples": samples, "ks": None if k is None else _read_ks(k), "seed": seed}
    given |= {"max_tokens": max_tokens, "temperature": temperature}
    if target.reward_kind is not None:
        generating = {"task": task, **given, "reward_model": reward_model, "show": show or None}
        _refuse_generation(model, {**generating, "options": options or None})
        _on_reward_model(target, data, rewardbench, examples, as_json=as_json)
        return
    task_options = arguments.read_options(options or [])
    _refuse_bench(model, rewardbench)
    if data is not None:
        target, task, task_options = on_file(target, data, task_options, task=task)
    found = find_task(target, task, task_options)
    own = target.config if task is None else None  # a run's settings are for its own task
    settings = eval_settings(own, {**given, "examples": examples})
    _note_samples(k, samples, settings)
    result = _measured(target, own, found, settings, limit=chosen_limit(own, max_tokens), reward_model=reward_model)
    if result is not None and as_json:
        _say_as_json(target.name, found, settings, result)
    elif result is not None:
        _say_result(target.name, found, result, _undefined(result, found[1], model, settings["ks"]), show)


def _note_samples(k: str | None, samples: int | None, settings: Mapping[str, Any]) -> None:
    if k is not None and samples is None:
        say(f"note: --k {k} without --samples: {settings['samples']} samples of each prompt are drawn", err=True)


def _on_reward_model(
    target: Target, data: str | None, rewardbench: str | None, examples: int | None, *, as_json: bool
) -> None:
    from whet.cli.commands.score import evaluate_on_bench, evaluate_on_rows

    if rewardbench is None:
        evaluate_on_rows(target, data, examples, as_json=as_json)
    else:
        evaluate_on_bench(target, rewardbench, examples, data=data, as_json=as_json)


def _say_as_json(model: str, found: FoundTask, settings: Mapping[str, Any], result: Evaluation) -> None:
    about = {"model": model, "task": found[1], "options": dict(found[2])}
    say_json({**about, "sampling": asdict(settings["sampling"]), **asdict(result), **_by_task(result)})


def _say_result(model: str, task: FoundTask, result: Evaluation, undefined: str, show: int) -> None:
    source = " of ".join(filter(None, (task[1], task[2].get("path"))))
    say(f"{model} on {source}: {result.examples} held-out examples, seed {result.seed}")
    say_table(_rows(result), "measure", "value", "95 % interval", "measured on")
    if undefined:
        say(undefined)
    for answer in _shown(result, show):
        say_text(_story(answer))


def _refuse_generation(model: str, given: Mapping[str, object]) -> None:
    """Refuses options of generation: a reward model only scores."""
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        option = {"ks": "--k", "options": "KEY=VALUE"}.get(wrong, f"--{wrong.replace('_', '-')}")
        raise UserError(f"{option} is for language models, and {model} is a reward model: use --data and --examples")


def _refuse_bench(model: str, rewardbench: str | None) -> None:
    if rewardbench is not None:
        raise UserError(f"--rewardbench is for reward models, and {model} is a language model")


def _undefined(result: Evaluation, task: str, model: str, ks: Sequence[int]) -> str:
    """Why there is no accuracy, and what to do; empty if there is one."""
    if result.accuracy is not None:
        return ""
    names = " and ".join(["accuracy", *(f"pass@{k}" for k in ks)])
    what = f"{names} {'are' if ks else 'is'} not defined"
    if task != "data":
        return f"{what}: task {task} has no reference answers"
    if any(answer.answer for answer in result.answers):
        return (
            f"{what}: the rows have answers, and nothing says how to compare completions with them: add match, e.g. "
            f"whet eval {model} match=number (or exact, boxed, choice, regex)"
        )
    return (
        f"{what}: the rows have no answers; if they do under another name, add e.g. "
        f"whet eval {model} 'columns={{answer: NAME}}' match=number"
    )


def _measured(
    target: Target,
    own: Training | None,
    found: FoundTask,
    settings: Mapping[str, Any],
    *,
    limit: int,
    reward_model: str | None,
) -> Evaluation | None:
    """The evaluation on all ranks; None on those that print nothing."""
    from whet.api.loaded_model import reward_target
    from whet.api.own_measures import measured_as_trained, ranking_by
    from whet.distributed.world import World

    world = World.init()
    notes = [f"note: {target.note}"] if target.note else []
    try:
        if reward_model is not None:
            settings = {**settings, "ranker": ranking_by(reward_target(reward_model).path, settings, world.device)}
        with arguments.sampling_status(f"answering {settings['examples']} examples") as on_token:
            tokenizer, engine = target.open(device=world.device, on_token=on_token)
            given: dict[str, Any] = {"limit": limit, "world": world, "note": notes.append}
            result = measured_as_trained(own, Path(target.path), found, tokenizer, engine, settings, **given)
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


def _rows(result: Evaluation) -> list[tuple[str, str, str, str]]:
    """The table: value, interval and sample size of each measure."""
    prompts, graded = (_prompts(count) for count in (result.examples, result.graded))
    shares = {"accuracy (greedy)": result.accuracy} if result.accuracy is not None else {}
    shares |= {f"pass@{k}": value for k, value in result.pass_at.items()}
    shares |= {f"maj@{k}": value for k, value in result.majority_at.items()}
    shares |= {f"best-of-{k} by the reward model": value for k, value in result.best_of.items()}
    rows = [_line(name, share, "{:.1%}", graded) for name, share in shares.items()]
    if result.reward is not None:
        same = next((name for name, part in result.parts.items() if part == result.reward), "")
        rows.append(_line("reward", _within(same, result.reward), "{:.4g}", prompts))
    for name, part in result.parts.items():
        having = sum(name in (answer.parts or {}) for answer in result.answers)
        rows.append(_line(f"reward part {name}", _within(name, part), "{:.4g}", _prompts(having)))
    return [
        *rows,
        *_part_lines(result),
        *_row_lines(result),
        _line("tokens per answer", result.length, "{:.1f}", prompts),
        ("truncated", f"{result.truncated:.1%}", "", prompts),
    ]


def _by_task(result: Evaluation) -> dict[str, Any]:
    """The metrics of each task of a mixture, as JSON; nothing without a mixture."""
    found = {name: part.metrics() for name, part in result.by_part().items()}
    return {"tasks": found} if found else {}


def _part_lines(result: Evaluation) -> list[tuple[str, str, str, str]]:
    """Accuracy and reward of each task of a mixture."""
    lines = []
    for name, part in result.by_part().items():
        if part.accuracy is not None:
            lines.append(_line(f"accuracy on {name}", part.accuracy, "{:.1%}", _prompts(part.graded)))
        if part.reward is not None:
            lines.append(_line(f"reward on {name}", part.reward, "{:.4g}", _prompts(part.examples)))
    return lines


def _within(name: str, part: Interval) -> Interval:
    """The interval of a part of the reward; of a share within 0 and 1."""
    from whet.evaluate.measures import SHARES
    from whet.evaluate.statistics import clipped

    return clipped(part) if name in SHARES and math.isfinite(part.high) else part


def _line(name: str, found: Interval, form: str, size: str) -> tuple[str, str, str, str]:
    span = f"{form.format(found.low)} … {form.format(found.high)}"
    return name, form.format(found.mean), "unknown from one answer" if found.high == float("inf") else span, size


def _row_lines(result: Evaluation) -> list[tuple[str, str, str, str]]:
    """The metrics of a run's held-out rows, under the names that they have in training."""
    from whet.evaluate.measures import is_count, measure_of

    found = [measure_of(metric) for metric in result.rows if not is_count(metric)]
    ends = {end for one in found for end in one.interval}
    recorded = "" if result.rows_step is None else f" (recorded at step {result.rows_step})"
    lines = []
    for one in found:
        if one.metric not in ends:
            span = " … ".join(one.ends(result.rows))
            size = one.sample_size(result.rows).removeprefix("on ")
            lines.append((one.label + recorded, one.text(result.rows[one.metric]), span, size))
    return lines


def _prompts(count: int) -> str:
    return f"{count:,} prompt{'' if count == 1 else 's'}"


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
    said = "\n".join(f"→ {turn['text']}\n← {turn['observation']}" for turn in answer.turns or ())
    return f"\n{answer.prompt}\n{said or f'→ {answer.text}'}" + (f" ({verdict})" if verdict else "")
