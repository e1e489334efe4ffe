"""The real side: the cells of the table put together the way the loop puts them together, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from whet.algorithms.advantages import token_rewards
from whet.algorithms.cells import call, is_per_token
from whet.algorithms.table import Algorithm, token_loss

from .batches import MAX_TOKENS, Case


def tensors(case: Case) -> dict[str, Tensor]:
    """The case under the names that cells ask for."""
    names = {"new": "logprobs", "old": "logprobs_old", "ref": "logprobs_ref", "sampled": "logprobs_sampled"}
    return {names.get(key, key): torch.tensor(value) for key, value in vars(case).items()}


def only(supply: dict[str, Tensor], groups: Tensor) -> dict[str, Tensor]:
    """The groups that are kept."""
    rows = groups.repeat_interleave(supply["rewards"].shape[1])
    size = {len(groups): groups, len(rows): rows}
    return {key: value if key == "history" else value[size[len(value)]] for key, value in supply.items()}


def advantages(algorithm: Algorithm, supply: dict[str, Tensor], kl_coefficient: float) -> Tensor:
    """(B, T), the KL taken out of the rewards where the method wants it there."""
    mask, rewards = supply["mask"], supply["rewards"]
    penalties = torch.zeros(mask.shape)
    if algorithm.kl_place == "reward":
        penalties = kl_coefficient * call(algorithm.kl, {**supply, "logprobs": supply["logprobs_old"]})
    paid = rewards - (penalties * mask).sum(dim=1).view(rewards.shape)
    if is_per_token(algorithm.advantage):
        raw = call(algorithm.advantage, {**supply, "token_rewards": token_rewards(rewards.view(-1), penalties, mask)})
    else:
        raw = call(algorithm.advantage, {**supply, "rewards": paid}).reshape(-1, 1).expand(mask.shape)
    scaled: Tensor = call(algorithm.scaling, {"advantages": raw, "mask": mask, "rewards": paid})
    return scaled


def step_loss(
    algorithm: Algorithm, case: Case, *, kl_coefficient: float = 0.0, entropy: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The loss of a step, and the log-probs of all rollouts that it can be differentiated by."""
    supply = tensors(case)
    logprobs = supply["logprobs"].requires_grad_()
    supply = only(supply, algorithm.dynamic_sampling(supply["rewards"]))
    supply["advantages"] = advantages(algorithm, supply, kl_coefficient).detach()
    supply["correction"] = call(algorithm.importance_correction, supply)
    weights, count = call(algorithm.weighting, {**supply, "max_tokens": MAX_TOKENS})
    per_token = token_loss(algorithm, supply, kl_coefficient=kl_coefficient)
    bonus = (supply["entropies"] * supply["mask"]).sum() / supply["mask"].sum()
    return (per_token * weights).sum() / count - entropy * bonus, logprobs
