"""Rewards of completions by a reward model with its tokeniser.

Training builds its inputs with `whole_text` and `stepped_text` too, so truncation is the same in both.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
from whet.models.reward.settings import Aggregation, RewardSettings
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


class TextScorer(ABC):
    """Prompts and completions → one reward each; passes through the model are made here, or by others."""

    def __init__(
        self, tokenizer: Tokenizer, settings: RewardSettings, context: int, max_tokens: int | None = None
    ) -> None:
        """`max_tokens`: truncation of a text, by default as in training."""
        self.tokenizer, self.settings = tokenizer, settings
        self.limit = min(context, max_tokens or settings.max_tokens or context)
        self.truncated = 0  # texts that were truncated, over all calls

    @property
    @abstractmethod
    def pass_tokens(self) -> int:
        """The most tokens of a pass, but for a single text."""

    @abstractmethod
    def begin_passes(self, passes: Sequence[Sequence[ScoredText]]) -> Callable[[], Sequence[Sequence[float]]]:
        """What waits for the numbers at the places of each pass, text by text."""

    def score(self, prompts: Sequence[PromptText], completions: Sequence[str]) -> list[float]:
        """One reward each, higher is better.

        For a preference model it is the score, for an outcome model the probability that the completion is right, for a
        process model the aggregate of the probabilities that its steps are right.
        """
        return self.begin(prompts, completions)()

    def begin(self, prompts: Sequence[PromptText], completions: Sequence[str]) -> Callable[[], list[float]]:
        """What waits for the rewards of `score`."""
        scored = self._begun(prompts, completions)
        return lambda: [self._reward(places) for places in scored()]

    def steps(self, prompts: Sequence[PromptText], completions: Sequence[str]) -> list[list[float]]:
        """A process model's probability that each step is right."""
        if self.settings.kind != "process":
            raise UserError(f"a {self.settings.kind} reward model does not score steps: use a process reward model")
        return self._begun(prompts, completions)()

    def text(self, prompt: PromptText, completion: str) -> ScoredText:
        """A prompt and a completion as input of the model."""
        separator = self.settings.separator
        if self.settings.kind != "process":
            text = whole_text(self.tokenizer, prompt, completion, self.limit)
        else:
            steps = split_steps(completion, separator)
            text = stepped_text(self.tokenizer, prompt, steps, self.limit, separator=separator)
        if not text.prompt and not self.tokenizer.prompt(prompt):
            raise UserError("a prompt has no tokens: give it at least one, such as the beginning-of-sequence token")
        return text

    def _begun(self, prompts: Sequence[PromptText], completions: Sequence[str]) -> Callable[[], list[list[float]]]:
        """What waits for the score (preference) or probability (outcome, process) at each place of each text."""
        texts = [self.text(*pair) for pair in zip(prompts, completions, strict=True)]
        self.truncated += sum(text.cut > 0 for text in texts)
        batches = list(_batches(texts, self.pass_tokens))
        read = self.begin_passes([[texts[row] for row in rows] for rows in batches])

        def scored() -> list[list[float]]:
            found: list[list[float]] = [[] for _ in texts]
            for rows, numbers in zip(batches, read(), strict=True):
                values = iter(numbers)
                for row in rows:
                    found[row] = [next(values) for _ in texts[row].places]
            return found

        return scored

    def _reward(self, places: Sequence[float]) -> float:
        return aggregated(places, self.settings.aggregation) if self.settings.kind == "process" else places[0]


class Scorer(TextScorer):
    """A reward model with its tokeniser, in this process and without gradients."""

    def __init__(
        self,
        model: RewardModel,
        tokenizer: Tokenizer,
        *,
        max_tokens: int | None = None,
        micro_batch_tokens: int | None = None,
    ) -> None:
        """`max_tokens`: truncation of a text, by default as in training; `micro_batch_tokens`: tokens per pass."""
        super().__init__(tokenizer, model.settings, model.context, max_tokens)
        self.model, self.micro_batch_tokens = model, micro_batch_tokens

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def pass_tokens(self) -> int:
        return self.micro_batch_tokens or (CUDA_TOKENS if self.device.type == "cuda" else CPU_TOKENS)

    def begin(self, prompts: Sequence[PromptText], completions: Sequence[str]) -> Callable[[], list[float]]:
        """Nothing is done until it is waited for: the model may be in host memory before."""

        def rewards() -> list[float]:
            return super(Scorer, self).begin(prompts, completions)()

        return rewards

    def begin_passes(self, passes: Sequence[Sequence[ScoredText]]) -> Callable[[], Sequence[Sequence[float]]]:
        return lambda: [self.read(texts) for texts in passes]

    @torch.no_grad()
    def read(self, texts: Sequence[ScoredText]) -> list[float]:
        """The numbers at the places, text by text, in one pass; prompts that texts share are computed once."""
        device = self.device
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
