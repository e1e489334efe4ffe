"""Texts to rewards: what a reward model says of completions, by the tokeniser that it was trained with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from whet.errors import RunFailed, UserError
from whet.models.precision import autocast
from whet.models.protocol import Tokenizer
from whet.models.reward_load import load_reward_model
from whet.models.reward_model import RewardModel, pack_through
from whet.models.reward_settings import Aggregation
from whet.models.tokenizers import load_tokenizer
from whet.records import Message

Prompt = str | Sequence[Message]

FEW, MANY = 4096, 32_768  # tokens a pass: enough for a CPU, and enough for any GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedText:
    """A prompt and a completion as a reward model reads them."""

    tokens: tuple[int, ...]
    prompt: int  # how many of the tokens are the prompt's
    places: tuple[int, ...]  # the tokens at which the model is asked, ascending
    cut: int  # tokens of the beginning that did not fit into the context


def whole_text(
    tokenizer: Tokenizer, prompt: Prompt, completion: str, context: int, *, every_token: bool = False
) -> JudgedText:
    """Prompt, completion and the end of the sequence, asked at that end or at every token of the completion."""
    before = _prompt(tokenizer, prompt)
    tokens = [*before, *tokenizer.encode(completion), tokenizer.eos]
    places = range(len(before) if every_token else len(tokens) - 1, len(tokens))
    return _fitted(tokens, len(before), places, context)


def stepped_text(
    tokenizer: Tokenizer, prompt: Prompt, steps: Sequence[str], context: int, *, separator: str
) -> JudgedText:
    """Prompt and steps, each followed by the separator and asked at its last token.

    Steps are encoded one by one, so where a step ends never falls inside a token. Those that did not fit into the
    context are the first ones, and have no place.
    """
    before = _prompt(tokenizer, prompt)
    tokens, places = [*before], []
    for step in steps:
        tokens += tokenizer.encode(step + separator)
        places.append(len(tokens) - 1)
    return _fitted(tokens, len(before), places, context)


def split_steps(completion: str, separator: str) -> list[str]:
    """The steps of a completion, at least one; blank ones do not count."""
    return [step for step in completion.split(separator) if step.strip()] or [""]


class Scorer:
    """A reward model with its tokeniser: prompts and completions in, one number each out, without gradients."""

    def __init__(
        self,
        model: RewardModel,
        tokenizer: Tokenizer,
        *,
        max_tokens: int | None = None,
        micro_tokens: int | None = None,
    ) -> None:
        """At most `max_tokens` of a text are read, the last ones, and `micro_tokens` at once."""
        self.model = model
        self.tokenizer = tokenizer
        self.limit = min(model.context, max_tokens or model.context)
        self.micro_tokens = micro_tokens
        self.truncated = 0  # texts of which the beginning was not read, over all calls

    def score(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float]:
        """One reward each, higher is better.

        A preference model's is its score; an outcome model's the probability that the completion is right; a process
        model's the aggregate of the probabilities that its steps are fine.
        """
        pairs = zip(prompts, completions, strict=True)
        judged = self.judge([self._text(prompt, completion) for prompt, completion in pairs])
        if self.model.kind == "process":
            return [aggregated(steps, self.model.settings.aggregation) for steps in judged]
        return [places[0] for places in judged]

    def steps(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[list[float]]:
        """A process model's probability that each step is fine."""
        if self.model.kind != "process":
            raise UserError(f"a {self.model.kind} reward model does not judge steps: use a process reward model")
        return self.judge([self._text(*pair) for pair in zip(prompts, completions, strict=True)])

    @torch.no_grad()
    def judge(self, texts: Sequence[JudgedText]) -> list[list[float]]:
        """What the model says at each place of each text: a score, or for outcome and process a probability."""
        self.truncated += sum(text.cut > 0 for text in texts)
        device = next(self.model.parameters()).device
        micro_tokens = self.micro_tokens or (MANY if device.type == "cuda" else FEW)
        judged: list[list[float]] = [[] for _ in texts]
        for rows in _batches(texts, micro_tokens):
            values = iter(self._read([texts[row] for row in rows], device))
            for row in rows:
                judged[row] = [next(values) for _ in texts[row].places]
        return judged

    def _text(self, prompt: Prompt, completion: str) -> JudgedText:
        if self.model.kind != "process":
            return whole_text(self.tokenizer, prompt, completion, self.limit)
        separator = self.model.settings.separator
        return stepped_text(self.tokenizer, prompt, split_steps(completion, separator), self.limit, separator=separator)

    def _read(self, texts: Sequence[JudgedText], device: torch.device) -> list[float]:
        """The numbers at the places, text by text: prompts that texts share are read once."""
        tokens = pad_sequence([torch.tensor(text.tokens) for text in texts], batch_first=True)
        lengths = torch.tensor([len(text.tokens) for text in texts])
        columns = torch.arange(tokens.shape[1])
        shared = torch.tensor([_shared(text) for text in texts])
        completion = (columns >= shared[:, None]) & (columns < lengths[:, None])
        places = torch.zeros_like(completion)
        for row, text in enumerate(texts):
            places[row, list(text.places)] = True
        numbers = {_root(text): number for number, text in enumerate(texts)}
        groups = torch.tensor([numbers[_root(text)] for text in texts])
        packing = pack_through(tokens.to(device), completion.to(device), groups)
        with autocast(device):
            scores = self.model.scores(tokens.to(device), lengths.to(device), places.to(device), packing)
        if not bool(scores.isfinite().all()):
            raise RunFailed("the reward model gives a score that is not a finite number: check its checkpoint")
        return self.model.meant(scores).tolist()


def load_scorer(
    directory: Path, device: torch.device, *, max_tokens: int | None = None, micro_tokens: int | None = None
) -> Scorer:
    """The reward model of a directory with the tokeniser beside it, on a device."""
    model, tokenizer = load_reward_model(directory), load_tokenizer(directory)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} ids and the model {model.vocab_size}: "
            "they do not belong together, copy the right tokenizer there"
        )
    return Scorer(model.to(device), tokenizer, max_tokens=max_tokens, micro_tokens=micro_tokens)


def aggregated(probabilities: Sequence[float], how: Aggregation) -> float:
    """One number for a solution: the probability that all steps are fine, that of its worst or that of its last."""
    if how == "product":
        return math.prod(probabilities)
    return min(probabilities) if how == "min" else probabilities[-1]


def _prompt(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    tokens = tokenizer.prompt(prompt)
    if not tokens:
        raise UserError("a prompt has no tokens: give it at least one, such as the beginning-of-sequence token")
    return tokens


def _fitted(tokens: Sequence[int], prompt: int, places: Sequence[int], context: int) -> JudgedText:
    """The last `context` tokens: what a text ends with counts most."""
    cut = max(0, len(tokens) - context)
    return JudgedText(
        tokens=tuple(tokens[cut:]),
        prompt=max(0, prompt - cut),
        places=tuple(place - cut for place in places if place >= cut),
        cut=cut,
    )


def _shared(text: JudgedText) -> int:
    """How many tokens other texts may have in common: the prompt, or the first token where that was cut off."""
    return max(1, text.prompt)


def _root(text: JudgedText) -> tuple[int, ...]:
    return text.tokens[: _shared(text)]


def _batches(texts: Sequence[JudgedText], micro_tokens: int) -> Iterator[list[int]]:
    """Numbers of the texts to read together, long ones first, a prompt that neighbours share counted once."""
    longest: dict[tuple[int, ...], int] = {}
    for text in texts:
        longest[_root(text)] = max(longest.get(_root(text), 0), len(text.tokens))
    order = sorted(range(len(texts)), key=lambda row: (-longest[_root(texts[row])], _root(texts[row])))
    some: list[int] = []
    tokens = 0
    for row in order:
        text = texts[row]
        repeats = bool(some) and _root(texts[some[-1]]) == _root(text)
        cost = len(text.tokens) - (_shared(text) if repeats else 0)
        if some and tokens + cost > micro_tokens:
            yield some
            some, tokens, cost = [], 0, len(text.tokens)
        some.append(row)
        tokens += cost
    if some:
        yield some
