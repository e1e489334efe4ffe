"""The nouns that travel between the rooms of the library. Frozen; one sentence and a shape per field.

Letters: P prompts, G rollouts per prompt (a *group*), B = P·G sequences, T tokens. Index t of every array describes
token t of its sequence; index 0 is never trained because nothing predicts it. Imports no torch, so tasks need none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Finish = Literal["stop", "length"]

# The largest reward, and the largest part of one. Advantages, deviations and critics square rewards and add them up in
# fp32, which ends at 3.4e38: 1e15 leaves room for the squares of a hundred million rollouts.
LARGEST_REWARD = 1e15


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # "system", "user", "assistant"
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One row of a task."""

    id: str  # unique within its task; names the random streams of its rollouts
    prompt: str | tuple[Message, ...]  # plain text, or a conversation that ends before the assistant's answer
    answer: str  # a completion to imitate; it scores full marks unless the task has a `best` of its own
    columns: Mapping[str, Any] = field(default_factory=dict)  # JSON values that a reward may want to see
    twin: str = (
        ""  # equal for those that give each other away, which no split may part; empty: the prompt alone says so
    )

    @property
    def prompt_text(self) -> str:
        """The prompt as a person reads it: a conversation has one "role: content" line per message."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(f"{message.role}: {message.content}" for message in self.prompt)

    @property
    def plain_prompt(self) -> str | list[dict[str, str]]:
        """The prompt as JSON holds it: text, or messages as objects."""
        if isinstance(self.prompt, str):
            return self.prompt
        return [{"role": message.role, "content": message.content} for message in self.prompt]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The judge's record of one completion."""

    reward: float  # the one number that training sees
    parts: Mapping[str, float]  # what it is made of, before weights, by name


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """The distribution that tokens are drawn from, and when to stop."""

    max_tokens: int
    temperature: float = 1.0  # 0 means greedy: the most likely token, log-prob 0
    top_k: int = 0  # keep the k most likely tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest set with at least this mass; 1 keeps all
    min_p: float = 0.0  # keep tokens at least this likely relative to the most likely one
    stop: tuple[str, ...] = ()  # strings that end a completion; the string itself is kept

    @property
    def is_whole(self) -> bool:
        """Whether every token may be drawn."""
        return self.top_k == 0 and self.top_p == 1 and self.min_p == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What an engine is asked to continue."""

    tokens: tuple[int, ...]
    stream: tuple[int, ...]  # names the random stream; sample i of this prompt draws from (*stream, i)
    limit: int | None = None  # at most so many tokens, where that is less than the sampling's


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine answers. `tokens` and `logprobs` have the same length."""

    tokens: tuple[int, ...]  # the sampled ids, the end-of-sequence token included
    logprobs: tuple[float, ...]  # of each under the distribution that it was drawn from
    text: str  # decoded, without special tokens
    finish: Finish  # "stop": ended by itself; "length": cut off


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One finished trajectory as a flat sequence; the four arrays have the length of `tokens`."""

    example: Example
    tokens: tuple[int, ...]  # prompt and completion
    mask: tuple[bool, ...]  # True where the policy chose the token
    logprobs: tuple[float, ...]  # under the sampler; 0.0 where mask is False
    text: str  # the completion, decoded: what was graded
    finish: Finish
    version: int  # policy version that sampled it
    score: Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One supervised sequence, or a piece of one."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]  # True where the token is to be learned


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialogue:
    """An answer to imitate, and what it answers; of a conversation the earlier answers too."""

    id: str
    prompt: str | tuple[Message, ...]
    completion: str
    twin: str = ""  # as an example's


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two completions of a prompt, one of which was preferred."""

    id: str
    prompt: str | tuple[Message, ...]
    chosen: str
    rejected: str
    margin: float | None = None  # by how much, where the data says so; never below 0
    twin: str = ""  # as an example's


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled:
    """A completion that was liked or not."""

    id: str
    prompt: str | tuple[Message, ...]
    completion: str
    label: bool
    twin: str = ""  # as an example's


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """Completions of one problem, each right or wrong as a whole."""

    id: str
    prompt: str | tuple[Message, ...]
    completions: tuple[str, ...]
    correct: tuple[bool, ...]  # one for each completion
    twin: str = ""  # as an example's


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A solution step by step, each step judged: 1 good, 0 neither, −1 bad."""

    id: str
    prompt: str | tuple[Message, ...]
    steps: tuple[str, ...]
    labels: tuple[int, ...]  # one for each step
    twin: str = ""  # as an example's


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """Token sequences as right-padded tensors: what a model reads."""

    tokens: Tensor  # (B, T) int64; anything may stand in the padding
    mask: Tensor  # (B, T) bool: tokens that are trained
    lengths: Tensor  # (B,) int64: tokens before the padding


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Rollouts of one step, ready for updates."""

    sequences: Sequences
    prompts: Tensor  # (B,) int64: the number of the row's prompt among those of all ranks
    sampling: Sampling  # the distribution that the tokens were drawn from
    logprobs_old: Tensor | None  # (B, T) float: under the policy at the start of the step; None: it has not moved yet
    logprobs_sampled: Tensor | None  # (B, T) float: the sampler's, where they are still to be compared with those
    logprobs_ref: Tensor | None  # (B, T) float: under the reference, where the algorithm needs one
    advantages: Tensor  # (B, T) float
    correction: Tensor  # (B, T) float: weights for a sampler that was not quite the policy
    values: Tensor | None  # (B, T) float: of the critic at the start of the step
    targets: Tensor | None  # (B, T) float: what the critic should have said
    kl_coefficient: float
    entropy_coefficient: float
