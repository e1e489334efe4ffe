"""Collects steps of episodes. A resumed run comes back into the middle of its episodes by repeating their actions."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.config.control import ControlConfig
from whet.control.environments import Copies
from whet.control.fragments import Fragments
from whet.control.policies import Policy
from whet.control.seeds import TRAINING, episode_seed
from whet.errors import RunFailed
from whet.streams import stream_key
from whet.train.session.checkpointed import Checkpointed

EPISODES, NOISE = 0, 1  # streams of random numbers
RECENT = 100  # finished episodes that reward/mean is the mean of
CHUNK = 64  # steps whose noise is drawn at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Steps of all copies, those of one copy one behind the other, and the fragments of episodes that they are."""

    observations: Tensor  # (n, D)
    parameters: Tensor  # (n, P) of the distributions that the actions were drawn from
    actions: Tensor  # (n, K)
    rewards: Tensor  # (n,) float64
    fragments: Fragments
    cut: Tensor  # (C,) fragments that were cut: by a time limit, or by the end of the rollout
    beyond: Tensor  # (C, D) the observations after them
    ended: Tensor  # (T, N) whether an episode ended here
    returns: Sequence[float]  # of the episodes that were finished, in their order
    lengths: Sequence[int]

    @property
    def count(self) -> int:
        return len(self.actions)


def episode_metrics(recent: Collection[tuple[float, int]]) -> dict[str, float]:
    """Of the last finished episodes, by returns and lengths."""
    if not recent:
        return {}
    returns, lengths = zip(*recent, strict=True)
    return {
        "reward/mean": statistics.fmean(returns),
        "reward/std": statistics.pstdev(returns),
        "reward/min": min(returns),
        "reward/max": max(returns),
        "episode_length": statistics.fmean(lengths),
    }


class Steps:
    """Arrays (T, N, …) that grow step by step."""

    def __init__(self) -> None:
        self.observations: list[NDArray[np.float32]] = []
        self.parameters: list[Tensor] = []
        self.actions: list[Tensor] = []
        self.rewards: list[NDArray[np.float64]] = []
        self.ended: list[NDArray[np.bool_]] = []  # an episode ended with this step
        self.taken: list[NDArray[np.bool_]] = []  # the copy took a step
        self.beyond: dict[tuple[int, int], NDArray[np.float32]] = {}  # (copy, step) → what followed, where truncated


class Collector(Checkpointed):
    """The environments of training, and where their episodes stand."""

    def __init__(self, config: ControlConfig, environments: Copies, policy: Policy, device: torch.device) -> None:
        self.config, self.environments, self.policy, self.device = config, environments, policy, device
        count = len(environments)
        self.episodes = [0] * count  # begun so far, by copy
        self.began = [0] * count  # of the episode under way: the step of its first action, in `_actions`
        self.returns, self.lengths = np.zeros(count), np.zeros(count, np.int64)  # of the episodes under way
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._actions: list[NDArray[Any]] = []  # (T, N, K) of every rollout that an episode under way began in
        self._saved: dict[str, Tensor] = {}
        self._numbers: dict[str, Any] = {"episodes": list(self.episodes), "recent": []}

    def collect(self, step: int) -> Rollout:
        """The rollout of a step, which is repeated exactly if the step is."""
        generator = torch.Generator().manual_seed(stream_key((self.config.seed, NOISE, step)) % 2**63)
        return self._fragments(generator) if self.config.rollout.length else self._whole(step, generator)

    def close(self) -> None:
        self.environments.close()

    def metrics(self) -> dict[str, float]:
        """Of the last finished episodes."""
        return episode_metrics(self.recent)

    def _fragments(self, generator: torch.Generator) -> Rollout:
        """A number of steps in every copy, through the ends of episodes."""
        steps, done, count = Steps(), list[tuple[float, int]](), len(self.environments)
        before = sum(map(len, self._actions))
        if self.episodes == [0] * count:
            for copy in range(count):
                self._begin(copy, 0)
        for t in range(self.config.rollout.length):
            ended = self._step(steps, t, list(range(count)), generator)
            for copy in np.flatnonzero(ended).tolist():
                done.append((float(self.returns[copy]), int(self.lengths[copy])))
                self._begin(copy, before + t + 1)
        ends = np.stack(steps.ended)
        ends[-1] = True
        last = {(copy, len(ends) - 1): self.environments.observations[copy].copy() for copy in range(count)}
        open_ones = {key: one for key, one in last.items() if not steps.ended[-1][key[0]]}
        self.recent.extend(done)
        self._remember(torch.stack(steps.actions).cpu().numpy())
        return self._rollout(steps, ends, {**steps.beyond, **open_ones}, done)

    def _whole(self, step: int, generator: torch.Generator) -> Rollout:
        """One episode in every copy; those of a group have the same start."""
        group, steps = self.config.rollout.group, Steps()
        for copy in range(len(self.environments)):
            self.environments.reset(copy, episode_seed(TRAINING, self.config.seed, EPISODES, step, copy // group))
            self.returns[copy], self.lengths[copy] = 0.0, 0
        running, t = list(range(len(self.environments))), 0
        while running:
            ended = self._step(steps, t, running, generator)
            running, t = [copy for copy in running if not ended[copy]], t + 1
        done = list(zip(self.returns.tolist(), self.lengths.tolist(), strict=True))
        self.recent.extend(done)
        self._numbers = {"episodes": list(self.episodes), "recent": list(self.recent)}
        return self._rollout(steps, np.stack(steps.ended), steps.beyond, done)

    @torch.inference_mode()
    def _step(self, steps: Steps, t: int, where: list[int], generator: torch.Generator) -> NDArray[np.bool_]:
        """One action in each of these copies; which of them ended an episode."""
        policy, environments = self.policy, self.environments
        if t % CHUNK == 0:
            self._noise = policy.distribution.draw_noise((CHUNK, len(environments)), generator).to(self.device)
        observations = environments.observations.copy()
        parameters = policy.action_parameters(policy.seen(torch.from_numpy(observations).to(self.device)))
        actions = policy.distribution.sample(parameters, self._noise[t % CHUNK])
        chosen = policy.distribution.for_environment(actions.cpu().numpy())
        rewards, taken, ended = np.zeros(len(chosen)), np.zeros(len(chosen), bool), np.zeros(len(chosen), bool)
        got, terminated, truncated = environments.step([chosen[copy] for copy in where], where)
        rewards[where], taken[where], ended[where] = got, True, terminated | truncated
        self.returns += rewards
        self.lengths += taken
        for place in np.flatnonzero(truncated).tolist():
            steps.beyond[where[place], t] = environments.observations[where[place]].copy()
        steps.observations.append(observations)
        steps.parameters.append(parameters)
        steps.actions.append(actions)
        steps.rewards.append(rewards)
        steps.ended.append(ended)
        steps.taken.append(taken)
        return ended

    def _begin(self, copy: int, first: int) -> None:
        """Begins the next episode of a copy, whose first action will be that of step `first`."""
        self.environments.reset(copy, self._seed(copy, self.episodes[copy]))
        self.episodes[copy] += 1
        self.began[copy], self.returns[copy], self.lengths[copy] = first, 0.0, 0

    def _seed(self, copy: int, episode: int) -> int:
        return episode_seed(TRAINING, self.config.seed, EPISODES, copy, episode)

    def _rollout(
        self,
        steps: Steps,
        ends: NDArray[np.bool_],
        beyond: Mapping[tuple[int, int], NDArray[np.float32]],
        done: Sequence[tuple[float, int]],
    ) -> Rollout:
        taken = torch.from_numpy(np.stack(steps.taken)).T
        fragments = Fragments.between(torch.from_numpy(ends).T[taken])
        numbers = torch.zeros(taken.shape, dtype=torch.int64)
        numbers[taken] = torch.arange(int(taken.sum()))
        begins = torch.zeros(int(taken.sum()), dtype=torch.int64).index_fill_(0, fragments.starts, 1)
        owner = begins.cumsum(0) - 1  # step → fragment
        cut = sorted(beyond)
        empty = np.zeros((0, self.environments.observations.shape[1]), np.float32)
        mine = taken.to(self.device)
        return Rollout(
            observations=torch.from_numpy(np.stack(steps.observations)).transpose(0, 1)[taken].to(self.device),
            parameters=torch.stack(steps.parameters).transpose(0, 1)[mine],
            actions=torch.stack(steps.actions).transpose(0, 1)[mine],
            rewards=torch.from_numpy(np.stack(steps.rewards)).T[taken],
            fragments=fragments,
            cut=torch.tensor([int(owner[numbers[copy, t]]) for copy, t in cut], dtype=torch.int64),
            beyond=torch.from_numpy(np.stack([beyond[key] for key in cut]) if cut else empty).to(self.device),
            ended=torch.from_numpy(np.stack(steps.ended)),
            returns=[one for one, _ in done],
            lengths=[length for _, length in done],
        )

    def _remember(self, actions: NDArray[Any]) -> None:
        """Keeps the actions since the oldest episode under way began, as a checkpoint of this moment has them."""
        self._actions.append(actions)
        while len(self._actions) > 1 and min(self.began) >= len(self._actions[0]):
            passed = len(self._actions.pop(0))
            self.began = [first - passed for first in self.began]
        self._numbers = {"episodes": list(self.episodes), "recent": list(self.recent)}
        self._saved = {
            "began": torch.tensor(self.began),
            "observations": torch.from_numpy(self.environments.observations.copy()),
        }

    def numbers(self) -> dict[str, Any]:
        return self._numbers

    def tensors(self) -> dict[str, Tensor]:
        if not self._saved:
            return {}
        began = self._saved["began"]
        first = int(began.min())  # the same numbers, however many rollouts are kept
        actions = torch.from_numpy(np.concatenate(self._actions)[first:])
        return {**self._saved, "began": began - first, "actions": actions}

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.episodes = list(numbers["episodes"])
        self.recent = deque(((one, int(length)) for one, length in numbers["recent"]), maxlen=RECENT)
        self._numbers = {"episodes": list(self.episodes), "recent": list(self.recent)}
        if "began" not in tensors:
            return
        self.began, actions = tensors["began"].tolist(), tensors["actions"].numpy()
        for copy, first in enumerate(self.began):
            self._repeat(copy, actions[first:, copy])
        if not np.array_equal(self.environments.observations, tensors["observations"].numpy()):
            raise RunFailed(
                f"environment {self.config.environment.name} did not come to the same state from the same seed and "
                "actions, so the run cannot go on as if it had not been stopped: start a new run"
            )
        self._actions = []
        self._remember(actions)

    def _repeat(self, copy: int, actions: NDArray[Any]) -> None:
        """The episode under way, up to where it was."""
        self.environments.reset(copy, self._seed(copy, self.episodes[copy] - 1))
        self.returns[copy], self.lengths[copy] = 0.0, len(actions)
        for action in self.policy.distribution.for_environment(actions):
            rewards, _, _ = self.environments.step([action], [copy])
            self.returns[copy] += float(rewards[0])
