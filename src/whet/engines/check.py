"""`check_engine`: what any engine must do, checked on a real one, as Gymnasium's check_env checks environments."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from whet.batching import collate
from whet.engines.protocol import Engine
from whet.errors import UserError
from whet.models.logprobs import token_logprobs
from whet.models.precision import autocast
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Completion, Prompt, Sampling

COUNT = 3
MAX_TOKENS = 8


class EngineProblem(UserError):
    """What an engine does wrong, in a sentence."""


def check_engine(
    engine: Engine,
    policy: CausalLM,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    tolerance: float = 1e-5,
) -> None:
    """Raises EngineProblem with a sentence; `prompts` are at least two token sequences of different lengths."""
    sampling = Sampling(max_tokens=MAX_TOKENS)
    asked = [Prompt(tokens=tuple(tokens), stream=(7, index)) for index, tokens in enumerate(prompts)]
    engine.sync(policy, version=1)
    answers = engine.generate(asked, sampling, count=COUNT)
    _check_shape(answers, asked, tokenizer)
    if engine.generate(asked, sampling, count=COUNT) != answers:
        raise EngineProblem("the same prompts and streams gave other completions the second time")
    alone = [engine.generate([prompt], sampling, count=COUNT)[0] for prompt in asked]
    if [[c.tokens for c in group] for group in alone] != [[c.tokens for c in group] for group in answers]:
        raise EngineProblem("a completion changes with what else is in the batch")
    worst = _disagreement(policy, asked, answers, sampling)
    if worst > tolerance:
        raise EngineProblem(
            f"log-probs differ from the trainer's by up to {worst:.2g} nats; at most {tolerance:g} is allowed"
        )
    _check_sync(engine, policy, asked, sampling, answers)


def _check_shape(answers: list[list[Completion]], asked: Sequence[Prompt], tokenizer: Tokenizer) -> None:
    if [len(group) for group in answers] != [COUNT] * len(asked):
        raise EngineProblem(f"{len(asked)} prompts × {COUNT} gave groups of {[len(group) for group in answers]}")
    for completion in (c for group in answers for c in group):
        if not completion.tokens or len(completion.tokens) != len(completion.logprobs):
            raise EngineProblem(f"{len(completion.tokens)} tokens came with {len(completion.logprobs)} log-probs")
        if max(completion.logprobs) > 0:
            raise EngineProblem(f"a log-prob is positive: {max(completion.logprobs)}")
        ended = completion.tokens[-1] in tokenizer.stops
        if ended != (completion.finish == "stop"):
            raise EngineProblem(
                f"finish is {completion.finish!r} and the last token {'ends' if ended else 'does not end'} it"
            )
        if not ended and len(completion.tokens) != MAX_TOKENS:
            raise EngineProblem(f"a completion was cut off after {len(completion.tokens)} of {MAX_TOKENS} tokens")
        if any(token in tokenizer.stops for token in completion.tokens[:-1]):
            raise EngineProblem("a completion goes on after a token that ends it")


@torch.no_grad()
def _disagreement(
    policy: CausalLM, asked: Sequence[Prompt], answers: list[list[Completion]], sampling: Sampling
) -> float:
    """The largest difference between the engine's log-probs and the trainer's."""
    device = next(policy.parameters()).device
    pairs = [(p.tokens, c) for p, group in zip(asked, answers, strict=True) for c in group]
    tokens = [prompt + c.tokens for prompt, c in pairs]
    masks = [(False,) * len(prompt) + (True,) * len(c.tokens) for prompt, c in pairs]
    s = collate(tokens, masks, device)
    with autocast(device):
        logprobs, _ = token_logprobs(policy, s.tokens, s.lengths, s.mask, sampling)
    sampled = torch.tensor([logprob for _, c in pairs for logprob in c.logprobs])
    return float((logprobs[s.mask].cpu() - sampled).abs().max())


def _check_sync(
    engine: Engine,
    policy: CausalLM,
    asked: Sequence[Prompt],
    sampling: Sampling,
    before: list[list[Completion]],
) -> None:
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    engine.sync(other, version=2)
    after = engine.generate(asked, sampling, count=COUNT)
    engine.sync(policy, version=3)
    if [c.logprobs for group in after for c in group] == [c.logprobs for group in before for c in group]:
        raise EngineProblem("sync with other weights changed nothing: the engine samples with stale ones")
    if engine.generate(asked, sampling, count=COUNT) != before:
        raise EngineProblem("sync back to the first weights did not bring the first completions back")
