"""The tokens of a run's corpus: encoded once, kept in the cache, and the held-out windows that evaluations read."""

import hashlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from whet.algorithms.cells import plain
from whet.algorithms.masking import diffusion
from whet.algorithms.table import Objective
from whet.config import OfflineConfig, TrainConfig
from whet.config.objective import objective_row
from whet.data.corpus.corpus_task import CorpusTask
from whet.data.corpus.token_file import TokenFile, cached_token_file
from whet.distributed.world import World
from whet.errors import UserError
from whet.evaluate.held_out_masks import masked_metrics
from whet.evaluate.held_out_text import HeldOutText, text_metrics
from whet.models.load import is_bidirectional
from whet.models.protocol import CausalLM, Tokenizer
from whet.streams import uniform
from whet.tasks.protocol import Task

SEED_BITS = 32  # a stream of windows is named by seed · 2³² + step


def corpus_of(task: Task, what: str) -> CorpusTask:
    """The task, if it is a text."""
    if not isinstance(task, CorpusTask):
        raise UserError(
            f"{what} learns from a text, and task {task.name!r} is none: use task: {{name: corpus, path: …}}"
        )
    return task


def token_file(task: CorpusTask, tokenizer: Tokenizer) -> TokenFile:
    """The tokens of a text; those of the same text and tokeniser are in the cache."""
    return cached_token_file(
        task.text,
        tokenizer.encode,
        vocab_size=tokenizer.vocab_size,
        eos=tokenizer.eos,
        tokenizer=tokenizer_fingerprint(tokenizer),
        source=task.path,
    )


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """The same for tokenisers with the same files."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save(Path(directory))
        for file in sorted(Path(directory).rglob("*")):
            if file.is_file():
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def window_starts(tokens: int, count: int, context: int, *, seed: int, step: int) -> np.ndarray:
    """(count,): the first tokens of a step's windows, anywhere in the training text. native/ draws the same ones.

    A window has `context` + 1 tokens: the first is given, the others are predicted.
    """
    if tokens <= context:
        raise UserError(
            f"the training text has {tokens} tokens, and a window of the model's context takes {context + 1}: "
            "add text, or use a shorter context"
        )
    key = ((seed << SEED_BITS) + step + 2**63) % 2**64 - 2**63  # as a signed 64-bit number
    drawn = uniform(torch.full((count,), key, dtype=torch.int64), torch.arange(count))
    return (drawn * (tokens - context)).long().numpy()


def held_out_text(corpus: TokenFile, context: int, *, most: int, given: int = 1) -> HeldOutText:
    """Held-out windows of a corpus with `context` targets after `given` tokens, `most` of them; 0: all."""
    starts = corpus.held_out_windows(context, most=most)
    tokens = len(corpus.held_out)
    return HeldOutText(
        windows=as_tensor(corpus.windows(starts, context + given)),
        tokens_per_character=tokens / max(1, corpus.characters["held_out"]),
        tokens_per_byte=tokens / max(1, corpus.bytes["held_out"]),
    )


def text_measure(
    config: TrainConfig, task: Task, tokenizer: Tokenizer, policy: CausalLM, world: World
) -> Callable[[], dict[str, float]]:
    """Measures held-out text, if the run's task is a text and it is evaluated.

    Of a causal model the likelihood; of a bidirectional one the loss at masked tokens and, if it is trained on it, the
    bound on the likelihood.
    """
    if not isinstance(task, CorpusTask) or not config.eval.every_steps:
        return dict
    tokens = token_file(task, tokenizer)
    if not is_bidirectional(policy):
        return partial(text_metrics, policy, held_out_text(tokens, policy.context, most=task.eval_windows), world)
    text = held_out_text(tokens, policy.context, most=task.eval_windows, given=0)
    return partial(masked_metrics, policy, text, world, has_bound=_has_bound(config))


def _has_bound(config: TrainConfig) -> bool:
    row = objective_row(config.objective) if isinstance(config, OfflineConfig) else None
    return isinstance(row, Objective) and row.masking is not None and plain(row.masking) is diffusion


def as_tensor(windows: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(windows))
