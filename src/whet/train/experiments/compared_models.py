"""Completions of the compared models for held-out prompts, and their log-probs: one model in memory at a time."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from whet.batching import collate, micro_batches, take, tokens_that_fit
from whet.engines.native.engine import NativeEngine
from whet.errors import UserError
from whet.models.download.model_hub import resolve_model
from whet.models.layers.decoder_config import autocast
from whet.models.load import load_model
from whet.models.logprobs import check_logprobs, token_logprobs
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Example, Finish, Sampling
from whet.rollout import tokenize_prompts
from whet.runs.directory import Run
from whet.runs.experiment_directories import earlier_checkpoints
from whet.train.setup.build import place

# Stands where a rollout has its step: no step of training and no evaluation shares a random stream with a contest.
CONTEST_STEP = 2**31 - 2
MODEL = "model"  # where a checkpoint keeps the policy and its tokeniser


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """One completion with its exact tokens."""

    example: Example
    sample: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    text: str
    finish: Finish


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is asked of every model alike."""

    examples: Sequence[Example]
    sampling: Sampling
    seed: int
    device: torch.device


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What one model said; for each completion the log-prob of each token under that model and the start model."""

    said: list[Said]
    logprobs: list[list[float]]
    logprobs_start: list[list[float]]


def final_model(path: Path) -> Path:
    """The model that a run ended with, which no evaluation has chosen; or the model in a directory."""
    run = Run.find(path)
    checkpoint = run.latest() if run else None
    return resolve_model(str(path)) if checkpoint is None else checkpoint.path / MODEL


def earlier_models(path: Path, most: int) -> dict[int, Path]:
    """Step → model that a run passed on its way, of the checkpoints that it still has; at most so many."""
    found = earlier_checkpoints(path, most) if most and Run.find(path) else {}
    return {step: directory / MODEL for step, directory in found.items()}


def answers_of(directory: Path, asked: Asked, *, count: int) -> Answers:
    """`count` completions of each example by the model in a directory, which the start model has not read yet."""
    policy, tokenizer = _opened(directory, asked.device)
    said = _sampled(policy, tokenizer, asked, count)
    return Answers(said=said, logprobs=completion_logprobs(policy, said, asked.sampling), logprobs_start=[])


def answers_of_start(
    directory: Path, asked: Asked, others: Sequence[Answers], *, count: int
) -> tuple[Answers, list[Answers]]:
    """The start model's own completions, and everybody else's with what it makes of them."""
    policy, tokenizer = _opened(directory, asked.device)
    for other in others:
        _check_same_ids(directory, tokenizer, other.said)
    said = _sampled(policy, tokenizer, asked, count)
    own = completion_logprobs(policy, said, asked.sampling)
    read = [replace(one, logprobs_start=completion_logprobs(policy, one.said, asked.sampling)) for one in others]
    return Answers(said=said, logprobs=own, logprobs_start=own), read


def release(device: torch.device) -> None:
    """Gives back the GPU memory of a model that nobody holds any more; on a CPU it is gone with its last holder."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


@torch.no_grad()
def completion_logprobs(policy: CausalLM, said: Sequence[Said], sampling: Sampling) -> list[list[float]]:
    """The log-prob of each token of each completion under the policy, at the temperature that it was sampled with.

    By the training path for every model, so that a difference of two models is no artefact of how a sampler rounds.
    """
    device = next(policy.parameters()).device
    masks = [[False] * len(one.prompt) + [True] * len(one.completion) for one in said]
    sequences = collate([one.prompt + one.completion for one in said], masks, device)
    found: list[list[float]] = [[] for _ in said]
    for rows in micro_batches(sequences.lengths, tokens_that_fit(policy)):
        some = take(sequences, rows)
        with autocast(device):
            logprobs, _ = token_logprobs(policy, some.tokens, some.lengths, some.mask, sampling)
        for row, own, mask in zip(rows.tolist(), logprobs.cpu(), some.mask.cpu(), strict=True):
            found[row] = own[mask].tolist()
            check_logprobs(found[row], policy, prompt=row)
    return found


def _opened(directory: Path, device: torch.device) -> tuple[CausalLM, Tokenizer]:
    return place(load_model(directory), device), load_tokenizer(directory)


def _sampled(policy: CausalLM, tokenizer: Tokenizer, asked: Asked, count: int) -> list[Said]:
    """The random numbers of a sample are the same whatever the model, so equal models say the same."""
    engine = NativeEngine(policy, tokenizer, device=asked.device)
    prompts = tokenize_prompts(asked.examples, tokenizer, stream=(asked.seed, CONTEST_STEP))
    groups = engine.generate(prompts, asked.sampling, count=count)
    engine.close()
    return [
        Said(
            example=example,
            sample=sample,
            prompt=prompt.tokens,
            completion=completion.tokens,
            text=completion.text,
            finish=completion.finish,
        )
        for example, prompt, group in zip(asked.examples, prompts, groups, strict=True)
        for sample, completion in enumerate(group)
    ]


def _check_same_ids(directory: Path, tokenizer: Tokenizer, said: Sequence[Said]) -> None:
    """The start model can read what another said only if ids mean the same to both."""
    if any(tuple(tokenizer.prompt(one.example.prompt)) != one.prompt for one in said):
        raise UserError(
            f"the start model {directory} and a method's model have different tokenizers, so they cannot be compared: "
            "name the model that the methods began with as compare.start"
        )
