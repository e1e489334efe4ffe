"""The tokens of a run's corpus: encoded once, kept in the cache, and the held-out windows that evaluations read."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.algorithms.cells import plain
from whet.algorithms.masking import diffusion
from whet.algorithms.table import Objective
from whet.config import OfflineConfig, OnlineConfig, TrainConfig
from whet.config.objective import objective_row
from whet.data.corpus.corpus_task import CorpusTask
from whet.data.corpus.text_store import build_directory, text_store
from whet.data.corpus.token_file import TokenFile, cached_token_file, read_token_file, write_token_file
from whet.distributed.world import World
from whet.errors import RunFailed, UserError
from whet.evaluate.held_out_masks import masked_metrics
from whet.evaluate.held_out_text import HeldOutText, text_metrics
from whet.models.load import is_bidirectional
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.text.mask_token import with_mask
from whet.models.text.tiktoken_bpe import tiktoken_tokenizer
from whet.models.text.tokenizers import character_tokenizer, load_tokenizer
from whet.models.text.trained_bpe import train_bpe
from whet.streams import uniform
from whet.tasks.protocol import HasAlphabet, HasText, Task

TIKTOKEN, BPE = "tiktoken:", "bpe:"
LARGEST_BPE = 2**20  # tokens; published vocabularies have a quarter of it
PROBED = 64  # prompts whose length is looked at
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


def tokenize_to(directory: Path, task: CorpusTask, tokenizer: str) -> TokenFile:
    """The tokens of a text and the tokeniser in a new directory; `tokenizer` as in `model.new.tokenizer`."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} exists and is not empty: name another directory")
    made = named_tokenizer(tokenizer, task)
    facts: dict[str, Any] = {"vocab_size": made.vocab_size, "eos": made.eos, "source": task.path}
    text = text_store(task.source, held_out_share=task.held_out_share)  # of any length: it makes no windows

    def write(new: Path) -> None:
        write_token_file(new, text, made.encode, tokenizer=tokenizer_fingerprint(made), **facts)
        made.save(new)

    try:
        build_directory(directory.absolute(), write, what=f"the tokens of {task.path}")
    except RunFailed as error:
        raise UserError(f"{error}: name another directory") from error
    return read_token_file(directory)


def named_tokenizer(name: str, task: Task, *, masks: bool = False) -> Tokenizer:
    """The tokeniser that `model.new.tokenizer` names; some are made from the text or the alphabet of the task.

    With `masks` it has a mask token, the last id.
    """
    if masks:
        return with_mask(named_tokenizer(name, task))
    if name.startswith(TIKTOKEN):
        return tiktoken_tokenizer(name.removeprefix(TIKTOKEN))
    if name.startswith(BPE):
        return _trained_bpe(name.removeprefix(BPE), task)
    if name == BPE.rstrip(":"):
        raise UserError("model.new.tokenizer is bpe without a number of tokens: write bpe:SIZE, e.g. bpe:1024")
    if name != "characters":
        return load_tokenizer(Path(name).expanduser())
    if not isinstance(task, HasAlphabet):
        raise UserError(
            f"model.new.tokenizer is 'characters' and task {task.name!r} does not list its characters: "
            "use tiktoken:gpt2, or the directory of a saved tokeniser"
        )
    return character_tokenizer(task.alphabet)


def _trained_bpe(size: str, task: Task) -> Tokenizer:
    if not size.isdecimal():
        raise UserError(f"model.new.tokenizer is bpe:{size}, which names no number of tokens: write e.g. bpe:1024")
    if len(size) > len(str(LARGEST_BPE)) or int(size) > LARGEST_BPE:
        raise UserError(f"model.new.tokenizer is bpe:{size}, and at most {LARGEST_BPE:,} tokens are learned: lower it")
    if not isinstance(task, HasText):
        raise UserError(
            f"model.new.tokenizer is bpe:{size}, which is trained on a text, and task {task.name!r} has none: "
            "use task: {name: corpus, path: …}, tiktoken:gpt2, or the directory of a saved tokeniser"
        )
    return train_bpe(task.training_text(), int(size))


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


def held_out_text(corpus: TokenFile, context: int, *, most: int, given: int = 1, separate: bool = False) -> HeldOutText:
    """Held-out windows of a corpus with `context` targets after `given` tokens, `most` of them; 0: all.

    Where documents are `separate`, they are split into parts of documents, as windows of training are.
    """
    starts = corpus.held_out_windows(context, most=most)
    tokens = len(corpus.held_out)
    parts = as_tensor(corpus.parts(starts, context + given, shortest=given + 1)) if separate else None
    if parts is not None and not len(parts):
        raise UserError(
            f"{corpus.source} has no held-out document with a token to predict in windows of {context + given}: "
            "use a longer context, or task.documents=joined"
        )
    return HeldOutText(
        parts=parts,
        windows=as_tensor(corpus.windows(starts, context + given)),
        tokens_per_character=tokens / max(1, corpus.characters["held_out"]),
        tokens_per_byte=tokens / max(1, corpus.bytes["held_out"]),
    )


def text_measure(
    config: TrainConfig, task: Task, tokenizer: Tokenizer, policy: CausalLM, world: World
) -> Callable[[CausalLM], dict[str, float]]:
    """Measures held-out text under a policy like this one, if the run's task is a text and it is evaluated.

    Of a causal model the likelihood; of a bidirectional one the loss at masked tokens and, if it is trained on it, the
    bound on the likelihood.
    """
    if not isinstance(task, CorpusTask) or not config.eval.every_steps:
        return lambda _: {}
    given = 0 if is_bidirectional(policy) else 1
    text = held_out_text(
        token_file(task, tokenizer),
        policy.context,
        most=task.eval_windows,
        given=given,
        separate=task.documents == "separate",
    )
    if given:
        return partial(text_metrics, text=text, world=world)
    return partial(masked_metrics, text=text, world=world, has_bound=_has_bound(config))


def _has_bound(config: TrainConfig) -> bool:
    row = objective_row(config.objective) if isinstance(config, OfflineConfig) else None
    return isinstance(row, Objective) and row.masking is not None and plain(row.masking) is diffusion


def require_fitting_prompts(
    config: TrainConfig, task: Task, evaluation: Iterable[Task], tokenizer: Tokenizer, context: int
) -> None:
    """Refuses prompts of a text that leave no room for a token of a completion, before anything is trained."""
    asked = task.draw(PROBED, seed=(config.seed, 0)) if _samples_text(config, task) else []
    for one in evaluation:
        asked += one.held_out(config.eval.examples) if isinstance(one, CorpusTask) else []
    longest = max((len(tokenizer.prompt(example.prompt)) for example in asked), default=0)
    if longest >= context:
        raise UserError(
            f"prompts of the text have up to {longest} tokens and the model's context has {context}, which must hold "
            "at least one more: lower task.prompt_characters, or raise model.new.context"
            + ("" if isinstance(config, OnlineConfig) else ", or train without evaluation, eval.every_steps=0")
        )


def _samples_text(config: TrainConfig, task: Task) -> bool:
    """Whether rollouts continue a text."""
    return isinstance(config, OnlineConfig) and isinstance(task, CorpusTask)


def short_horizon_note(config: TrainConfig, task: Task, tokenizer: Tokenizer, context: int) -> str:
    """Says so where prompts of a text leave rollouts less of the context than `rollout.max_tokens`; else empty."""
    if not isinstance(config, OnlineConfig) or not isinstance(task, CorpusTask):
        return ""
    longest = max(len(tokenizer.prompt(example.prompt)) for example in task.draw(PROBED, seed=(config.seed, 0)))
    if longest + config.rollout.max_tokens <= context:
        return ""
    return (
        f"note: prompts of up to {longest} tokens and rollout.max_tokens {config.rollout.max_tokens} exceed the "
        f"context of {context}, so rollouts are truncated: lower task.prompt_characters, or raise model.new.context"
    )


def as_tensor(windows: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(windows))
