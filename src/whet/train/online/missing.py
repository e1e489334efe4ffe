"""Rollouts without a reward, on which a reward function failed: they are left out of baselines, statistics and loss.

A step is then what it would be if these rollouts had not been sampled. Cells see no missing value: those that compare
the rollouts of a prompt are called once for each number of rollouts that prompts have left, the others with every
rollout as a group of its own.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from whet.algorithms.advantages import over_valid
from whet.algorithms.cells import Cell, plain
from whet.algorithms.table import ADVANTAGES, GROUP_STATISTICS
from whet.train.optimizers.optimizer import ask

BY_ROLLOUT = ("rewards", "counts")  # terms of shape (P, G)
BY_TOKEN = ("token_rewards", "values", "logprobs_old", "logprobs_ref", "tokens", "mask")  # (B, T)


def least_rollouts(advantage: Cell, group: int) -> int:
    """How many rollouts of a prompt must have a reward for it to be trained on."""
    return min(2, group) if _compares(advantage) else 1


def filled(rewards: Sequence[float | None]) -> list[float]:
    """Rewards of a group for dynamic sampling, with one of the others in place of a missing one."""
    one = next((reward for reward in rewards if reward is not None), 0.0)
    return [one if reward is None else reward for reward in rewards]


def is_enough(rewards: Sequence[float | None], advantage: Cell) -> bool:
    """Whether so many rollouts of a prompt have a reward that it can be trained on."""
    return sum(reward is not None for reward in rewards) >= least_rollouts(advantage, len(rewards))


def ask_present(
    cell: Cell, supply: Mapping[str, Tensor], present: Tensor, *, shapes: Sequence[Sequence[int]]
) -> Tensor:
    """The result of an advantage cell without the rollouts that are not `present` (P, G), which get 0; some are not.

    `shapes`: (P, G) and, where the cell may tell tokens apart, (B, T).
    """
    if plain(cell) is over_valid:
        return ask(cell, {**supply, "rewards": _with_means(supply["rewards"], present)}, shapes=shapes) * present
    result: Tensor | None = None
    for rows, size in _pieces(cell, present):
        some = _narrowed(supply, rows, size, group=present.shape[1])
        allowed = [(len(rows) // size, size), *((len(rows), shape[1]) for shape in shapes[1:])]
        found = ask(cell, some, shapes=allowed)
        is_by_rollout = tuple(found.shape) == allowed[0]
        if result is None:
            shape = shapes[0] if is_by_rollout else shapes[1]
            result = torch.zeros(*shape, dtype=found.dtype, device=found.device)
        if is_by_rollout:
            result.view(-1)[rows] = found.reshape(-1)
        else:
            result[rows] = found
    assert result is not None, "a prompt without enough rewards is not trained on"
    return result


def _compares(advantage: Cell) -> bool:
    """Whether it may compare the rollouts of a prompt; of a cell of the user's that is not known."""
    return plain(advantage) in GROUP_STATISTICS or plain(advantage) not in ADVANTAGES.values()


def _pieces(cell: Cell, present: Tensor) -> list[tuple[Tensor, int]]:
    """Rows (of B) that the cell sees at once, and how many of them make a group."""
    rows = torch.arange(present.numel(), device=present.device).view(present.shape)
    if not _compares(cell):
        return [(rows[present], 1)]
    sizes = present.sum(dim=1)
    return [(rows[sizes == size][present[sizes == size]], size) for size in sorted(set(sizes.tolist()))]


def _narrowed(supply: Mapping[str, Tensor], rows: Tensor, size: int, *, group: int) -> dict[str, Tensor]:
    some = dict(supply)
    for term, tensor in supply.items():
        if term in BY_ROLLOUT:
            some[term] = tensor.reshape(-1)[rows].view(-1, size)
        elif term in BY_TOKEN:
            some[term] = tensor[rows]
        elif term == "greedy" and len(tensor):
            some[term] = tensor[rows.view(-1, size)[:, 0] // group]
    return some


def _with_means(rewards: Tensor, present: Tensor) -> Tensor:
    """The mean of the group in place of a missing reward: neither mean nor variance > 0 changes by it."""
    means = (rewards * present).sum(dim=1, keepdim=True) / present.sum(dim=1, keepdim=True)
    return torch.where(present, rewards, means)
