"""Checks of the policy's probabilities: they add up to 1, and log-probs are those of the tokens they stand at.

The log-probs of the trainer are compared with those of transformers' own forward pass, which reads the saved model one
sequence at a time, or, where transformers cannot, with a plain pass over each sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from whet.batching import collate, packed
from whet.config.parts import UpdateConfig
from whet.distributed.world import World
from whet.models.adapters.lora import has_adapters
from whet.models.decoder.decoder import Decoder
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import log_distribution, read_tokens
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Row, Sampling
from whet.train.preflight.results import CheckFailed, NotTried

SEQUENCES = 8  # that are read
POSITIONS = 4  # of which every id's probability is computed
EVERY_ID = 2**16  # tokens of all sequences in which every id is read once, as by the trainer; more are not read
LARGEST = 300_000_000  # parameters of a model that is loaded a second time, by transformers
SUM_TOLERANCE = 1e-3
ROUNDING = 1e-5  # by which a log-prob may be above 0
TOLERANCES = {"cpu": 1e-3, "cuda": 0.05}  # nats a token on average; on a GPU products are in bf16
SHIFTS = (-1, 1)  # places by which log-probs may be off
UNREADABLE = 0.01  # probability of ids that the tokenizer cannot decode

Logits = Callable[[Sequence[int]], Tensor]  # (T,) ids → (T, V) logits of the next token


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Sequences that a policy sampled or will learn from, and how it reads them."""

    policy: CausalLM
    tokenizer: Tokenizer
    rows: Sequence[Row]
    sampled: Sequence[Sequence[float]] | None  # log-probs by the sampler of every token; None: nothing was sampled
    sampling: Sampling
    update: UpdateConfig
    world: World

    @property
    def first(self) -> Sequence[Row]:
        if not self.rows:
            raise NotTried("there are no sequences of tokens to read")
        return self.rows[:SEQUENCES]


@torch.no_grad()
def add_up_to_one(read: Read) -> str:
    """The probabilities of all ids at a few places add up to 1, and lie on ids that the tokenizer knows."""
    size, known_ids = read.policy.vocab_size, read.tokenizer.vocab_size
    worst, beyond = 0.0, 0.0
    places = [(row, row.mask.index(True)) for row in read.first][:POSITIONS]
    as_trained = size * sum(place + 1 for _, place in places) <= EVERY_ID
    for row, place in places:
        known = row.tokens[:place]
        logprobs = _as_trainer(read, known) if as_trained else _as_sampler(read, known)
        probabilities = logprobs.double().exp()
        worst = max(worst, abs(float(probabilities.sum()) - 1))
        beyond = max(beyond, float(probabilities[known_ids:].sum()))
        if not bool((logprobs <= ROUNDING).all()):  # also of NaN
            raise CheckFailed(f"a log-prob of token {place} is {float(logprobs.max())}, which is no probability")
    if worst > SUM_TOLERANCE:
        raise CheckFailed(
            f"the probabilities of all {size:,} ids add up to 1 ± {worst:.2g}: log-probs are not normalised"
        )
    if beyond > UNREADABLE:
        raise CheckFailed(
            f"{beyond:.0%} of the probability is on ids that the tokenizer does not have (it has {known_ids:,} of "
            f"{size:,}): it belongs to another model, or those rows of the head were never trained"
        )
    how = "as the trainer reads them" if as_trained else "as the sampler draws them"
    return f"at {len(places)} places, over {size:,} ids, {how}: 1 ± {worst:.1g}"


def _as_trainer(read: Read, known: Sequence[int]) -> Tensor:
    """(V,) log-probs of every id after these, each read as the last token of a sequence."""
    every = range(read.policy.vocab_size)
    rows = [Row(tokens=(*known, token), mask=(False,) * len(known) + (True,)) for token in every]
    plain = replace(read, sampling=Sampling(max_tokens=1, temperature=read.sampling.temperature))
    return _trainer(plain, rows)[:, len(known)]


def _as_sampler(read: Read, known: Sequence[int]) -> Tensor:
    """(V,) log-probs of every id after these, by the distribution that is sampled from."""
    tokens = torch.tensor([list(known)], device=read.world.device)
    with autocast(read.world.device):
        states = read.policy.hidden(tokens, torch.tensor([len(known)], device=read.world.device))
        logits = read.policy.head(states[:, len(known) - 1])
    return log_distribution(logits, Sampling(max_tokens=1, temperature=read.sampling.temperature))[0]


def _trainer(read: Read, rows: Sequence[Row]) -> Tensor:
    """(B, T) log-probs as a training step reads them, packed or padded."""
    s = collate([row.tokens for row in rows], [row.mask for row in rows], read.world.device)
    with autocast(read.world.device):
        reading = read_tokens(
            read.policy, s.tokens, s.lengths, s.mask, read.sampling, packing=packed(s, None, read.update)
        )
    return reading.logprobs.float()


@torch.no_grad()
def are_aligned(read: Read) -> str:
    """The log-probs of the trainer, and of the sampler, are those of an independent forward pass."""
    rows, limit = read.first, TOLERANCES[read.world.device.type]
    if not read.sampling.is_whole:
        raise NotTried(
            "sampling filters tokens (top_k, top_p, min_p, min_tokens or repetition_penalty), and the independent "
            "pass does not: set them to their defaults to try it"
        )
    trained = _trainer(read, rows)
    named, compared = {"trainer": [_chosen(line, row) for line, row in zip(trained.tolist(), rows, strict=True)]}, ""
    if read.sampled is not None:
        named["sampler"] = [_chosen(line, row) for line, row in zip(read.sampled, rows, strict=False)]
    with _independent(read) as independent:
        expected = [_expected(independent.logits, row, read.sampling.temperature) for row in rows]
        compared = independent.what
    apart = {}
    for name, found in named.items():
        _require_log_probs(name, found)
        apart[name] = _distance(found, expected)
        if apart[name] > limit:
            raise CheckFailed(
                f"the log-probs of the {name} are {apart[name]:.3g} nats a token from those of {compared} (limit "
                f"{limit:g}){_shifted(found, expected, limit)}"
            )
    tokens = sum(map(len, expected))
    told = " and ".join(f"{name} {value:.1g}" for name, value in apart.items())
    return f"{tokens} tokens of {len(rows)} sequences against {compared}, apart in nats a token: {told}"


def _chosen(values: Sequence[float], row: Row) -> list[float]:
    return [value for value, picked in zip(values, row.mask, strict=False) if picked]


def _require_log_probs(name: str, found: Sequence[Sequence[float]]) -> None:
    wrong = next((value for line in found for value in line if not value <= ROUNDING), None)
    if wrong is not None:
        raise CheckFailed(f"the {name} gave a log-prob of {wrong:g}: log-probs are at most 0")


def _distance(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> float:
    """Mean distance of the values, in the order of the tokens."""
    pairs = [pair for both in zip(found, expected, strict=True) for pair in zip(*both, strict=False)]
    return sum(abs(one - other) for one, other in pairs) / max(1, len(pairs))


def _shifted(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], limit: float) -> str:
    """Whether they are those of a neighbouring token."""
    for shift in SHIFTS:
        moved = [(line[max(0, shift) :], other[max(0, -shift) :]) for line, other in zip(found, expected, strict=True)]
        if any(one and other for one, other in moved) and _distance(*zip(*moved, strict=True)) <= limit:
            return f": they are those of the token {'before' if shift > 0 else 'after'}"
    return ""


def _expected(logits: Logits, row: Row, temperature: float) -> list[float]:
    """The log-probs of the trained tokens of one sequence, token by token."""
    scores = logits(row.tokens).double() / temperature
    places = [place for place, picked in enumerate(row.mask) if picked]
    return [float(scores[place - 1].log_softmax(dim=-1)[row.tokens[place]]) for place in places]


class _independent:
    """A forward pass other than the trainer's, and what it is called."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._folder: TemporaryDirectory[str] | None = None
        self.what, self.logits = "a plain pass over each sequence alone", self._plain

    def __enter__(self) -> _independent:
        policy = self._read.policy
        if isinstance(policy, Decoder) and not has_adapters(policy) and _parameters(policy) <= LARGEST:
            self._folder = TemporaryDirectory()
            model = _from_transformers(policy, Path(self._folder.name))
            if model is not None:
                self.what = f"transformers {type(model).__name__}"
                self.logits = lambda tokens: model(torch.tensor([list(tokens)])).logits[0]
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _plain(self, tokens: Sequence[int]) -> Tensor:
        device = self._read.world.device
        row = torch.tensor([list(tokens)], device=device)
        with autocast(device):
            states = self._read.policy.hidden(row, torch.tensor([len(tokens)], device=device))
            return self._read.policy.head(states)[0].float()


def _from_transformers(policy: Decoder, folder: Path) -> Any:
    """The model as transformers reads it; None where it knows no such model."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    policy.save(folder)
    bars: Any = logging  # its functions have no types
    bars.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # in evaluation mode
    except Exception:  # noqa: BLE001 - of any type: an unknown model_type, or a version that reads it otherwise
        return None
    finally:
        bars.enable_progress_bar()


def _parameters(policy: nn.Module) -> int:
    return sum(weights.numel() for weights in policy.parameters())
