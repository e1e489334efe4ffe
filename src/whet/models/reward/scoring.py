"""Rewards of completions by a reward model with its tokeniser.

Training builds its inputs with `whole_text` and `stepped_text` too, so truncation is the same in both.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from whet.errors import UserError
from whet.models.decoder.decoder import Decoder
from whet.models.finite import not_finite
from whet.models.layers.decoder_config import autocast, on_device
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import Tokenizer
from whet.models.reward.reward_model import RewardModel, load_reward_model, pack_through
from whet.models.reward.settings import Aggregation
from whet.models.reward.shared_base import reward_model_on
from whet.models.text.tokenizers import PromptText, fitting_prompt

CPU_TOKENS, CUDA_TOKENS = 4096, 32_768  # default of micro_batch_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredText:
    """A prompt and a completion as input of a reward model."""

    tokens: tuple[int, ...]
    prompt: int  # length of the prompt in `tokens`; 0 if the completion leaves no room for it
    places: tuple[int, ...]  # indices of the tokens to score, ascending
    cut: int  # tokens that were truncated


def whole_text(
    tokenizer: Tokenizer, prompt: PromptText, completion: str, limit: int, *, every_token: bool = False
) -> ScoredText:
    """Prompt, completion and eos, scored at eos or at every token of the completion."""
    tokens = [*tokenizer.encode(completion), tokenizer.eos]
    places = range(0 if every_token else len(tokens) - 1, len(tokens))
    return _fitted(tokenizer, prompt, tokens, places, limit)


def stepped_text(
    tokenizer: Tokenizer, prompt: PromptText, steps: Sequence[str], limit: int, *, separator: str
) -> ScoredText:
    """Prompt and steps, each followed by the separator and scored at its last token.

    Separators within a step are replaced by spaces. Steps are encoded one by one, so that no token spans two of them.
    Truncation drops the first steps, which then have no score.
    """
    tokens: list[int] = []
    places = []
    for step in steps:
        tokens += tokenizer.encode(one_step(step, separator) + separator)
        places.append(len(tokens) - 1)
    return _fitted(tokenizer, prompt, tokens, places, limit)


def split_steps(completion: str, separator: str) -> list[str]:
    """The steps of a completion without blank ones; at least one."""
    return [step for step in completion.split(separator) if step.strip()] or [""]


def one_step(step: str, separator: str) -> str:
    """The step with separators replaced by spaces, so that `split_steps` finds it again as one.

    Nor may it end with the start of a separator: after "\\n", the separator "\\n\\n" would end the step too early.
    """
    space = " " if separator.strip(" ") else ""  # a separator of spaces is removed instead
    step = space.join(split_steps(step, separator))
    while (start := (step + separator).index(separator)) < len(step):
        step = f"{step[:start]}{space}{step[start + len(separator) :]}"
    return step


class Scorer:
    """A reward model with its tokeniser: prompts and completions → one reward each, without gradients."""

    def __init__(
        self,
        model: RewardModel,
        tokenizer: Tokenizer,
        *,
        max_tokens: int | None = None,
        micro_batch_tokens: int | None = None,
    ) -> None:
        """`max_tokens`: truncation of a text, by default as in training; `micro_batch_tokens`: tokens per pass."""
        self.model = model
        self.tokenizer = tokenizer
        self.limit = min(model.context, max_tokens or model.settings.max_tokens or model.context)
        self.micro_batch_tokens = micro_batch_tokens
        self.truncated = 0  # texts that were truncated, over all calls

    def score(self, prompts: Sequence[PromptText], completions: Sequence[str]) -> list[float]:
        """One reward each, higher is better.

        For a preference model it is the score, for an outcome model the probability that the completion is right, for a
        process model the aggregate of the probabilities that its steps are right.
        """
        scored = self._scored_pairs(prompts, completions)
        if self.model.kind == "process":
            return [aggregated(steps, self.model.settings.aggregation) for steps in scored]
        return [places[0] for places in scored]

    def steps(self, prompts: Sequence[PromptText], completions: Sequence[str]) -> list[list[float]]:
        """A process model's probability that each step is right."""
        if self.model.kind != "process":
            raise UserError(f"a {self.model.kind} reward model does not score steps: use a process reward model")
        return self._scored_pairs(prompts, completions)

    @torch.no_grad()
    def _scored_pairs(self, prompts: Sequence[PromptText], completions: Sequence[str]) -> list[list[float]]:
        """The score (preference) or probability (outcome, process) at each place of each text."""
        texts = [self.text(*pair) for pair in zip(prompts, completions, strict=True)]
        self.truncated += sum(text.cut > 0 for text in texts)
        device = next(self.model.parameters()).device
        micro_batch_tokens = self.micro_batch_tokens or (CUDA_TOKENS if device.type == "cuda" else CPU_TOKENS)
        scored: list[list[float]] = [[] for _ in texts]
        for rows in _batches(texts, micro_batch_tokens):
            values = iter(self._read([texts[row] for row in rows], device))
            for row in rows:
                scored[row] = [next(values) for _ in texts[row].places]
        return scored

    def text(self, prompt: PromptText, completion: str) -> ScoredText:
        """A prompt and a completion as input of the model."""
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
        """The rewards at the places, text by text; prompts that texts share are computed once."""
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
        with on_device(device), autocast(device):
            scores = self.model.scores(tokens.to(device), lengths.to(device), places.to(device), packing)
        if not bool(scores.isfinite().all()):
            raise not_finite("the reward model gives a score that is not a finite number", self.model)
        return self.model.meant(scores).tolist()


def load_scorer(
    directory: Path,
    device: torch.device,
    *,
    max_tokens: int | None = None,
    micro_batch_tokens: int | None = None,
    base: Decoder | None = None,
) -> Scorer:
    """The reward model and the tokeniser of a directory, on a device.

    With `base`, a policy with adapters, the directory is that of an adapter on the same frozen weights: it shares them.
    """
    model = load_reward_model(directory) if base is None else reward_model_on(base, directory)
    tokenizer = model_tokenizer(directory)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} ids and the model {model.vocab_size}: "
            "they do not belong together, copy the right tokenizer there"
        )
    return Scorer(model.to(device), tokenizer, max_tokens=max_tokens, micro_batch_tokens=micro_batch_tokens)


def aggregated(probabilities: Sequence[float], how: Aggregation) -> float:
    """The reward of a solution: the product of its steps' probabilities, the lowest, or the last one."""
    if how == "product":
        return math.prod(probabilities)
    return min(probabilities) if how == "min" else probabilities[-1]


def _fitted(
    tokenizer: Tokenizer, prompt: PromptText, completion: Sequence[int], places: Sequence[int], limit: int
) -> ScoredText:
    """The prompt truncated to fit before the completion; a completion that is too long keeps its end."""
    before, missing = fitting_prompt(tokenizer, prompt, limit - len(completion))
    cut = max(0, len(completion) - limit)
    return ScoredText(
        tokens=(*before, *completion[cut:]),
        prompt=len(before),
        places=tuple(len(before) + place - cut for place in places if place >= cut),
        cut=missing + cut,
    )


def _shared(text: ScoredText) -> int:
    """Length of the prefix that other texts may share: the prompt, or the first token if that was truncated."""
    return max(1, text.prompt)


def _root(text: ScoredText) -> tuple[int, ...]:
    return text.tokens[: _shared(text)]


def _batches(texts: Sequence[ScoredText], micro_batch_tokens: int) -> Iterator[list[int]]:
    """Indices of texts per pass, long ones first; a prompt that neighbours share counts once."""
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
