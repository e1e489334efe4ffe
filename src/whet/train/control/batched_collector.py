"""Collects steps of a batched environment: all copies at once, on the device of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whet.config.control import ControlConfig
from whet.control.batched import BatchedEnvironment
from whet.control.fragments import Fragments
from whet.control.policies import Policy
from whet.control.seeds import SEEDS, TRAINING
from whet.streams import stream_key, uniform
from whet.train.control.collector import EPISODES, NOISE, RECENT, Rollout, episode_metrics
from whet.train.session.checkpointed import Checkpointed


class BatchedCollector(Checkpointed):
    """The copies of training. A checkpoint holds their states as they are: nothing has to be repeated."""

    def __init__(
        self,
        config: ControlConfig,
        environment: BatchedEnvironment,
        policy: Policy,
        device: torch.device,
        max_steps: int,
    ) -> None:
        self.config, self.environment, self.policy, self.device = config, environment, policy, device
        self.max_steps, self.recent = max_steps, deque[tuple[float, int]](maxlen=RECENT)
        count = config.rollout.environments
        self._copies = torch.arange(count, device=device)
        self._episodes = torch.zeros_like(self._copies)  # begun before the one under way, by copy
        self._returns = torch.zeros(count, dtype=torch.float64, device=device)  # of the episodes under way
        self._lengths = torch.zeros_like(self._copies)
        self._states = environment.begin(self._seeds())
        self._numbers: dict[str, Any] = {"recent": []}
        self._saved: dict[str, Tensor] = {}

    def _seeds(self) -> Tensor:
        """(N,): of the episodes under way; even, as all seeds of training."""
        keys = stream_key((self.config.seed, EPISODES)) + self._copies
        return 2 * (uniform(keys, self._episodes) * SEEDS).long() + TRAINING

    @torch.no_grad()
    def collect(self, step: int) -> Rollout:
        """The rollout of a step, which is repeated exactly if the step is."""
        policy, environment, steps = self.policy, self.environment, self.config.rollout.length
        distribution, count = policy.distribution, len(self._copies)
        generator = torch.Generator(self.device).manual_seed(stream_key((self.config.seed, NOISE, step)) % 2**63)
        noise = distribution.draw_noise((steps, count), generator)
        kept: dict[str, list[Tensor]] = {}
        observations = environment.observe(self._states)
        for t in range(steps):
            parameters = policy.action_parameters(policy.seen(observations))
            actions = distribution.sample(parameters, noise[t])
            states, rewards, terminated = environment.step(self._states, distribution.for_batch(actions))
            returns, lengths = self._returns + rewards, self._lengths + 1
            truncated = (lengths >= self.max_steps) & ~terminated
            ended, after = terminated | truncated, environment.observe(states)
            for name, one in {
                "observations": observations,
                "parameters": parameters,
                "actions": actions,
                "rewards": rewards.double(),
                "after": after,
                "ended": ended,
                "truncated": truncated,
                "returns": returns,
                "lengths": lengths,
            }.items():
                kept.setdefault(name, []).append(one)
            self._episodes = self._episodes + ended
            self._states = torch.where(ended[:, None], environment.begin(self._seeds()), states)
            self._returns, self._lengths = returns.masked_fill(ended, 0.0), lengths.masked_fill(ended, 0)
            observations = environment.observe(self._states)
        rollout = self._rollout({name: torch.stack(some) for name, some in kept.items()})
        self.recent.extend(zip(rollout.returns, rollout.lengths, strict=True))
        self._keep()
        return rollout

    def _rollout(self, kept: Mapping[str, Tensor]) -> Rollout:
        """From (T, N, …) to steps of one copy behind the other."""
        ended = kept["ended"]
        cut = kept["truncated"].clone()
        cut[-1] |= ~ended[-1]
        flat = {name: one.transpose(0, 1).flatten(0, 1) for name, one in {**kept, "cut": cut}.items()}
        fragments = Fragments.between(flat["ended"] | flat["cut"])
        begins = torch.zeros_like(flat["lengths"]).index_fill_(0, fragments.starts, 1)
        places = flat["cut"].nonzero()[:, 0]
        return Rollout(
            observations=flat["observations"],
            parameters=flat["parameters"],
            actions=flat["actions"],
            rewards=flat["rewards"],
            fragments=fragments,
            cut=(begins.cumsum(0) - 1)[places],
            beyond=flat["after"][places],
            ended=ended,
            returns=kept["returns"][ended].tolist(),
            lengths=kept["lengths"][ended].tolist(),
        )

    def metrics(self) -> dict[str, float]:
        return episode_metrics(self.recent)

    def _keep(self) -> None:
        """What a checkpoint of this moment holds."""
        self._numbers = {"recent": list(self.recent)}
        self._saved = {
            "states": self._states,
            "episodes": self._episodes,
            "returns": self._returns,
            "lengths": self._lengths,
        }

    def numbers(self) -> dict[str, Any]:
        return self._numbers

    def tensors(self) -> dict[str, Tensor]:
        return self._saved

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.recent = deque(((one, int(length)) for one, length in numbers["recent"]), maxlen=RECENT)
        if tensors:
            names = ("states", "episodes", "returns", "lengths")
            found = (tensors[name].to(self.device) for name in names)
            self._states, self._episodes, self._returns, self._lengths = found
        self._keep()

    def close(self) -> None:
        """Nothing to end: the copies are tensors."""
