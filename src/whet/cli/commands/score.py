"""`whet score`: rewards and ranks of completions by a reward model; and `whet eval` of a reward model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import Screen, say, say_json, say_json_line, say_table
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.api.loaded_model import Target
    from whet.config import DataConfig
    from whet.data.formats import Record
    from whet.evaluate.reward_evaluation import RewardEvaluation, Scorable
    from whet.evaluate.statistics import Interval

LABELS = {  # of numbers in the table; shares are printed as percentages
    "pair_accuracy": "pair accuracy",
    "outcome_accuracy": "right or wrong, as labelled",
    "top": "best-scored completion is right",
    "step_accuracy": "steps good or bad, as labelled",
    "first_error": "first bad step found",
    "no_error": "no bad step found where there is none",
    "longer": "pair accuracy of preferring the longer",
}


def score(
    model: str = typer.Argument(..., metavar="RM", help="A run that trained a reward model, or its directory or name."),
    source: str = typer.Argument(..., metavar="FILE|NAME", help="Rows to score, or a data set on the hub."),
    *,
    form: str = typer.Option("auto", "--format", help="Format of the rows (see `whet data formats`)."),
    split: str = typer.Option("train", "--split", help="Split of a data set on the hub."),
    subset: str = typer.Option("", "--subset", help="Configuration or directory of a data set on the hub."),
    limit: int = typer.Option(None, "--limit", min=1, help="Score the first rows alone."),
    chat: bool = typer.Option(
        None, "--chat/--no-chat", help="Read plain prompts as a user's message.  [default: as the run]"
    ),
    out: Path = typer.Option(None, "--out", metavar="FILE", help="File of the scores (.jsonl, .jsonl.gz)."),
    as_json: arguments.AsJson = False,
) -> None:
    """Score completions with a reward model. Writes a line of JSON for each; a summary goes to standard error.

    Rows have a prompt and a completion, messages, a pair, or a prompt and several completions. Where a prompt has
    several completions, each gets its rank, 1 for the highest score. A process reward model scores the steps too.

    \b
    Examples:
      whet score runs/20260101-120000-reward answers.jsonl > scores.jsonl
      whet score RM samples.jsonl.gz --out scores.jsonl.gz
    """
    from whet.api.loaded_model import reward_target
    from whet.api.reward_scores import scored

    target = reward_target(model)
    with Screen(stderr=True).status(f"scoring {source}"):
        scorer, lines = scored(target, source, form=form, split=split, subset=subset, limit=limit, chat=chat)
    if out is not None:
        _write(out.expanduser(), lines)
    about = {"model": target.name, "kind": scorer.model.kind, **_summary(lines), "truncated": scorer.truncated}
    if as_json:
        say_json({**about, **({"rows": lines} if out is None else {"out": str(out)})})
        return
    if out is None:
        for line in lines:
            say_json_line(line)
    say(_sentence(about), err=True)
    if out is not None:
        say(f"scores: {out}", err=True)


def evaluate_on_rows(target: Target, source: str | None, examples: int | None, *, as_json: bool) -> None:
    """Evaluates a reward model on the rows of `source`, or on those that the run which trained it is evaluated on."""
    from whet.api.reward_scores import reward_scorer
    from whet.data.split import clustering
    from whet.evaluate.reward_evaluation import evaluate_reward_model

    chosen = rows_of(target, source)
    cluster = clustering(chosen.everything)
    own = target.config.eval.examples if target.config is not None and source is None else None
    with Screen(stderr=True).status(f"scoring {chosen.name}"):
        scorer = reward_scorer(target)
        clusters = [cluster(row) for row in chosen.rows]
        result = evaluate_reward_model(scorer, chosen.rows, clusters=clusters, name=chosen.name, most=examples or own)
    for note in filter(None, (chosen.note, f"note: {target.note}" if target.note else "")):
        say(note, err=True)
    if as_json:
        about = {"model": target.name, "kind": scorer.model.kind, "data": chosen.name, "trained_on": chosen.trained_on}
        say_json({**about, **result.plain()})
        return
    left_out = f", {result.left_out} left out because they are too long" if result.left_out else ""
    say(f"{target.name} ({scorer.model.kind} reward model) on {result.rows} rows of {chosen.name}{left_out}")
    say_table(_table(result), "measure", "value", "95 % interval")


def evaluate_on_bench(target: Target, source: str, examples: int | None, *, data: str | None, as_json: bool) -> None:
    """Accuracy of a reward model on rows with one chosen answer each, by subset."""
    from whet.api.reward_scores import own_data, reward_scorer
    from whet.data.preference_bench import bench_rows
    from whet.evaluate.bench_accuracy import Contest, bench_accuracy

    if data is not None:
        raise UserError("--rewardbench and --data both name rows: leave one of them out")
    own = own_data(target)
    rows = bench_rows(source, most=examples, chat=own is not None and own.chat)
    with Screen(stderr=True).status(f"scoring {source}"):
        scorer = reward_scorer(target)
        flat = [(row.prompt, text) for row in rows for text in (row.chosen, *row.rejected)]
        scores = iter(scorer.score([prompt for prompt, _ in flat], [text for _, text in flat]))
        contests = [
            Contest(
                subset=row.subset,
                prompt=row.prompt,
                chosen=next(scores),
                rejected=tuple(next(scores) for _ in row.rejected),
            )
            for row in rows
        ]
    found = bench_accuracy(contests)
    if as_json:
        say_json({"model": target.name, "kind": scorer.model.kind, "data": source, **found.plain()})
        return
    cut = f", {scorer.truncated:,} texts truncated to the model's limit" if scorer.truncated else ""
    say(f"{target.name} ({scorer.model.kind} reward model) on {len(rows):,} rows of {source}{cut}")
    table = [
        (name, f"{one.rows:,}", f"{one.accuracy.mean:.1%}", _ends(one.accuracy, "{:.1%}"), f"{one.chance:.0%}")
        for name, one in found.lines()
    ]
    say_table(table, "subset", "rows", "accuracy", "95 % interval", "by chance")
    if found.sections:
        sections = ", ".join(f"{name} {share:.1%}" for name, share in found.sections.items())
        say(f"sections of RewardBench: {sections}" + ("" if found.score is None else f"; score {found.score:.1%}"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenRows:
    """The rows that a reward model is evaluated on, and those of them that its run trained on."""

    rows: Sequence[Scorable]
    everything: Sequence[Scorable]  # all rows of their file
    name: str
    trained_on: int | None = 0  # None: not known
    note: str = ""


def rows_of(target: Target, source: str | None) -> ChosenRows:
    """The rows of a file, or those that the run which trained the model is evaluated on."""
    from whet.api.reward_scores import own_data, scorable
    from whet.data.sources import Source, load_rows
    from whet.tasks.space import first_held_out
    from whet.train.setup.epochs import load_sides

    data = own_data(target)
    if source is not None:
        rows = scorable(load_rows(Source(path=source, chat=data is not None and data.chat)).rows, source)
        return _compared(ChosenRows(rows=rows, everything=rows, name=source), data)
    if data is None:
        raise UserError(f"{target.name} is a model, not a run with held-out rows: name a file with --data")
    evaluated = next(iter(getattr(target.config, "evaluation_data", {}).values()), None)
    if evaluated is None:
        raise UserError(f"{target.name} was trained on all of its rows, none is held out: name a file with --data")
    loaded, _, held_out = load_sides(evaluated)
    path = " and ".join(evaluated.paths)
    rows = first_held_out(scorable(held_out, path), len(held_out))
    if evaluated is data:
        return ChosenRows(rows=rows, everything=scorable(loaded.rows, path), name=f"{path}, held out")
    return _compared(ChosenRows(rows=rows, everything=rows, name=path), data)


def _compared(chosen: ChosenRows, data: DataConfig | None) -> ChosenRows:
    """The rows, with a note if the run was trained on some of them."""
    from whet.train.setup.epochs import load_sides

    if data is None:
        return replace(chosen, trained_on=None)
    try:
        trained = {_content(row) for row in load_sides(data)[1]}
    except UserError as error:
        return replace(chosen, trained_on=None, note=f"note: whether rows were trained on is not known: {error}")
    both = sum(_content(row) in trained for row in chosen.rows)
    note = f"note: {both:,} of {len(chosen.rows):,} rows were trained on" if both else ""
    return replace(chosen, trained_on=both, note=note)


def _content(row: Record) -> str:
    """What a row says, whatever file and line it is from."""
    return repr(replace(row, id="", twin=""))


def _write(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    from whet.runs.logs import reason, write_rows

    try:
        write_rows(path, lines)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; choose another --out") from error


def _summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    scores = [line["score"] for line in lines]
    mean = fmean(scores)
    spread = math.sqrt(fmean((value - mean) ** 2 for value in scores))
    prompts = {str(line["prompt"]) for line in lines}
    found = {"completions": len(lines), "prompts": len(prompts), "mean": mean, "std": spread}
    return {**found, "lowest": min(scores), "highest": max(scores)}


def _sentence(about: dict[str, Any]) -> str:
    cut = f"; {about['truncated']} were truncated to the model's limit" if about["truncated"] else ""
    return (
        f"{about['completions']:,} completions of {about['prompts']:,} prompts by a {about['kind']} reward model: "
        f"mean {about['mean']:.4g}, standard deviation {about['std']:.4g}, from {about['lowest']:.4g} to "
        f"{about['highest']:.4g}{cut}"
    )


def _table(result: RewardEvaluation) -> list[tuple[str, str, str]]:
    found = result.named_shares()
    rows = [(LABELS[name], f"{share.mean:.1%}", _ends(share, "{:.1%}")) for name, share in found.items()]
    if result.report is not None:
        rows.append(("calibration error", f"{result.report.calibration_error:.3f}", ""))
    for one in result.best_of_n:
        form = "{:.1%}" if one.is_share else "{:.4g}"
        beside = f"random {form.format(one.at_random)}, best possible {form.format(one.by_oracle)}"
        name = f"best of {one.n} ({one.prompts} prompts; {beside})"
        rows.append((name, form.format(one.by_model.mean), _ends(one.by_model, form)))
    return rows


def _ends(interval: Interval, form: str) -> str:
    if math.isinf(interval.high):
        return "unknown from one prompt"
    return f"{form.format(interval.low)} … {form.format(interval.high)}"
