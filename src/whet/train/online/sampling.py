"""Dynamic sampling: the groups of one step, resampled while the algorithm has kept too few of them."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import compress
from typing import Any

import torch

from whet.algorithms.table import Algorithm
from whet.config import RolloutConfig
from whet.distributed.world import World
from whet.records import Batch, Rollout
from whet.rollout import Group
from whet.tasks.protocol import Adaptive, Task
from whet.train.online.missing import filled, is_enough
from whet.train.optimizers.optimizer import ask
from whet.train.session.tolerated import RewardFailures


class SampledGroups:
    """Groups sampled in a step so far, in the same order for any number of ranks."""

    def __init__(
        self,
        rollout: RolloutConfig,
        algorithm: Algorithm,
        world: World,
        failures: RewardFailures | None = None,
        step: int = 0,
    ) -> None:
        """`failures` counts those of the reward, if any are allowed."""
        self.rollout, self.algorithm, self.world = rollout, algorithm, world
        self.failures, self.step = failures, step
        self.rounds = 0
        self.drawn: dict[int, Group] = {}  # place in the order of all groups of this step, on all ranks → group
        self.greedy: dict[int, Rollout] = {}  # place → greedy completion, if the algorithm needs one
        self._kept: list[int] = []  # places of all ranks, in order
        self._lost = 0  # groups of all ranks without enough rewards
        self._failed = 0  # rollouts of all ranks on which the reward failed

    @property
    def is_short(self) -> bool:
        """Whether another round is needed and allowed."""
        return len(self._kept) + self._lost < self.rollout.prompts and self.rounds <= self.rollout.max_resamples

    def add(self, groups: Sequence[Group]) -> None:
        """Adds one round: this rank's share of `prompts` groups, each with its greedy rollout last if there is one."""
        mine = []
        for index, group in enumerate(groups):
            place = self.rounds * self.rollout.prompts + index * self.world.size + self.world.rank
            self.drawn[place] = group[: self.rollout.group]
            if self.algorithm.needs_greedy:
                self.greedy[place] = group[-1]
            mine.append([place, self._rewards(place)])
        gathered = sorted((row for rows in self.world.gather(mine) for row in rows), key=lambda row: int(row[0]))
        whole = [rewards if None not in rewards else filled(rewards) for _, rewards in gathered]
        lost = [None in given and not is_enough(given, self.algorithm.advantage) for _, given in gathered]
        rewards = torch.tensor(whole, dtype=torch.float32)
        kept = ask(self.algorithm.dynamic_sampling, {"rewards": rewards}, shapes=[(len(gathered),)]).tolist()
        self._kept += [place for (place, _), keep, gone in zip(gathered, kept, lost, strict=True) if keep and not gone]
        self._lost += sum(lost)
        self.rounds += 1
        if self.failures is not None:
            self._failed += self.failures.of_rollouts(self.step)

    def _rewards(self, place: int) -> list[float | None]:
        """The rewards of a group, None where one is missing; none at all without that of the greedy baseline."""
        is_lost = self.algorithm.needs_greedy and self.greedy[place].score.is_missing
        return [None if is_lost or r.score.is_missing else r.score.reward for r in self.drawn[place]]

    @property
    def total(self) -> int:
        """Number of groups that are trained on, over all ranks."""
        return min(len(self._kept), self.rollout.prompts)

    @property
    def numbers(self) -> dict[int, int]:
        """Place → number 0, 1, … of this rank's groups that are trained on."""
        chosen = {place: number for number, place in enumerate(self._kept[: self.rollout.prompts])}
        return {place: chosen[place] for place in self.drawn if place in chosen}

    def metrics(self) -> dict[str, float]:
        """Groups drawn, the share that was kept and, where they are allowed, failures of the reward."""
        drawn = self.rounds * self.rollout.prompts
        failed = {} if self.failures is None else {"reward/failures": float(self._failed)}
        return {"groups/drawn": float(drawn), "groups/kept": len(self._kept) / drawn, **failed}


def rollout_rows(sampled_groups: SampledGroups, batch: Batch | None, world: World) -> list[list[dict[str, Any]]]:
    """The rollouts of all ranks as JSON rows, one list per group, in order of sampling."""
    advantages = _advantages(sampled_groups, batch)
    mine = [
        [place, [_row(r, advantage) for r, advantage in zip(group, advantages[place], strict=True)]]
        for place, group in sampled_groups.drawn.items()
    ]
    gathered = sorted((row for rows in world.gather(mine) for row in rows), key=lambda row: int(row[0]))
    return [rows for _, rows in gathered]


def _advantages(sampled_groups: SampledGroups, batch: Batch | None) -> dict[int, list[list[float] | None]]:
    """Place → advantages of the trained tokens of each rollout; None for a dropped group."""
    found: dict[int, list[list[float] | None]] = {place: [None] * len(g) for place, g in sampled_groups.drawn.items()}
    if batch is not None:
        rows = zip(batch.advantages.tolist(), batch.sequences.mask.tolist(), strict=True)
        trained = iter([list(compress(*row)) for row in rows])
        for place in sorted(sampled_groups.numbers):
            found[place] = [next(trained) for _ in found[place]]
    return found


def told(task: Task, sampled_groups: SampledGroups) -> dict[str, float]:
    """Tells a task that adapts to the policy which rollouts were correct; metrics of what it makes of them."""
    if not isinstance(task, Adaptive):
        return {}
    mine = [
        [place, [[r.example.id, task.correct(r.example, r.text)] for r in group]]
        for place, group in sampled_groups.drawn.items()
    ]
    gathered = sorted((row for rows in sampled_groups.world.gather(mine) for row in rows), key=lambda row: int(row[0]))
    return task.learn([(name, right) for _, group in gathered for name, right in group if right is not None])


def _row(rollout: Rollout, advantages: list[float] | None) -> dict[str, Any]:
    row = {
        "id": rollout.example.id,
        "prompt": rollout.example.prompt_text,
        "text": rollout.text,
        "tokens": rollout.tokens,
        "mask": rollout.mask,
        "logprobs": rollout.logprobs,
        "finish": rollout.finish,
        "version": rollout.version,
        "reward": None if rollout.score.is_missing else rollout.score.reward,
        "parts": dict(rollout.score.parts),
        "trained": bool(advantages),
        "advantage": statistics.fmean(advantages) if advantages else 0.0,
    }
    part = rollout.example.part
    if part:
        row["part"] = part
    if advantages and min(advantages) != max(advantages):
        row["advantages"] = advantages  # they differ between tokens
        row["max_advantage"] = max(map(abs, advantages))
    if rollout.versions:
        row["versions"] = rollout.versions
    if rollout.turns:
        row["turns"] = [asdict(turn) for turn in rollout.turns]
    if rollout.score.token_rewards:
        row["token_rewards"] = rollout.score.token_rewards
    return row | rollout.score.remarks
