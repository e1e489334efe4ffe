"""Compares methods with each other and with their common start model, on the same prompts and random streams.

Every run is sampled with its last weights. Completions are scored by the task (gold if it knows the true reward, else
its own score), by the reward model that was trained against (proxy) and by one that was not (judge); log-probs under
the start model give the KL. Only one model is in memory at a time.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from whet.batching import collate, micro_batches, take, tokens_that_fit
from whet.config.pipeline import CompareConfig
from whet.engines.http.transport import Connection
from whet.engines.native.native_engine import NativeEngine
from whet.errors import UserError
from whet.evaluate.head_to_head import Entrant, ScoredCompletion, contest_results
from whet.evaluate.pairwise_judge import Compared, JudgeVerdicts, ask_judge
from whet.models.download.model_hub import resolve_model
from whet.models.layers.decoder_config import autocast
from whet.models.load import load_model, model_summary
from whet.models.logprobs import check_logprobs, token_logprobs
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.reward.scoring import Scorer, load_scorer
from whet.records import Completion, Example, Sampling
from whet.report.comparison.comparison_page import write_page
from whet.report.comparison.entries import read_curves
from whet.rollout import tokenize_prompts
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import START, ComparisonDirectory, earlier_checkpoints
from whet.tasks.protocol import Gold, Task
from whet.train.setup.build import place
from whet.train.setup.prompt_lengths import fit_prompts
from whet.turns.conversing import require_single_answers

Note = Callable[[str], None]
JUDGE_SECONDS = 120.0  # timeout of one answer of a judge behind a URL
JUDGE_RETRIES = 5
PROBE = Compared(id="probe", prompt="Is two an even number?", own="Yes.", start="No.")


Scores = Mapping[tuple[str, str], float]  # (example, text) → score


def run_contest(  # noqa: PLR0913 - the models that are compared, and how
    settings: CompareConfig,
    task: Task,
    runs: Mapping[tuple[str, int], Path],
    out: Path,
    *,
    device: torch.device,
    seed: int,
    title: str,
    failures: Mapping[tuple[str, int], str],
    note: Note,
) -> dict[str, Any]:
    """Compares finished runs by (method, seed); writes numbers, completions, figures and a page to `out`.

    `failures` are the errors of runs that did not finish; they are listed and not compared. Returns comparison.json.
    """
    named = {"proxy": settings.reward, "judge": settings.judge}
    scorers = {name: resolve_model(path) for name, path in named.items() if path}
    if settings.judge_url:
        _ask(settings, [PROBE])  # fails now, not after an hour of sampling
    asked = _asked(settings, task, seed, device, note)
    own, others = _answers(settings, asked, resolve_model(settings.start), _models(runs, settings.checkpoints), note)
    everything = [completion for one in (own, *others.values()) for completion in one.completions]
    scores: dict[str, Scores] = {}
    for name, directory in scorers.items():
        note(f"comparing: scores of the {name} in {directory}")
        scores[name] = _scored(load_scorer(directory, device), everything)
        release(device)
    start_rows = [*_rows(task, own, scores, asks_task=settings.gold)]
    rows = {entrant: [*_rows(task, one, scores, asks_task=settings.gold)] for entrant, one in others.items()}
    if not _are_judged([start_rows, *rows.values()]):
        start_rows, *without = ([replace(row, score=None) for row in some] for some in (start_rows, *rows.values()))
        rows = dict(zip(rows, without, strict=True))
    results = {
        **{"kind": "contest", "title": title, "task": task.name, "seed": seed, "prompts": len(asked.examples)},
        "start_name": Path(settings.start).name,
        "proxy_path": settings.reward or None,
        "judge_path": settings.judge or None,
        "settings": settings.model_dump(mode="json"),
        **contest_results(
            start_rows,
            rows,
            samples=settings.samples,
            tie_margin=settings.tie_margin,
            best_of=settings.best_of if settings.reward else (),
            verdicts=_verdicts(settings, start_rows, rows, note) if settings.judge_url else {},
            failures=failures,
        ),
        "curves": read_curves({method: run for method, path in runs.items() if (run := RunDirectory.find(path))}),
    }
    comparison = ComparisonDirectory(out)
    for name, completions in {START: start_rows, **{entrant.name: own for entrant, own in rows.items()}}.items():
        comparison.write_samples(name, [asdict(row) for row in completions])
    comparison.write_results(results)
    write_page(comparison)
    return results


def _models(runs: Mapping[tuple[str, int], Path], checkpoints: int) -> dict[Entrant, Path]:
    """The last model of each run (not the best, which evaluation selects), and at most `checkpoints` earlier ones."""
    models: dict[Entrant, Path] = {}
    for (method, seed), path in runs.items():
        run = RunDirectory.find(path)
        last = run.latest() if run else None
        earlier = earlier_checkpoints(path, checkpoints) if run and checkpoints else {}
        models |= {Entrant(method=method, seed=seed, step=step): place / MODEL for step, place in earlier.items()}
        models[Entrant(method=method, seed=seed)] = last.path / MODEL if last else resolve_model(str(path))
    return models


def _asked(settings: CompareConfig, task: Task, seed: int, device: torch.device, note: Note) -> ContestPrompts:
    """Held-out prompts that fit the start model, whose tokenizer and context the methods share."""
    require_single_answers(task, "single answers are compared here: evaluate each model (whet eval)")
    start = resolve_model(settings.start)
    context = model_summary(start)["context"]
    if context is not None:
        longest, key = settings.max_tokens, "compare.max_tokens"
        task, notes = fit_prompts(
            task, model_tokenizer(start), context=context, max_tokens=longest, key=key, used=["held-out"]
        )
        for text in notes:
            note(text)
    examples = task.held_out(settings.prompts)
    if not examples:
        raise UserError(f"task {task.name} has no held-out prompts: give it an evaluation split")
    sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature)
    return ContestPrompts(examples=examples, sampling=sampling, seed=seed, device=device)


def _answers(
    settings: CompareConfig, asked: ContestPrompts, start: Path, models: Mapping[Entrant, Path], note: Note
) -> tuple[Answers, dict[Entrant, Answers]]:
    """Completions of the start model and of all others; it is loaded last, to score all their completions."""
    answers: list[Answers] = []
    for entrant, directory in models.items():
        note(f"comparing: {entrant.name} answers {len(asked.examples)} prompts")
        answers.append(answers_of(directory, asked, count=settings.samples)[2])
        release(asked.device)
    note("comparing: the start model answers them and scores the completions of the others")
    policy, tokenizer, own = answers_of(start, asked, count=settings.start_samples)
    for one in answers:
        _check_same_ids(start, tokenizer, one.completions)
    read = [
        replace(one, logprobs_start=completion_logprobs(policy, one.completions, asked.sampling)) for one in answers
    ]
    del policy
    release(asked.device)
    return own, dict(zip(models, read, strict=True))


def _scored(scorer: Scorer, completions: Iterable[Sampled]) -> Scores:
    """Scores each distinct completion once: equal completions tie exactly, however a GPU rounds."""
    different = {(one.example.id, one.completion.text): one.example.prompt for one in completions}
    scores = scorer.score(list(different.values()), [text for _, text in different])
    return dict(zip(different, scores, strict=True))


def _rows(task: Task, answers: Answers, scores: Mapping[str, Scores], *, asks_task: bool) -> Iterator[ScoredCompletion]:
    known = task if asks_task and isinstance(task, Gold) else None
    scoring = task if asks_task and known is None else None
    for one, own, start in zip(answers.completions, answers.logprobs, answers.logprobs_start, strict=True):
        key = one.example.id, one.completion.text
        ratios = [b - a for a, b in zip(own, start, strict=True)]
        yield ScoredCompletion(
            id=one.example.id,
            prompt=one.example.prompt_text,
            sample=one.sample,
            text=one.completion.text,
            tokens=len(one.completion.tokens),
            finish=one.completion.finish,
            correct=task.correct(one.example, one.completion.text),
            gold=known.gold(one.example, one.completion.text) if known else None,
            score=scoring.score(one.example, one.completion.text).reward if scoring else None,
            proxy=scores["proxy"][key] if "proxy" in scores else None,
            judge=scores["judge"][key] if "judge" in scores else None,
            logprob=math.fsum(own),
            logprob_start=math.fsum(start),
            k3=fmean(math.expm1(ratio) - ratio for ratio in ratios),
        )


def _are_judged(rows: Iterable[Sequence[ScoredCompletion]]) -> bool:
    """Whether the task judges completions; for prompts alone, none is right or wrong and all have the same score."""
    every = [row for some in rows for row in some]
    return any(row.correct is not None for row in every) or len({row.score for row in every}) > 1


def _verdicts(
    settings: CompareConfig,
    start: Sequence[ScoredCompletion],
    rows: Mapping[Entrant, Sequence[ScoredCompletion]],
    note: Note,
) -> dict[str, JudgeVerdicts]:
    """Method → verdicts of the judge behind the URL, over all seeds."""
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


# In place of the step in random streams: shares no stream with training or evaluation.
CONTEST_STEP = 2**31 - 2
MODEL = "model"  # directory of the policy in a checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One completion of an example."""

    example: Example
    sample: int
    prompt: tuple[int, ...]  # token ids
    completion: Completion


@dataclass(frozen=True, kw_only=True, slots=True)
class ContestPrompts:
    """Prompts and sampling settings, the same for every model."""

    examples: Sequence[Example]
    sampling: Sampling
    seed: int
    device: torch.device


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """Completions of one model, with per-token log-probs under that model and under the start model."""

    completions: list[Sampled]
    logprobs: list[list[float]]
    logprobs_start: list[list[float]]


def answers_of(directory: Path, asked: ContestPrompts, *, count: int) -> tuple[CausalLM, Tokenizer, Answers]:
    """The model in a directory, and `count` completions of each example by it; log-probs of the start are its own.

    Random numbers do not depend on the model: equal models give equal completions.
    """
    policy, tokenizer = place(load_model(directory), asked.device), model_tokenizer(directory)
    engine = NativeEngine(policy, tokenizer, device=asked.device)
    prompts = tokenize_prompts(asked.examples, tokenizer, stream=(asked.seed, CONTEST_STEP))
    groups = engine.generate(prompts, asked.sampling, count=count)
    engine.close()
    completions = [
        Sampled(example=example, sample=sample, prompt=prompt.tokens, completion=completion)
        for example, prompt, group in zip(asked.examples, prompts, groups, strict=True)
        for sample, completion in enumerate(group)
    ]
    own = completion_logprobs(policy, completions, asked.sampling)
    return policy, tokenizer, Answers(completions=completions, logprobs=own, logprobs_start=own)


def release(device: torch.device) -> None:
    """Frees the GPU memory of unreferenced models."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


@torch.no_grad()
def completion_logprobs(policy: CausalLM, completions: Sequence[Sampled], sampling: Sampling) -> list[list[float]]:
    """Log-prob of each token of each completion, at the sampling temperature.

    By the training path for every model, so that differences are not artefacts of the sampler's rounding.
    """
    device = next(policy.parameters()).device
    masks = [[False] * len(one.prompt) + [True] * len(one.completion.tokens) for one in completions]
    sequences = collate([one.prompt + one.completion.tokens for one in completions], masks, device)
    found: list[list[float]] = [[] for _ in completions]
    for rows in micro_batches(sequences.lengths, tokens_that_fit(policy)):
        some = take(sequences, rows)
        with autocast(device):
            logprobs, _ = token_logprobs(policy, some.tokens, some.lengths, some.mask, sampling)
        for row, own, mask in zip(rows.tolist(), logprobs.cpu(), some.mask.cpu(), strict=True):
            found[row] = own[mask].tolist()
            check_logprobs(found[row], policy, prompt=row)
    return found


def _check_same_ids(directory: Path, tokenizer: Tokenizer, completions: Sequence[Sampled]) -> None:
    """Refuses models whose tokenizers differ from the start model's."""
    if any(tuple(tokenizer.prompt(one.example.prompt)) != one.prompt for one in completions):
        raise UserError(
            f"the start model {directory} and a method's model have different tokenizers, so they cannot be compared: "
            "name the model that the methods began with as compare.start"
        )
