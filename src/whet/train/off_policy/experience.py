"""Steps in environments, and the replay buffer that they go to.

A resumed run reads the buffer and comes back into the middle of its episodes by repeating their actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.config.control.off_policy import OffPolicyConfig
from whet.control.distributions import stretched
from whet.control.environments import Environments
from whet.control.off_policy.hindsight import Goals, goals_of
from whet.control.off_policy.replay import ReplayBuffer, Transitions
from whet.control.seeds import TRAINING, episode_seed
from whet.control.spaces import Floats
from whet.errors import RunFailed
from whet.train.control.collector import EPISODES, RECENT, episode_metrics
from whet.train.off_policy.replay_files import ReplayFiles
from whet.train.session.checkpointed import OwnFiles

CLOSE = 1e-4  # rewards in float64 beside those of observations in float32


class Experience(OwnFiles):
    """The environments of training, where their episodes stand, and all transitions so far that are kept."""

    def __init__(self, config: OffPolicyConfig, environments: Environments) -> None:
        space, count = environments.action_space, len(environments)
        self.config, self.environments = config, environments
        self.low, self.high, self.shape = space.low.reshape(-1), space.high.reshape(-1), tuple(space.shape)
        width, actions = environments.observations.shape[1], len(self.low)
        self.buffer = ReplayBuffer(config.replay.size, count, width=width, actions=actions)
        self.goals: Goals | None = None if config.replay.hindsight is None else goals_of(environments.copies[0])
        self.episodes = [0] * count  # begun so far, by copy
        self.lengths, self.returns = [0] * count, [0.0] * count  # of the episodes under way
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._taken: list[deque[Floats]] = [deque() for _ in range(count)]  # actions of the episodes under way
        self._files = ReplayFiles(self.buffer)

    @property
    def steps(self) -> int:
        """Environment steps so far, of all copies."""
        return self.buffer.count * len(self.environments)

    def begin(self) -> None:
        """Begins the first episodes, unless they have."""
        for copy, episodes in enumerate(self.episodes):
            if not episodes:
                self._begin(copy)

    def advance(self, actions: Floats) -> None:
        """Takes an action in [−1, 1] in every copy, and begins a new episode where one has ended."""
        environments, count = self.environments, len(self.environments)
        before = environments.observations.copy()
        chosen = stretched(actions, self.low, self.high, self.shape)
        rewards, terminated, truncated = environments.step(chosen, range(count))
        self.buffer.add(
            observations=before,
            actions=actions,
            rewards=rewards,
            next_observations=environments.observations,
            terminated=terminated,
            ended=terminated | truncated,
        )
        for copy in range(count):
            self.returns[copy] += float(rewards[copy])
            self.lengths[copy] += 1
            self._taken[copy].append(actions[copy])
        for copy in np.flatnonzero(terminated | truncated).tolist():
            self.recent.append((self.returns[copy], self.lengths[copy]))
            self._require_same_rewards(copy)
            self._begin(copy)

    def draw(self, count: int, rng: np.random.Generator) -> Transitions | None:
        """A batch; None before there is one to draw from."""
        if not self.buffer.can_draw(finished=self.goals is not None):
            return None
        hindsight = self.config.replay.hindsight
        if self.goals is None or hindsight is None:
            return self.buffer.draw(count, rng)
        return self.buffer.draw_hindsight(count, rng, self.goals, share=hindsight.goals / (hindsight.goals + 1))

    def metrics(self) -> dict[str, float]:
        """Of the last finished episodes, and of the buffer."""
        return {**episode_metrics(self.recent), "replay/transitions": float(self.buffer.size)}

    def _begin(self, copy: int) -> None:
        self.environments.reset(copy, self._seed(copy, self.episodes[copy]))
        self.episodes[copy] += 1
        self.returns[copy], self.lengths[copy] = 0.0, 0
        self._taken[copy].clear()

    def _seed(self, copy: int, episode: int) -> int:
        return episode_seed(TRAINING, self.config.seed, EPISODES, copy, episode)

    def _require_same_rewards(self, copy: int) -> None:
        """At the first episode that ends: `compute_reward` must say of its own goal what the steps said."""
        if self.goals is None or len(self.recent) > 1:
            return
        episode = self.buffer.last_episode(copy)
        found = self.goals.rewards(episode.next_observations)
        if not np.allclose(found, episode.rewards, rtol=0, atol=CLOSE):
            raise RunFailed(
                f"compute_reward of {self.config.environment.name} gives {found[0]:g} … {found[-1]:g} for an episode "
                f"whose steps gave {episode.rewards[0]:g} … {episode.rewards[-1]:g}, so rewards of other goals would "
                "be of another task: leave replay.hindsight out, or correct compute_reward"
            )

    def numbers(self) -> dict[str, Any]:
        return {"episodes": list(self.episodes), "recent": list(self.recent), "lengths": list(self.lengths)}

    def tensors(self) -> dict[str, Tensor]:
        if not self.buffer.count:
            return {}
        taken = [np.stack(some) if some else np.zeros((0, len(self.low)), np.float32) for some in self._taken]
        return {
            "actions": torch.from_numpy(np.concatenate(taken)),  # of the episodes under way, copy by copy
            "observations": torch.from_numpy(self.environments.observations.copy()),
        }

    def write_files(self, directory: Path) -> None:
        self._files.write(directory)

    def read_files(self, directory: Path) -> None:
        self._files.read(directory)

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.recent = deque(((one, int(length)) for one, length in numbers["recent"]), maxlen=RECENT)
        if "actions" not in tensors:
            return
        self.episodes = list(numbers["episodes"])
        ends = np.cumsum(numbers["lengths"])[:-1]
        for copy, actions in enumerate(np.split(tensors["actions"].numpy(), ends)):
            self._repeat(copy, actions)
        if not np.array_equal(self.environments.observations, tensors["observations"].numpy()):
            raise RunFailed(
                f"environment {self.config.environment.name} did not come to the same state from the same seed and "
                "actions, so the run cannot go on as if it had not been stopped: start a new run"
            )

    def _repeat(self, copy: int, actions: NDArray[Any]) -> None:
        """The episode under way, up to where it was."""
        self.environments.reset(copy, self._seed(copy, self.episodes[copy] - 1))
        self.returns[copy], self.lengths[copy] = 0.0, len(actions)
        self._taken[copy] = deque(actions)
        for action in stretched(actions, self.low, self.high, self.shape):
            rewards, _, _ = self.environments.step([action], [copy])
            self.returns[copy] += float(rewards[0])
