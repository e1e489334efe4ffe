"""Texts to rewards: what a reward model says of completions, by the tokeniser that it was trained with.

`whole_text` and `stepped_text` are also what it learns from: a text is read as it was learned, however long it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from whet.errors import UserError
from whet.models.finite import not_finite
from whet.models.layers.decoder_config import autocast
from whet.models.protocol import Tokenizer
from whet.models.reward.reward_model import RewardModel, load_reward_model, pack_through
from whet.models.reward.settings import Aggregation
from whet.models.text.tokenizers import Prompt, fitting_prompt, load_tokenizer

FEW, MANY = 4096, 32_768  # tokens a pass: enough for a CPU, and enough for any GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredText:
    """A prompt and a completion as a reward model reads them."""

    tokens: tuple[int, ...]
    prompt: int  # how many of the tokens are the prompt's; 0 where the completion leaves it no room
    places: tuple[int, ...]  # the tokens at which the model is asked, ascending
    cut: int  # tokens that did not fit


def whole_text(
    tokenizer: Tokenizer, prompt: Prompt, completion: str, limit: int, *, every_token: bool = False
) -> ScoredText:
    """Prompt, completion and the end of the sequence, asked at that end or at every token of the completion."""
    tokens = [*tokenizer.encode(completion), tokenizer.eos]
    places = range(0 if every_token else len(tokens) - 1, len(tokens))
    return _fitted(tokenizer, prompt, tokens, places, limit)


def stepped_text(
    tokenizer: Tokenizer, prompt: Prompt, steps: Sequence[str], limit: int, *, separator: str
) -> ScoredText:
    """Prompt and steps, each followed by the separator and asked at its last token.

    A separator always ends a step: within one, spaces take its place. Steps are encoded one by one, so where a step
    ends never falls inside a token. Those that do not fit are the first ones, and have no place.
    """
    tokens: list[int] = []
    places = []
    for step in steps:
        tokens += tokenizer.encode(one_step(step, separator) + separator)
        places.append(len(tokens) - 1)
    return _fitted(tokenizer, prompt, tokens, places, limit)


def split_steps(completion: str, separator: str) -> list[str]:
    """The steps of a completion, at least one; blank ones do not count."""
    return [step for step in completion.split(separator) if step.strip()] or [""]


def one_step(step: str, separator: str) -> str:
    """A step in which no separator begins, so that `split_steps` finds it again: its parts, with spaces between them.

    Nor does it end with the beginning of one: after a line feed, two line feeds would end the step too early.
    """
    space = " " if separator.strip(" ") else ""  # spaces cannot take the place of spaces
    step = space.join(split_steps(step, separator))
    while (start := (step + separator).index(separator)) < len(step):
        step = f"{step[:start]}{space}{step[start + len(separator) :]}"
    return step


class Scorer:
    """A reward model with its tokeniser: prompts and completions in, one number each out, without gradients."""

    def __init__(
        self,
        model: RewardModel,
        tokenizer: Tokenizer,
        *,
        max_tokens: int | None = None,
        micro_batch_tokens: int | None = None,
    ) -> None:
        """At most `max_tokens` of a text are read, else as many as in training; `micro_batch_tokens` at once."""
        self.model = model
        self.tokenizer = tokenizer
        self.limit = min(model.context, max_tokens or model.settings.max_tokens or model.context)
        self.micro_batch_tokens = micro_batch_tokens
        self.truncated = 0  # texts that were not read whole, over all calls

    def score(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float]:
        """One reward each, higher is better.

        A preference model's is its score; an outcome model's the probability that the completion is right; a process
        model's the aggregate of the probabilities that its steps are fine.
        """
        pairs = zip(prompts, completions, strict=True)
        judged = self.judge([self.text(prompt, completion) for prompt, completion in pairs])
        if self.model.kind == "process":
            return [aggregated(steps, self.model.settings.aggregation) for steps in judged]
        return [places[0] for places in judged]

    def steps(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[list[float]]:
        """A process model's probability that each step is fine."""
        if self.model.kind != "process":
            raise UserError(f"a {self.model.kind} reward model does not judge steps: use a process reward model")
        return self.judge([self.text(*pair) for pair in zip(prompts, completions, strict=True)])

    @torch.no_grad()
    def judge(self, texts: Sequence[ScoredText]) -> list[list[float]]:
        """What the model says at each place of each text: a score, or for outcome and process a probability."""
        self.truncated += sum(text.cut > 0 for text in texts)
        device = next(self.model.parameters()).device
        micro_batch_tokens = self.micro_batch_tokens or (MANY if device.type == "cuda" else FEW)
        judged: list[list[float]] = [[] for _ in texts]
        for rows in _batches(texts, micro_batch_tokens):
            values = iter(self._read([texts[row] for row in rows], device))
            for row in rows:
                judged[row] = [next(values) for _ in texts[row].places]
        return judged

    def text(self, prompt: Prompt, completion: str) -> ScoredText:
        """A completion as the model reads it."""
        separator = self.model.settings.separator
        if self.model.kind != "process":
            text = whole_text(self.tokenizer, prompt, completion, self.limit)
        else:
            steps = split_steps(completion, separator)
            text = stepped_text(self.tokenizer, prompt, steps, self.limit, separator=separator)
        if not text.prompt and not self.tokenizer.prompt(prompt):
            raise UserError("a prompt has no tokens: give it at least one, such as the beginning-of-sequence token")
        return text

    def _read(self, texts: Sequence[ScoredText], device: torch.device) -> list[float]:
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
            raise not_finite("the reward model gives a score that is not a finite number", self.model)
        return self.model.meant(scores).tolist()


def load_scorer(
    directory: Path, device: torch.device, *, max_tokens: int | None = None, micro_batch_tokens: int | None = None
) -> Scorer:
    """The reward model of a directory with the tokeniser beside it, on a device."""
    model, tokenizer = load_reward_model(directory), load_tokenizer(directory)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} ids and the model {model.vocab_size}: "
            "they do not belong together, copy the right tokenizer there"
        )
    return Scorer(model.to(device), tokenizer, max_tokens=max_tokens, micro_batch_tokens=micro_batch_tokens)


def aggregated(probabilities: Sequence[float], how: Aggregation) -> float:
    """One number for a solution: the probability that all steps are fine, that of its worst or that of its last."""
    if how == "product":
        return math.prod(probabilities)
    return min(probabilities) if how == "min" else probabilities[-1]


def _fitted(
    tokenizer: Tokenizer, prompt: Prompt, completion: Sequence[int], places: Sequence[int], limit: int
) -> ScoredText:
    """As much of the prompt as fits before the completion, of which the end counts most where it is too long itself."""
    before, missing = fitting_prompt(tokenizer, prompt, limit - len(completion))
    cut = max(0, len(completion) - limit)
    return ScoredText(
        tokens=(*before, *completion[cut:]),
        prompt=len(before),
        places=tuple(len(before) + place - cut for place in places if place >= cut),
        cut=missing + cut,
    )


def _shared(text: ScoredText) -> int:
    """How many tokens other texts may have in common: the prompt, or the first token where that was cut off."""
    return max(1, text.prompt)


def _root(text: ScoredText) -> tuple[int, ...]:
    return text.tokens[: _shared(text)]


def _batches(texts: Sequence[ScoredText], micro_batch_tokens: int) -> Iterator[list[int]]:
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
        if some and tokens + cost > micro_batch_tokens:
            yield some
            some, tokens, cost = [], 0, len(text.tokens)
        some.append(row)
        tokens += cost
    if some:
        yield some
