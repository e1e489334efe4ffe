"""A policy that is a table of logits, judged rollouts of it, and a learner around it: small enough for sums by hand."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tests.contracts.command import online
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.models.layers.packing import Packing
from whet.records import Batch, Example, Finish, Rollout, Score
from whet.rollout import Group
from whet.train.online.annotate import annotate
from whet.train.online.critic import Critic
from whet.train.online.learner import ControllerState, Learner, StepOutcome
from whet.train.online.reference import Reference
from whet.train.online.sampling import SampledGroups
from whet.train.online.update import update
from whet.train.setup.chosen_algorithm import build_algorithm

ALONE = World.alone()
VOCABULARY = 4
# Prompt of one token, then the completion. Two prompts, two rollouts each.
TOKENS = [[(0, 1, 2), (0, 3)], [(1, 2, 2, 0), (1, 0)]]
REWARDS = [[1.0, 0.0], [0.25, 0.75]]
FLAT = [tokens for row in TOKENS for tokens in row]


class Table(nn.Module):
    """The next token depends on the last one alone: row i of `logits` holds what follows token i."""

    gradient_checkpointing, head_weight = False, None
    context, vocab_size = 16, VOCABULARY

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed)))

    def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens, VOCABULARY).float()

    def hidden_packed(self, packing: Packing) -> Tensor:
        return nn.functional.one_hot(packing.tokens, VOCABULARY).float()

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self.logits


def logprob(table: Any, before: int, token: int) -> float:
    row = table.logits[before].tolist()
    return float(row[token] - math.log(sum(math.exp(x) for x in row)))


def gaps(policy: Any, reference: Any) -> list[list[float]]:
    """log π − log π_ref of every choice, rollout by rollout."""
    return [[logprob(policy, a, b) - logprob(reference, a, b) for a, b in pairwise(tokens)] for tokens in FLAT]


def rollout_of(
    table: Any, tokens: tuple[int, ...], reward: float, *, error: float = 0.0, finish: Finish = "stop"
) -> Any:
    return Rollout(
        example=Example(id="x", prompt="", answer=""),
        tokens=tokens,
        mask=(False, *(True,) * (len(tokens) - 1)),
        logprobs=(0.0, *(logprob(table, a, b) + error for a, b in pairwise(tokens))),
        text="",
        finish=finish,
        version=3,
        score=Score(reward=reward, parts={}),
    )


def groups_of(table: Any, *, error: float = 0.0, rewards: Any = REWARDS) -> list[Group]:
    return [
        [rollout_of(table, tokens, reward, error=error) for tokens, reward in zip(row, given, strict=True)]
        for row, given in zip(TOKENS, rewards, strict=True)
    ]


def config_of(algorithm: dict[str, Any], *, sections: dict[str, Any] | None = None, **update: Any) -> OnlineConfig:
    written = online("unused", algorithm=algorithm, update={"max_grad_norm": 1e9, **update})
    written["rollout"] = {"prompts": 2, "group": 2, "max_tokens": 8}
    written["eval"] |= {"max_tokens": 8}
    for name, section in (sections or {}).items():
        written[name] = {**written.get(name, {}), **section}
    return OnlineConfig.model_validate(written)


def learner_of(policy: Any, config: OnlineConfig, reference: Any = None, *, optimizer: Any = None) -> Learner:
    """By default nothing moves: the gradients stay to be looked at."""
    algorithm = build_algorithm(config.algorithm)
    return Learner(
        policy=policy,
        optimizer=optimizer or torch.optim.SGD(policy.parameters(), lr=0.0),
        algorithm=algorithm,
        reference=None if reference is None else Reference(reference),
        critic=Critic(policy, config) if algorithm.needs_values else None,
        config=config,
        world=ALONE,
    )


def annotated(
    learner: Learner, groups: list[Group], memory: ControllerState | None = None, *, tokens: int = 0
) -> tuple[Batch, StepOutcome, dict[str, float]]:
    sampled_groups = SampledGroups(learner.config.rollout, learner.algorithm, ALONE)
    sampled_groups.add(groups)
    memory = memory or ControllerState(kl_coefficient=learner.config.algorithm.kl.coefficient)
    return annotate(learner, sampled_groups, memory.step_settings(learner.config, tokens=tokens))


def prepared(
    policy: Any, config: OnlineConfig, reference: Any = None, **options: Any
) -> tuple[Batch, dict[str, float]]:
    batch, _, metrics = annotated(learner_of(policy, config, reference), groups_of(policy, **options))
    return batch, metrics


def follow(policy: Any, batch: Batch, config: OnlineConfig, optimizer: Any = None) -> dict[str, float]:
    return update(learner_of(policy, config, optimizer=optimizer), batch, step=1)


def pull(policy: Any, weights: list[list[float]]) -> Tensor:
    """−Σ weight · d log π / d logits, written out: one-hot minus softmax in the row of the token before."""
    gradient = torch.zeros(VOCABULARY, VOCABULARY)
    for tokens, row in zip(FLAT, weights, strict=True):
        for before, token, weight in zip(tokens, tokens[1:], row, strict=False):
            one_hot = torch.nn.functional.one_hot(torch.tensor(token), VOCABULARY)
            gradient[before] -= weight * (one_hot - policy.logits[before].detach().softmax(-1))
    return gradient
