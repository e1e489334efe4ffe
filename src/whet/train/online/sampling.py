"""Dynamic sampling: the groups of one step, sampled again while the algorithm has kept too few of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from whet.algorithms.table import Algorithm
from whet.config import RolloutConfig
from whet.distributed.world import World
from whet.records import Rollout
from whet.rollout import Group
from whet.train.setup.cells import ask


class SampledGroups:
    """The groups that were sampled in a step so far, in the order of one process whatever the number of ranks."""

    def __init__(self, rollout: RolloutConfig, algorithm: Algorithm, world: World) -> None:
        self.rollout, self.algorithm, self.world = rollout, algorithm, world
        self.rounds = 0
        self.drawn: dict[int, Group] = {}  # place among everything drawn in this step by all ranks → group
        self.greedy: dict[int, Rollout] = {}  # place → the most likely completion, where one was sampled
        self._kept: list[int] = []  # places of all ranks, in order

    @property
    def is_short(self) -> bool:
        """Whether another round is needed, and allowed."""
        return len(self._kept) < self.rollout.prompts and self.rounds <= self.rollout.max_resamples

    def add(self, groups: Sequence[Group]) -> None:
        """One round: this rank's share of `prompts` groups; a greedy rollout stands at the end of each."""
        mine = []
        for index, group in enumerate(groups):
            place = self.rounds * self.rollout.prompts + index * self.world.size + self.world.rank
            self.drawn[place] = group[: self.rollout.group]
            if self.algorithm.needs_greedy:
                self.greedy[place] = group[-1]
            mine.append([place, [rollout.score.reward for rollout in self.drawn[place]]])
        gathered = sorted(row for rows in self.world.gather(mine) for row in rows)
        rewards = torch.tensor([rewards for _, rewards in gathered], dtype=torch.float32)
        kept = ask(self.algorithm.dynamic_sampling, {"rewards": rewards}, shapes=[(len(gathered),)]).tolist()
        self._kept += [place for (place, _), keep in zip(gathered, kept, strict=True) if keep]
        self.rounds += 1

    @property
    def total(self) -> int:
        """The groups that are trained on, over all ranks."""
        return min(len(self._kept), self.rollout.prompts)

    @property
    def numbers(self) -> dict[int, int]:
        """Place → number 0, 1, … of every group that is trained on and was drawn by this rank."""
        chosen = {place: number for number, place in enumerate(self._kept[: self.rollout.prompts])}
        return {place: chosen[place] for place in self.drawn if place in chosen}

    def metrics(self) -> dict[str, float]:
        """How many groups were drawn for those that are trained on, where some can be dropped."""
        drawn = self.rounds * self.rollout.prompts
        return {"groups/drawn": float(drawn), "groups/kept": len(self._kept) / drawn}
