"""Plays conversations: an engine samples their turns, and between them their environments answer.

What the policy wrote is never tokenised again: a conversation is its prompt, the sampled ids, and the ids of the
observations between them. The first turn of a group is sampled as completions of one prompt always are; turn t draws
from the stream (…, sample, t), so a conversation of one turn is the same, token by token, as a plain completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from whet.engines.engine_protocol import Engine
from whet.engines.rounds import converse
from whet.errors import RunFailed, UserError
from whet.models.protocol import Tokenizer
from whet.records import Completion, Example, Finish, Message, Prompt, Sampling, Turn
from whet.tasks.stepping.replies import Environments, Reply

Conversations = list[tuple[Prompt, list[Completion]]]  # each prompt with its first observation, and its conversations
Play = Callable[[Engine, Sequence[Prompt], Sampling, int], Conversations]  # `Conductor.play` of given examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Conductor:
    """Plays the conversations of one task."""

    environments: Environments
    tokenizer: Tokenizer
    max_turns: int | None  # of a conversation; None: until its tokens are used up
    context: int | None  # of the model; None: it is not known

    def about(self, examples: Sequence[Example]) -> Play:
        """Plays conversations about these examples."""
        return partial(self.play, examples)

    def play(
        self, examples: Sequence[Example], engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, count: int
    ) -> Conversations:
        """`count` conversations about each example. `sampling.max_tokens` is of all turns of one together."""
        if not examples:
            return []
        first = self.environments.begin([example for example in examples for _ in range(count)])
        opened = [
            self._opened(example, prompt, first[place * count : (place + 1) * count])
            for place, (example, prompt) in enumerate(zip(examples, prompts, strict=True))
        ]
        talks = [
            _Conversation(
                number=number,
                sample=number % count,
                prompt=opened[number // count],
                is_chat=not isinstance(examples[number // count].prompt, str),
                outcome="" if reply.failure else reply.outcome,
                failure=reply.failure,
            )
            for number, reply in enumerate(first)
        ]

        def reply(ended: Mapping[int, Completion]) -> dict[int, Prompt]:
            some = [talks[number] for number in ended]
            self._end_turn(some, list(ended.values()), sampling)
            return {one.number: one.next_prompt(sampling) for one in some if one.finish is None}

        converse(engine, opened, sampling, reply, count=count, overlaps=not self.environments.is_instant)
        done = [one.completion() for one in talks]
        return [(prompt, done[place * count : (place + 1) * count]) for place, prompt in enumerate(opened)]

    def _opened(self, example: Example, prompt: Prompt, replies: Sequence[Reply]) -> Prompt:
        """The prompt with the first observation; all conversations about an example begin alike."""
        observations = {reply.observation for reply in replies if not reply.failure}
        if len(observations) > 1:
            raise RunFailed(
                f"the environment began example {example.id} with different observations: what reset gives must depend "
                "on the example alone, because the rollouts of a group share their prompt"
            )
        if any(reply.done for reply in replies):
            raise RunFailed(f"the environment of example {example.id} is done before the first turn")
        observation = next(iter(observations), "")
        if not observation:
            return prompt
        return replace(prompt, tokens=tuple(self.tokenizer.prompt(_with_observation(example, observation))))

    def _end_turn(self, talks: Sequence[_Conversation], written: Sequence[Completion], sampling: Sampling) -> None:
        """Enters what each of these wrote, and what its environment answers to it."""
        for talk, completion in zip(talks, written, strict=True):
            talk.write(completion)
        asked = {talk.number: talk for talk in talks if talk.finish is None}
        replies = self.environments.step({number: talk.turns[-1].text for number, talk in asked.items()})
        for number, talk in asked.items():
            talk.hear(replies[number])
            if talk.finish is None:
                self._go_on(talk, replies[number], sampling.max_tokens)

    def _go_on(self, talk: _Conversation, reply: Reply, max_tokens: int) -> None:
        """Appends the observation if there is another turn; otherwise the conversation is truncated."""
        is_over = len(talk.turns) == self.max_turns or talk.spent >= max_tokens
        if not is_over:
            ids = self._reply_ids(talk, reply)
            length = len(talk.prompt.tokens) + len(talk.tokens) + len(ids)
            is_over = self.context is not None and length >= self.context
        if is_over:
            talk.finish = "length"
        else:
            talk.observe(ids)

    def _reply_ids(self, talk: _Conversation, reply: Reply) -> list[int]:
        said: str | Sequence[Message] = reply.observation
        if talk.is_chat:
            own = reply.messages and self.tokenizer.takes_tools
            said = reply.messages if own else [Message(role="user", content=reply.observation)]
        return self.tokenizer.reply(said, after=talk.tokens[-1])


@dataclass(kw_only=True, slots=True)
class _Conversation:
    """One conversation under way."""

    number: int  # of all
    sample: int  # of its group
    prompt: Prompt
    is_chat: bool
    outcome: str | None  # as the environment says
    failure: str
    tokens: list[int] = field(default_factory=list)  # after the prompt
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def spent(self) -> int:
        """Tokens of the policy."""
        return sum(turn.tokens for turn in self.turns)

    def next_prompt(self, sampling: Sampling) -> Prompt:
        return Prompt(
            tokens=self.prompt.tokens + tuple(self.tokens),
            stream=(*self.prompt.stream, self.sample, len(self.turns)),
            limit=sampling.max_tokens - self.spent,
        )

    def write(self, completion: Completion) -> None:
        """The policy's turn; one that is cut off, or that its environment cannot hear, is the last."""
        if any(token < 0 for token in completion.tokens):
            raise UserError(
                "the engine does not tell the ids of what it samples, and the next turn of a conversation goes on from "
                "them: use engine.name=native or vllm, or a model on this machine"
            )
        self.tokens += completion.tokens
        self.logprobs += completion.logprobs
        self.turns.append(Turn(tokens=len(completion.tokens), text=completion.text))
        if self.failure or completion.finish == "length":
            self.finish = "length"

    def hear(self, reply: Reply) -> None:
        """The environment's answer to the newest turn."""
        self.turns[-1] = replace(self.turns[-1], reward=reply.reward, observation=reply.observation)
        self.outcome, self.failure = "" if reply.failure else reply.outcome, reply.failure
        if reply.failure:
            self.finish = "length"
        elif reply.done:
            self.finish = "stop"

    def observe(self, ids: Sequence[int]) -> None:
        """The tokens of the observation, before the next turn."""
        self.tokens += ids
        self.logprobs += [0.0] * len(ids)
        self.turns[-1] = replace(self.turns[-1], observed=len(ids))

    def completion(self) -> Completion:
        assert self.finish is not None
        return Completion(
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            text=self.turns[-1].text if self.outcome is None else self.outcome,
            finish=self.finish,
            turns=tuple(self.turns),
            failure=self.failure and f"{self.failure} (turn {len(self.turns)})",
        )


def _with_observation(example: Example, observation: str) -> str | tuple[Message, ...]:
    """The prompt with an observation at its end: in a conversation, of the user's newest message."""
    if isinstance(example.prompt, str):
        return example.prompt + observation
    *earlier, last = example.prompt
    if last.role == "user":
        return (*earlier, replace(last, content=f"{last.content}\n\n{observation}"))
    return (*example.prompt, Message(role="user", content=observation))
