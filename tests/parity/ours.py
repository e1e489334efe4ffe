"""Our side: rows of the table, composed as the update composes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.parity.tensors import Tensors
from whet.algorithms.cells import Cell, bind, call
from whet.algorithms.table import ALGORITHMS, Algorithm, token_loss
from whet.batching import global_weights
from whet.distributed.world import World

MAX_TOKENS = 16


def row(preset: str, *, kl: Cell | None = None, surrogate: Cell | None = None, **options: Any) -> Algorithm:
    """A row of the table; `options` are those of its surrogate."""
    algorithm = ALGORITHMS[preset]
    return replace(algorithm, kl=kl or algorithm.kl, surrogate=bind(surrogate or algorithm.surrogate, options))


def our_loss(
    algorithm: Algorithm,
    tensors: Tensors,
    *,
    kl_coefficient: float = 0.0,
    entropy: float = 0.0,
    correction: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and its gradients in the log-probs and in the entropies."""
    leaf, entropies = (t.clone().requires_grad_() for t in (tensors.logprobs, tensors.entropies))
    supply = supplied(tensors, logprobs=leaf, entropies=entropies)
    supply["correction"] = call(algorithm.importance_correction, supply) if correction is None else correction
    weights = global_weights(algorithm.weighting, tensors.mask, World.alone(), max_tokens=MAX_TOKENS)
    per_token = token_loss(algorithm, supply, kl_coefficient=kl_coefficient)
    bonus = (entropies * tensors.mask).sum() / tensors.mask.sum()
    return differentiated((per_token * weights).sum() - entropy * bonus, leaf, entropies)


def supplied(tensors: Tensors, **changed: Tensor) -> dict[str, Tensor]:
    """What the loop supplies to cells."""
    advantages = tensors.advantages[:, None] * tensors.mask
    return {**vars(tensors), "advantages": advantages, **changed}


def differentiated(loss: Tensor, leaf: Tensor, entropies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A loss with its gradients; zeros where it does not depend on an input."""
    gradients = torch.autograd.grad(loss, (leaf, entropies), allow_unused=True, materialize_grads=True)
    return loss.detach(), *gradients


def our_advantages(preset: str, rewards: Tensor, options: Mapping[str, Any] | None = None) -> Tensor:
    """The advantages of a row whose cell needs rewards alone, (P, G)."""
    advantages: Tensor = call(bind(ALGORITHMS[preset].advantage, options or {}), {"rewards": rewards})
    return advantages
