"""Environments that isolate one ability each, easiest first (Andy Jones, "Debugging RL, without the agonizing pain").

If a probe fails and those before it pass, the fault is in what it adds: values, then observations, then discounting,
then actions, then actions that depend on observations.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

OBSERVATION = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)


class Probe(gym.Env[Any, Any]):
    """An episode of one step unless a subclass says otherwise."""

    observation_space = OBSERVATION
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)

    def __init__(self, *, boxed: bool = False) -> None:
        """With a continuous action where it is boxed."""
        if boxed:
            self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = self.first()
        return self.now(), {}

    def first(self) -> float:
        return 0.0

    def now(self) -> Any:
        return np.array([self.seen], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.now(), self.reward(action), True, False, {"is_success": self.reward(action) > 0}

    def reward(self, action: int) -> float:
        return 1.0


class ConstantReward(Probe):
    """Always the reward 1: is the value of a constant learned?"""


class ObservedReward(Probe):
    """The reward is the observation, −1 or 1: does the critic read observations?"""

    def first(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def reward(self, action: int) -> float:
        return self.seen


class DelayedReward(Probe):
    """Two steps, the reward after the second: are rewards discounted and passed back?"""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_second = self.seen == 1.0
        self.seen = 1.0
        return self.now(), float(is_second), is_second, False, {}


class CutReward(Probe):
    """A reward of 1 at every step, cut after one step: is a truncated state worth what would follow?"""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.now(), 1.0, False, True, {}


class ChosenReward(Probe):
    """Action 1 is rewarded: does the policy follow its advantages?"""

    def reward(self, action: int) -> float:
        return float(action == 1)


class MatchedReward(ObservedReward):
    """The action that the observation names is rewarded: does the policy read observations?"""

    def reward(self, action: int) -> float:
        return float((action == 1) == (self.seen > 0))


class AimedReward(MatchedReward):
    """As before with a continuous action: it is to be the observation."""

    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reward(self, action: Any) -> float:
        return -float(abs(float(action[0]) - self.seen))


class Reach(gym.Env[Any, Any]):
    """A point is moved to a goal in the plane; the reward is −1 until it is there (goal-conditioned, sparse)."""

    NEAR, STRIDE = 0.1, 0.25
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, *, wrong: bool = False, single: bool = False) -> None:
        """`wrong`: compute_reward says something else than the steps; `single`: it takes one goal at a time."""
        goal = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = gym.spaces.Dict(dict.fromkeys(names, goal))
        self.wrong, self.single = wrong, single

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = np.zeros(2)
        self.goal = self.np_random.uniform(-1, 1, 2)
        return self.now(), {}

    def now(self) -> dict[str, Any]:
        return {"observation": self.place, "achieved_goal": self.place, "desired_goal": self.goal}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = (self.place + self.STRIDE * np.asarray(action, np.float64)).clip(-1.2, 1.2)
        reward = -float(np.linalg.norm(self.place - self.goal) > self.NEAR)
        return self.now(), reward, False, False, {"is_success": reward == 0}

    def compute_reward(self, achieved: Any, desired: Any, info: dict[str, Any]) -> Any:
        if self.single:
            return -float(np.linalg.norm(achieved - desired) > self.NEAR)
        return -(np.linalg.norm(achieved - desired, axis=-1) > self.NEAR).astype(np.float32) - self.wrong
