"""Methods against each other and against the model that all began with, on the same prompts and random streams.

Every run is sampled from with its last weights; the start model answers the same prompts. What was said is scored by
the task (gold where it knows the true reward, else its own score), by the reward model that was trained against (proxy)
and by one that was not (judge); the start model also says how likely it finds it, which gives the KL. A model is in
memory only while it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Protocol

import torch

from whet.config.comparing import CompareConfig
from whet.engines.http.transport import Connection
from whet.errors import UserError
from whet.evaluate.head_to_head import Entrant, ScoredCompletion, contest_results
from whet.evaluate.pairwise_judge import Compared, JudgeVerdicts, ask_judge
from whet.models.download.model_hub import resolve_model
from whet.models.reward.scoring import load_scorer
from whet.records import Message, Sampling
from whet.report.comparison.comparison_page import write_page
from whet.report.comparison.entries import read_curves
from whet.runs.comparison_directory import START, ComparisonDirectory
from whet.runs.directory import Run
from whet.tasks.protocol import Gold, Task
from whet.train.experiments.compared_models import (
    Answers,
    Asked,
    Said,
    answers_of,
    answers_of_start,
    earlier_models,
    final_model,
    is_run,
    release,
)
from whet.train.session.session import PROMPTS_ONLY

Note = Callable[[str], None]
NONE_FAILED: Mapping[tuple[str, int], str] = MappingProxyType({})
JUDGE_SECONDS = 120.0  # for one answer of a judge behind a URL
JUDGE_RETRIES = 5
PROBE = Compared(id="probe", prompt="Is two an even number?", own="Yes.", start="No.")


class Scorer(Protocol):
    """What says how good a completion is."""

    def score(self, prompts: Sequence[str | tuple[Message, ...]], completions: Sequence[str], /) -> list[float]: ...


LoadScorer = Callable[[Path, torch.device], Scorer]
Scores = Mapping[tuple[str, str], float]  # (example, text) → score


def run_contest(  # noqa: PLR0913 - the models that meet, and how
    settings: CompareConfig,
    task: Task,
    start: Path,
    runs: Mapping[tuple[str, int], Path],
    reward: Path | None,
    judge: Path | None,
    out: Path,
    *,
    device: torch.device,
    seed: int = 0,
    title: str = "methods",
    failures: Mapping[tuple[str, int], str] = NONE_FAILED,
    note: Note = lambda _: None,
    load: LoadScorer = load_scorer,
) -> dict[str, Any]:
    """Judges finished runs, (method, seed) → directory, and writes numbers, completions, pictures and a page to `out`.

    `failures` are the runs that did not finish, and why; they are listed and not judged. Returns what
    comparison.json holds.
    """
    if not runs:
        raise UserError("no run finished, so there is nothing to judge")
    scorers = {name: resolve_model(str(path)) for name, path in (("proxy", reward), ("judge", judge)) if path}
    if settings.judge_url:
        _ask(settings, [PROBE])  # a server that does not answer is better known now than in an hour
    asked = _asked(settings, task, seed, device)
    heard = _hear(settings, asked, resolve_model(str(start)), _models(runs, settings.checkpoints), note)
    scores: dict[str, Scores] = {}
    for name, directory in scorers.items():
        note(f"judging: scores of the {name} in {directory}")
        scores[name] = _scored(load(directory, device), [said for one in heard for said in one.answers.said])
        release(device)
    asks_task = settings.gold and task.name != PROMPTS_ONLY
    start_rows, *others = ([*_rows(task, one, scores, asks_task=asks_task)] for one in heard)
    rows = {one.entrant: own for one, own in zip(heard[1:], others, strict=True) if one.entrant}
    results = {
        **{"kind": "contest", "title": title, "task": task.name, "seed": seed, "prompts": len(asked.examples)},
        **{"start_name": start.name, "proxy_path": _text(reward), "judge_path": _text(judge)},
        "settings": settings.model_dump(mode="json"),
        **contest_results(
            start_rows,
            rows,
            samples=settings.samples,
            tie_margin=settings.tie_margin,
            best_of=settings.best_of if reward else (),
            verdicts=_verdicts(settings, start_rows, rows, note) if settings.judge_url else {},
            failures=failures,
        ),
        "curves": _curves(runs),
    }
    _write(ComparisonDirectory(out), results, start_rows, rows)
    return results


@dataclass(frozen=True, kw_only=True, slots=True)
class _Heard:
    """What one model said, and the log-prob of each token of it under the start model."""

    entrant: Entrant | None  # None: the start model itself
    answers: Answers
    logprobs_start: list[list[float]]


def _models(runs: Mapping[tuple[str, int], Path], checkpoints: int) -> dict[Entrant, Path]:
    """The models that meet: each run's last, and some that it passed."""
    models = {}
    for (method, seed), path in runs.items():
        for step, directory in earlier_models(path, checkpoints).items():
            models[Entrant(method=method, seed=seed, step=step)] = directory
        models[Entrant(method=method, seed=seed)] = final_model(path)
    return models


def _asked(settings: CompareConfig, task: Task, seed: int, device: torch.device) -> Asked:
    examples = task.held_out(settings.prompts)
    if not examples:
        raise UserError(f"task {task.name} has no held-out prompts: give it an evaluation split")
    sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature)
    return Asked(examples=examples, sampling=sampling, seed=seed, device=device)


def _hear(
    settings: CompareConfig, asked: Asked, start: Path, models: Mapping[Entrant, Path], note: Note
) -> list[_Heard]:
    """What everybody says, the start model first: it is loaded last, when all that it has to read is there."""
    answers: dict[Entrant, Answers] = {}
    for entrant, directory in models.items():
        note(f"judging: {entrant.name} answers {len(asked.examples)} prompts")
        answers[entrant] = answers_of(directory, asked, count=settings.samples)
        release(asked.device)
    note("judging: the start model answers them and reads what the others said")
    said = [one.said for one in answers.values()]
    own, readings = answers_of_start(start, asked, said, count=settings.start_samples)
    release(asked.device)
    others = zip(answers.items(), readings, strict=True)
    return [
        _Heard(entrant=None, answers=own, logprobs_start=own.logprobs),
        *(_Heard(entrant=entrant, answers=one, logprobs_start=reading) for (entrant, one), reading in others),
    ]


def _scored(scorer: Scorer, said: Sequence[Said]) -> Scores:
    """Each different completion is scored once: two models that say the same tie exactly, however a GPU rounds."""
    different = {(one.example.id, one.text): one.example.prompt for one in said}
    scores = scorer.score(list(different.values()), [text for _, text in different])
    return dict(zip(different, scores, strict=True))


def _rows(task: Task, heard: _Heard, scores: Mapping[str, Scores], *, asks_task: bool) -> Iterator[ScoredCompletion]:
    answers = heard.answers
    known = task if asks_task and isinstance(task, Gold) else None
    scoring = task if asks_task and known is None else None
    for said, own, start in zip(answers.said, answers.logprobs, heard.logprobs_start, strict=True):
        key = said.example.id, said.text
        ratios = [b - a for a, b in zip(own, start, strict=True)]
        yield ScoredCompletion(
            id=said.example.id,
            prompt=said.example.prompt_text,
            sample=said.sample,
            text=said.text,
            tokens=len(said.completion),
            finish=said.finish,
            correct=task.correct(said.example, said.text),
            gold=known.gold(said.example, said.text) if known else None,
            score=scoring.score(said.example, said.text).reward if scoring else None,
            proxy=scores["proxy"][key] if "proxy" in scores else None,
            judge=scores["judge"][key] if "judge" in scores else None,
            logprob=math.fsum(own),
            logprob_start=math.fsum(start),
            k3=fmean(math.expm1(ratio) - ratio for ratio in ratios),
        )


def _verdicts(
    settings: CompareConfig,
    start: Sequence[ScoredCompletion],
    rows: Mapping[Entrant, Sequence[ScoredCompletion]],
    note: Note,
) -> dict[str, JudgeVerdicts]:
    """Method → what the judge behind the URL says of its completions, seed after seed."""
    base = {row.key: row.text for row in start}
    pairs: dict[str, list[Compared]] = {}
    for entrant, own in rows.items():
        if entrant.step is None:
            pairs.setdefault(entrant.method, []).extend(
                Compared(
                    id=f"{entrant.name}.{row.id}.{row.sample}", prompt=row.prompt, own=row.text, start=base[row.key]
                )
                for row in own
            )
    verdicts = {}
    for method, compared in pairs.items():
        note(f"judging: {settings.judge_model} compares {len(compared)} answers of {method}")
        verdicts[method] = _ask(settings, compared)
    return verdicts


def _ask(settings: CompareConfig, pairs: Sequence[Compared]) -> JudgeVerdicts:
    connection = Connection(api_key_env=settings.judge_key_env, timeout_seconds=JUDGE_SECONDS, retries=JUDGE_RETRIES)
    return ask_judge(settings.judge_url, settings.judge_model, pairs, connection=connection)


def _curves(runs: Mapping[tuple[str, int], Path]) -> dict[str, dict[str, Any]]:
    """Method → seed → metric → what was logged on the way."""
    curves: dict[str, dict[str, Any]] = {}
    for (method, seed), path in runs.items():
        if is_run(path):
            curves.setdefault(method, {})[str(seed)] = read_curves(Run.open(path, is_writer=False))
    return curves


def _write(
    directory: ComparisonDirectory,
    results: Mapping[str, Any],
    start: Sequence[ScoredCompletion],
    rows: Mapping[Entrant, Sequence[ScoredCompletion]],
) -> None:
    directory.write_samples(START, [asdict(row) for row in start])
    for entrant, own in rows.items():
        directory.write_samples(entrant.name, [asdict(row) for row in own])
    directory.write_results(results)
    write_page(directory)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
