"""The records that the packages of the library exchange. Imports no torch, so tasks need none.

P prompts, G rollouts per prompt (a *group*), B = P·G sequences, T tokens. Index t of every array describes token t of
its sequence; index 0 is never trained because nothing predicts it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Finish = Literal["stop", "length"]

# Bound on rewards and their parts. Advantages and critics sum squared rewards in fp32, which ends at 3.4e38:
# 1e15 leaves room for the squares of a hundred million rollouts.
LARGEST_REWARD = 1e15
PART = "mixture_part"  # column of examples of a mixture


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call of a tool in a message of the assistant."""

    name: str
    arguments: str  # a JSON object
    id: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON, in OpenAI's layout."""
        called = {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}
        return {"id": self.id, **called} if self.id else called


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # "system", "user", "assistant", or "tool": the result of a call
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of the assistant, after the content
    name: str = ""  # of the tool that gave this result
    call_id: str = ""  # of the call that it answers
    tools: tuple[str, ...] = ()  # of the first message: definitions of what can be called, each a JSON object

    @property
    def has_tools(self) -> bool:
        """Whether it is more than a role and a text."""
        return self.role == "tool" or bool(self.tool_calls or self.tools)

    def plain(self) -> dict[str, Any]:
        """As JSON: role and content, and what else there is of it."""
        more = {
            "tool_calls": [call.plain() for call in self.tool_calls],
            "name": self.name,
            "tool_call_id": self.call_id,
            "tools": [json.loads(one) for one in self.tools],
        }
        return {"role": self.role, "content": self.content, **{key: value for key, value in more.items() if value}}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Message:
        """The message that `plain` wrote."""
        calls = [
            ToolCall(name=one["function"]["name"], arguments=one["function"]["arguments"], id=one.get("id", ""))
            for one in data.get("tool_calls", ())
        ]
        return Message(
            role=data["role"],
            content=data["content"],
            tool_calls=tuple(calls),
            name=data.get("name", ""),
            call_id=data.get("tool_call_id", ""),
            tools=tuple(json.dumps(one, ensure_ascii=False) for one in data.get("tools", ())),
        )

    def shown(self) -> str:
        """For display: "role: content", a line for each call, and before it one for each tool that can be called."""
        tools = [f"tool: {one}\n" for one in self.tools]
        calls = [f"\ncall: {call.name} {call.arguments}" for call in self.tool_calls]
        return f"{''.join(tools)}{self.role}{f' {self.name}' * bool(self.name)}: {self.content}{''.join(calls)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompted:
    """The fields that tasks' examples and training rows share."""

    id: str
    prompt: str | tuple[Message, ...]  # plain text, or a conversation that ends before the assistant's answer
    twin: str = ""  # leakage group: rows that would leak into each other, never split across train and eval

    @property
    def prompt_text(self) -> str:
        """The prompt for display: a conversation has one "role: content" line per message."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(message.shown() for message in self.prompt)

    @property
    def plain_prompt(self) -> str | list[dict[str, Any]]:
        """The prompt as JSON: text, or messages as objects."""
        if isinstance(self.prompt, str):
            return self.prompt
        return [message.plain() for message in self.prompt]


@dataclass(frozen=True, kw_only=True, slots=True)
class Example(Prompted):
    """One row of a task; its `id` is unique in the task and names the random streams of its rollouts."""

    answer: str  # a completion to imitate; it scores full marks unless the task is `Improvable`
    columns: Mapping[str, Any] = field(default_factory=dict)  # JSON values for reward functions

    @property
    def part(self) -> str:
        """The part of a mixture that it belongs to; empty if there is no mixture."""
        return str(self.columns.get(PART, ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The grade of one completion."""

    reward: float  # what training uses; NaN: none, because the reward failed on this completion
    parts: Mapping[str, float]  # its components by name, unweighted
    extra: Mapping[str, Any] = field(default_factory=dict)  # what reward functions noted of it with `log_extra`
    logged: Mapping[str, float] = field(default_factory=dict)  # what they measured of its batch with `log_metric`
    token_rewards: tuple[float, ...] = ()  # of each sampled token, `reward` is their sum; none: it is of the whole

    @property
    def is_missing(self) -> bool:
        """Whether the completion has no reward: it is neither trained on nor part of any mean."""
        return math.isnan(self.reward)

    @property
    def remarks(self) -> dict[str, Any]:
        """`extra` and `logged` as plain data, each only where it holds something."""
        both = {"extra": dict(self.extra), "logged": dict(self.logged)}
        return {name: values for name, values in both.items() if values}


NO_SCORE = Score(reward=math.nan, parts={})


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of a conversation with an environment: what the policy wrote, and what it was answered."""

    tokens: int  # of the policy
    text: str  # what it wrote, decoded, as the environment read it
    reward: float = 0.0  # of the environment for this turn
    observation: str = ""  # the environment's answer
    observed: int = 0  # tokens of it between this turn and the next; 0: none followed


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """What reward functions may ask for of a batch of completions besides their texts."""

    tokens: tuple[tuple[int, ...], ...]  # of each completion, ends of sequences and observations included
    finish: tuple[Finish, ...]
    step: int  # finished steps of the run
    steps: int  # of the whole run
    logprobs: tuple[tuple[float, ...], ...] = ()  # of the tokens, under the sampler; not offered to reward functions
    turns: tuple[tuple[Turn, ...], ...] = ()  # of each conversation with an environment; nor these
    failures: tuple[str, ...] = ()  # of the environment, "" where it did not fail; nor these

    def rows(self, rows: Sequence[int]) -> Sampled:
        """The same of these rows."""
        return replace(
            self,
            tokens=tuple(self.tokens[row] for row in rows),
            finish=tuple(self.finish[row] for row in rows),
            logprobs=tuple(self.logprobs[row] for row in rows) if self.logprobs else (),
            turns=tuple(self.turns[row] for row in rows) if self.turns else (),
            failures=tuple(self.failures[row] for row in rows) if self.failures else (),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Sampling parameters and stop conditions."""

    max_tokens: int
    temperature: float = 1.0  # 0 means greedy: the most likely token, log-prob 0
    top_k: int = 0  # keep the k most likely tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest set with at least this mass; 1 keeps all
    min_p: float = 0.0  # keep tokens at least this likely relative to the most likely one
    stop: tuple[str, ...] = ()  # stop strings; the string itself is kept
    min_tokens: int = 0  # none of `endings` is sampled before
    repetition_penalty: float = (
        1.0  # on tokens of prompt and completion: a positive logit is divided by it, others times it
    )
    endings: tuple[int, ...] = ()  # ids that end a completion; set only where min_tokens needs them

    @property
    def is_whole(self) -> bool:
        """Whether no token is filtered out or penalised."""
        return self.top_k == 0 and self.top_p == 1 and self.min_p == 0 and not self.has_memory

    @property
    def has_memory(self) -> bool:
        """Whether the distribution depends on the tokens before, beyond the model."""
        return self.min_tokens > 0 or self.repetition_penalty != 1

    def ended_by(self, stops: Iterable[int]) -> Sampling:
        """The same with the ids that end a completion, where they matter."""
        return replace(self, endings=tuple(sorted(stops))) if self.min_tokens else self


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The input of an engine."""

    tokens: tuple[int, ...]
    stream: tuple[int, ...]  # names the random stream: sample i draws from (*stream, i)
    limit: int | None = None  # overrides a larger max_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The output of an engine, or a whole conversation. `tokens` and `logprobs` have the same length."""

    tokens: tuple[int, ...]  # the sampled ids, the end-of-sequence token included, and those of observations
    logprobs: tuple[float, ...]  # under the sampling distribution; 0.0 of observations
    text: str  # decoded, without special tokens; of a conversation its outcome, which is graded
    finish: Finish  # "stop", or "length": truncated
    versions: tuple[int, ...] = ()  # of the weights that sampled each token, where several did
    turns: tuple[Turn, ...] = ()  # of a conversation; none: the policy sampled all tokens
    failure: str = ""  # what went wrong in the environment, which then has no reward to give

    @property
    def mask(self) -> tuple[bool, ...]:
        """True on tokens of the policy."""
        if not self.turns:
            return (True,) * len(self.tokens)
        return tuple(chain.from_iterable((True,) * turn.tokens + (False,) * turn.observed for turn in self.turns))

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(turn.tokens for turn in self.turns) if self.turns else len(self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One finished trajectory as a flat sequence; the arrays have the length of `tokens`."""

    example: Example
    tokens: tuple[int, ...]  # prompt and completion
    mask: tuple[bool, ...]  # True on tokens of the policy
    logprobs: tuple[float, ...]  # under the sampler; 0.0 where mask is False
    text: str  # the decoded completion, as graded
    finish: Finish
    version: int  # policy version that sampled it, or the first one
    score: Score
    versions: tuple[int, ...] = ()  # of every sampled token, where several did (in-flight updates)
    turns: tuple[Turn, ...] = ()  # of a conversation with an environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One supervised sequence, or a piece of one."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]  # True on trained tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialogue(Prompted):
    """SFT: a prompt and the answer to imitate."""

    completion: str
    untrained: tuple[int, ...] = ()  # answers in the prompt that are not imitated (`weight: 0` in the data)
    message: Message | None = None  # the answer itself where it calls tools; `completion` is then its text

    @property
    def answer(self) -> str | Message:
        return self.message or self.completion


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(Prompted):
    """Language modelling: every token of `prompt`, a plain text, is trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair(Prompted):
    """A preference between two completions of a prompt."""

    chosen: str
    rejected: str
    margin: float | None = None  # strength of the preference, if the data states one; never negative
    chosen_message: Message | None = None  # the answer itself where it calls tools
    rejected_message: Message | None = None

    @property
    def answers(self) -> tuple[str | Message, str | Message]:
        return self.chosen_message or self.chosen, self.rejected_message or self.rejected


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled(Prompted):
    """A completion labelled desirable or not (unpaired preference)."""

    completion: str
    label: bool
    message: Message | None = None  # the answer itself where it calls tools

    @property
    def answer(self) -> str | Message:
        return self.message or self.completion


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes(Prompted):
    """Completions of one problem, each correct or not (outcome supervision)."""

    completions: tuple[str, ...]
    correct: tuple[bool, ...]  # one per completion


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates(Prompted):
    """Completions of one prompt to score and rank, with or without known scores."""

    completions: tuple[str, ...]
    scores: tuple[float, ...] | None = None  # one per completion, higher is better; None: unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace(Prompted):
    """A solution with a label per step (process supervision): 1 good, 0 neither, −1 bad."""

    steps: tuple[str, ...]
    labels: tuple[int, ...]  # one per step


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """Token sequences as right-padded tensors."""

    tokens: Tensor  # (B, T) int64; padding is arbitrary
    mask: Tensor  # (B, T) bool: trained tokens
    lengths: Tensor  # (B,) int64: tokens before the padding


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Rollouts of one step for the policy update."""

    sequences: Sequences
    prompts: Tensor  # (B,) int64: prompt number, over all ranks
    rows: Tensor  # (B,) int64: which rows these are of the whole batch of the step, on this rank
    sampling: Sampling  # of the rollouts
    logprobs_old: Tensor | None  # (B, T) float: under the policy at the start of the step; None before the first update
    logprobs_sampled: Tensor | None  # (B, T) float: the sampler's, if not yet compared with the trainer's
    logprobs_ref: Tensor | None  # (B, T) float: under the reference, if the algorithm needs it
    advantages: Tensor  # (B, T) float
    correction: Tensor  # (B, T) float: importance weights for the sampler's mismatch
    values: Tensor | None  # (B, T) float: the critic's at the start of the step
    targets: Tensor | None  # (B, T) float: value targets of the critic
    kl_coefficient: float
    entropy_coefficient: float
