"""Methods against each other and against the model that all began with, on the same prompts and random streams.

Every run is sampled from with its last weights; the start model answers the same prompts. What was said is scored by
the task (gold where it knows the true reward, else its own score), by the reward model that was trained against (proxy)
and by one that was not (judge); the start model also says how likely it finds it, which gives the KL. A model is in
memory only while it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Protocol

import torch

from whet.config.pipeline import CompareConfig
from whet.engines.http.transport import Connection
from whet.errors import UserError
from whet.evaluate.head_to_head import Entrant, ScoredCompletion, contest_results
from whet.evaluate.pairwise_judge import Compared, JudgeVerdicts, ask_judge
from whet.models.download.model_hub import resolve_model
from whet.models.reward.scoring import load_scorer
from whet.records import Message, Sampling
from whet.report.comparison.comparison_page import write_page
from whet.report.comparison.entries import read_curves
from whet.runs.directory import Run
from whet.runs.experiment_directories import START, ComparisonDirectory
from whet.tasks.protocol import Gold, Task
from whet.train.experiments.compared_models import (
    Answers,
    Asked,
    Said,
    answers_of,
    answers_of_start,
    earlier_models,
    final_model,
    release,
)
from whet.train.session.held_out import PROMPTS_ONLY

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
    """Compares finished runs, (method, seed) → directory; writes numbers, completions, pictures and a page to `out`.

    `failures` are the runs that did not finish, and why; they are listed and not compared. Returns what
    comparison.json holds.
    """
    if not runs:
        raise UserError("no run finished, so there is nothing to compare")
    scorers = {name: resolve_model(str(path)) for name, path in (("proxy", reward), ("judge", judge)) if path}
    if settings.judge_url:
        _ask(settings, [PROBE])  # a server that does not answer is better known now than in an hour
    asked = _asked(settings, task, seed, device)
    own, others = _answers(settings, asked, resolve_model(str(start)), _models(runs, settings.checkpoints), note)
    scores: dict[str, Scores] = {}
    for name, directory in scorers.items():
        note(f"comparing: scores of the {name} in {directory}")
        scores[name] = _scored(load(directory, device), [said for one in (own, *others.values()) for said in one.said])
        release(device)
    asks_task = settings.gold and task.name != PROMPTS_ONLY
    start_rows = [*_rows(task, own, scores, asks_task=asks_task)]
    rows = {entrant: [*_rows(task, one, scores, asks_task=asks_task)] for entrant, one in others.items()}
    results = {
        **{"kind": "contest", "title": title, "task": task.name, "seed": seed, "prompts": len(asked.examples)},
        **{"start_name": start.name, "proxy_path": reward and str(reward), "judge_path": judge and str(judge)},
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
        "curves": read_curves({method: run for method, path in runs.items() if (run := Run.find(path))}),
    }
    comparison = ComparisonDirectory(out)
    for name, completions in {START: start_rows, **{entrant.name: own for entrant, own in rows.items()}}.items():
        comparison.write_samples(name, [asdict(row) for row in completions])
    comparison.write_results(results)
    write_page(comparison)
    return results


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


def _answers(
    settings: CompareConfig, asked: Asked, start: Path, models: Mapping[Entrant, Path], note: Note
) -> tuple[Answers, dict[Entrant, Answers]]:
    """What the start model says, and everybody else: it is loaded last, when all that it has to read is there."""
    answers: list[Answers] = []
    for entrant, directory in models.items():
        note(f"comparing: {entrant.name} answers {len(asked.examples)} prompts")
        answers.append(answers_of(directory, asked, count=settings.samples))
        release(asked.device)
    note("comparing: the start model answers them and reads what the others said")
    own, read = answers_of_start(start, asked, answers, count=settings.start_samples)
    release(asked.device)
    return own, dict(zip(models, read, strict=True))


def _scored(scorer: Scorer, said: Sequence[Said]) -> Scores:
    """Each different completion is scored once: two models that say the same tie exactly, however a GPU rounds."""
    different = {(one.example.id, one.text): one.example.prompt for one in said}
    scores = scorer.score(list(different.values()), [text for _, text in different])
    return dict(zip(different, scores, strict=True))


def _rows(task: Task, answers: Answers, scores: Mapping[str, Scores], *, asks_task: bool) -> Iterator[ScoredCompletion]:
    known = task if asks_task and isinstance(task, Gold) else None
    scoring = task if asks_task and known is None else None
    for said, own, start in zip(answers.said, answers.logprobs, answers.logprobs_start, strict=True):
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
        note(f"comparing: {settings.judge_model} compares {len(compared)} answers of {method}")
        verdicts[method] = _ask(settings, compared)
    return verdicts


def _ask(settings: CompareConfig, pairs: Sequence[Compared]) -> JudgeVerdicts:
    connection = Connection(api_key_env=settings.judge_key_env, timeout_seconds=JUDGE_SECONDS, retries=JUDGE_RETRIES)
    return ask_judge(settings.judge_url, settings.judge_model, pairs, connection=connection)
