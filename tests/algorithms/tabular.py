"""Policies small enough to list everything they can say: two letters and an end, one softmax per prefix.

A completion stops at the end token or after `max_tokens`, so lengths differ. Expectations here are sums over every
completion (or every batch of completions) times its probability: no sampling, no tolerance for noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import torch
from torch import Tensor

from whet.algorithms.advantages import gae, token_rewards, unscaled
from whet.algorithms.cells import bind, call, is_per_token
from whet.algorithms.policy_loss import sequence_sum
from whet.algorithms.table import ALGORITHMS, Algorithm, token_loss

END, VOCABULARY = 2, 3
Sequence = tuple[int, ...]


@dataclass(frozen=True)
class World:
    """All completions, and for each token the prefix it follows; (N, T) with zeros off the mask."""

    sequences: list[Sequence]
    prefixes: list[Sequence]
    states: Tensor
    tokens: Tensor
    mask: Tensor

    @property
    def max_tokens(self) -> int:
        return self.mask.shape[1]


def world(max_tokens: int, *, ragged: bool = True) -> World:
    """Every completion; without `ragged` the end token is a letter like the others."""
    unfinished: list[Sequence] = [()]
    prefixes: list[Sequence] = []
    finished: list[Sequence] = []
    for _ in range(max_tokens):
        prefixes += unfinished
        longer = [(*prefix, token) for prefix in unfinished for token in range(VOCABULARY)]
        finished += [s for s in longer if ragged and s[-1] == END]
        unfinished = [s for s in longer if not (ragged and s[-1] == END)]
    finished += unfinished
    mask = torch.tensor([[t < len(s) for t in range(max_tokens)] for s in finished])
    states = [[prefixes.index(s[:t]) if t < len(s) else 0 for t in range(max_tokens)] for s in finished]
    tokens = [[s[t] if t < len(s) else 0 for t in range(max_tokens)] for s in finished]
    return World(finished, prefixes, torch.tensor(states), torch.tensor(tokens), mask)


def policy(space: World, seed: int, *, prompts: int = 1, sharpness: float = 1.0) -> Tensor:
    """(P, prefixes, vocabulary) logits, to be differentiated by."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(prompts, len(space.prefixes), VOCABULARY, generator=generator, dtype=torch.float64)
    return (sharpness * drawn).requires_grad_()


def graded(space: World, seed: int, *, prompts: int = 1) -> Tensor:
    """(P, N): some reward for every completion."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(prompts, len(space.sequences), generator=generator, dtype=torch.float64)


def right_or_wrong(space: World, *right: Sequence) -> Tensor:
    """(1, N): 1 for these completions, 0 for the others."""
    return torch.tensor([[float(s in right) for s in space.sequences]], dtype=torch.float64)


def logprobs(space: World, logits: Tensor) -> Tensor:
    """(P, N, T)."""
    return logits.log_softmax(dim=2)[:, space.states, space.tokens] * space.mask


def chances(space: World, logits: Tensor) -> Tensor:
    """(P, N): the probability of every completion."""
    return logprobs(space, logits).sum(dim=2).exp()


def gradient(value: Tensor, logits: Tensor) -> Tensor:
    """What the value changes by with the logits; zero where it does not depend on them."""
    (found,) = torch.autograd.grad(value, logits, retain_graph=True, allow_unused=True, materialize_grads=True)
    return found


def true_gradient(space: World, logits: Tensor, rewards: Tensor) -> Tensor:
    """Of the expected reward, averaged over the prompts."""
    return gradient((chances(space, logits) * rewards).sum(dim=1).mean(), logits)


def expected_gradient(
    algorithm: Algorithm,
    space: World,
    logits: Tensor,
    rewards: Tensor,
    *,
    group: int = 1,
    sampler: Tensor | None = None,
    values: Tensor | None = None,
    extra: Callable[[list[int]], dict[str, Tensor]] = lambda _: {},
) -> Tensor:
    """Of −loss over every batch of P prompts × `group` completions that the sampler (or the policy) can produce."""
    prompts = len(logits)
    under_policy = logprobs(space, logits)
    under_sampler = logprobs(space, logits if sampler is None else sampler).detach()
    total = torch.zeros(())
    for drawn in product(range(len(space.sequences)), repeat=prompts * group):
        picked = (torch.arange(prompts).repeat_interleave(group), torch.tensor(drawn))
        mask = space.mask[picked[1]]
        supply = {
            "logprobs": under_policy[picked],
            "logprobs_old": under_policy[picked].detach(),
            "logprobs_sampled": under_sampler[picked],
            "rewards": rewards[picked].view(prompts, group),
            "counts": mask.sum(dim=1).view(prompts, group),
            "mask": mask,
            **({} if values is None else {"values": values[picked[0][:, None], space.states[picked[1]]]}),
            **extra(list(drawn)),
        }
        chance = prod(under_sampler[picked].sum(dim=1).exp().tolist())
        total = total + chance * batch_loss(algorithm, supply, space.max_tokens)
    return -gradient(total, logits)


def batch_loss(algorithm: Algorithm, supply: dict[str, Tensor], max_tokens: int) -> Tensor:
    """The loss of one batch, from the cells of the algorithm."""
    mask = supply["mask"]
    if is_per_token(algorithm.advantage):
        supply["token_rewards"] = token_rewards(supply["rewards"].flatten(), torch.zeros(mask.shape), mask)
    raw = call(algorithm.advantage, supply)
    per_token = raw if is_per_token(algorithm.advantage) else raw.reshape(-1, 1).expand(mask.shape)
    supply["advantages"] = call(algorithm.scaling, {**supply, "advantages": per_token})
    supply["correction"] = call(algorithm.importance_correction, supply)
    weights, count = call(algorithm.weighting, {"mask": mask, "max_tokens": max_tokens})
    return (token_loss(algorithm, supply) * weights).sum() / count


def any_values(space: World, seed: int, prompts: int = 1) -> Tensor:
    """(P, prefixes): a critic that knows nothing."""
    return torch.randn(prompts, len(space.prefixes), generator=torch.Generator().manual_seed(seed))


def ppo(lam: float) -> Algorithm:
    """PPO without what only rescales: whitening and the mean over tokens."""
    advantage = bind(gae, {"lam": lam})
    return replace(ALGORITHMS["ppo"], advantage=advantage, scaling=unscaled, weighting=sequence_sum)


def close(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding."""
    return torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def cosine(one: Tensor, other: Tensor) -> float:
    """1 where two gradients point the same way."""
    return float((one * other).sum() / (one.norm() * other.norm()))
