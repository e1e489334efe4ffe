"""`check_engine`: a conformance test for engines, as Gymnasium's check_env is for environments.

The level is how much an engine promises:

- `exact`: the same streams give the same completions, whatever else is in the batch, and log-probs equal the trainer's
  to 1e-5 (native);
- `seeded`: the same call gives the same tokens; log-probs agree on average, because kernels round differently (vLLM);
- `sampled`: nothing repeats; log-probs agree on average (a shared server).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from whet.batching import collate
from whet.engines.engine_protocol import Engine
from whet.errors import UserError
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import token_logprobs
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Completion, Prompt, Sampling

Level = Literal["exact", "seeded", "sampled"]
TOLERANCE: dict[Level, float] = {"exact": 1e-5, "seeded": 0.05, "sampled": 0.05}  # nats; the first of any token
COUNT = 3
SAMPLING = Sampling(max_tokens=8)
SURPRISE = 1.0  # nats a token: samples this unlikely are not equal by chance
Groups = list[list[Completion]]


class EngineProblem(UserError):
    """A violation of the engine protocol."""


def check_engine(
    engine: Engine,
    policy: CausalLM,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    level: Level = "exact",
    tolerance: float | None = None,
) -> None:
    """Raises EngineProblem at the first violation; `prompts` are at least two token sequences of different lengths.

    `tolerance` (nats) replaces the level's bound on the difference to the trainer's log-probs.
    """
    if level not in TOLERANCE:
        raise UserError(f"unknown level {level!r}: choose one of {', '.join(TOLERANCE)}")
    allowed = TOLERANCE[level] if tolerance is None else tolerance
    asked = [Prompt(tokens=tuple(tokens), stream=(7, index)) for index, tokens in enumerate(prompts)]
    check = _Check(engine, tokenizer, asked, level, allowed)
    engine.sync(policy, version=1)
    answers = check.sampled()
    check.shape(answers)
    check.streams(answers)
    check.repeats(answers)
    check.logprobs(policy, answers)
    check.greedy()
    check.sync(policy, answers)


@dataclass(frozen=True)
class _Check:
    engine: Engine
    tokenizer: Tokenizer
    asked: Sequence[Prompt]
    level: Level
    allowed: float  # nats

    def sampled(self) -> Groups:
        return self.engine.generate(self.asked, SAMPLING, count=COUNT)

    def shape(self, answers: Groups) -> None:
        if [len(group) for group in answers] != [COUNT] * len(self.asked):
            sizes = [len(group) for group in answers]
            raise EngineProblem(f"{len(self.asked)} prompts × {COUNT} gave groups of {sizes}")
        stops = self.tokenizer.stops
        for completion in (c for group in answers for c in group):
            tokens, logprobs = completion.tokens, completion.logprobs
            if not tokens or len(tokens) != len(logprobs):
                raise EngineProblem(f"{len(tokens)} tokens came with {len(logprobs)} log-probs")
            if max(logprobs) > 0:
                raise EngineProblem(f"a log-prob is positive: {max(logprobs)}")
            ended = tokens[-1] in stops
            if ended != (completion.finish == "stop"):
                does = "ends" if ended else "does not end"
                raise EngineProblem(f"finish is {completion.finish!r} and the last token {does} it")
            if not ended and len(tokens) != SAMPLING.max_tokens:
                raise EngineProblem(f"a completion was truncated after {len(tokens)} of {SAMPLING.max_tokens} tokens")
            if any(token in stops for token in tokens[:-1]):
                raise EngineProblem("a completion goes on after a token that ends it")

    def streams(self, answers: Groups) -> None:
        unlikely = [group for group in answers if -sum(group[0].logprobs) > SURPRISE * len(group[0].tokens)]
        if unlikely and all(len({completion.tokens for completion in group}) == 1 for group in unlikely):
            raise EngineProblem("the samples of a prompt are all the same: each must draw from its own stream")

    def repeats(self, answers: Groups) -> None:
        if self.level == "sampled":
            return
        again = self.sampled()
        if _tokens(again) != _tokens(answers) or (self.level == "exact" and again != answers):
            raise EngineProblem("the same prompts and streams gave other completions the second time")
        if self.level == "exact":
            alone = [self.engine.generate([prompt], SAMPLING, count=COUNT)[0] for prompt in self.asked]
            if _tokens(alone) != _tokens(answers):
                raise EngineProblem("a completion changes with what else is in the batch")

    def logprobs(self, policy: CausalLM, answers: Groups, because: str = "") -> None:
        apart = differences(policy, self.asked, answers, SAMPLING)
        if self.level == "exact":
            found, how = float(apart.max()), "by up to"
        else:
            found, how = float(apart.mean()), "on average by"
        if not found <= self.allowed:  # True for NaN too
            raise EngineProblem(
                f"log-probs differ from the trainer's {how} {found:.2g} nats; "
                f"at most {self.allowed:g} is allowed{because}"
            )

    def greedy(self) -> None:
        greedy = replace(SAMPLING, temperature=0.0)
        groups = self.engine.generate(self.asked, greedy, count=COUNT)
        self.shape(groups)
        if any(logprob != 0 for group in groups for c in group for logprob in c.logprobs):
            raise EngineProblem("a greedy token has a log-prob other than 0: there was nothing to draw")
        moved = [replace(prompt, stream=(8, *prompt.stream)) for prompt in self.asked]
        if self.level != "sampled" and _tokens(self.engine.generate(moved, greedy, count=COUNT)) != _tokens(groups):
            raise EngineProblem("greedy completions change with the stream: the most likely token does not")

    def sync(self, policy: CausalLM, before: Groups) -> None:
        other = copy.deepcopy(policy)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.5)
        self.engine.sync(other, version=2)
        after = self.sampled()
        same = [c.logprobs for g in after for c in g] == [c.logprobs for g in before for c in g]
        if self.level != "sampled" and same:
            raise EngineProblem("sync with other weights changed nothing: the engine samples with stale ones")
        self.logprobs(other, after, " (after sync with other weights: the engine samples with stale ones)")
        self.engine.sync(policy, version=3)
        back = self.sampled()
        if self.level == "exact" and back != before:
            raise EngineProblem("sync back to the first weights did not bring the first completions back")
        self.logprobs(policy, back, " (after sync back to the first weights)")


def _tokens(groups: Groups) -> list[list[tuple[int, ...]]]:
    return [[completion.tokens for completion in group] for group in groups]


@torch.no_grad()
def differences(
    policy: CausalLM, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]], sampling: Sampling
) -> Tensor:
    """(N,) on the CPU: |log-prob of the engine − log-prob of the policy| of every sampled token."""
    device = next(policy.parameters()).device
    pairs = [(prompt.tokens, c) for prompt, group in zip(prompts, groups, strict=True) for c in group]
    masks = [(False,) * len(prompt) + (True,) * len(c.tokens) for prompt, c in pairs]
    s = collate([prompt + c.tokens for prompt, c in pairs], masks, device)
    with autocast(device):
        logprobs, _ = token_logprobs(policy, s.tokens, s.lengths, s.mask, sampling)
    sampled = torch.tensor([logprob for _, c in pairs for logprob in c.logprobs])
    return (logprobs[s.mask].cpu() - sampled).abs()
