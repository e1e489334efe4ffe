"""Several copies of an environment, stepped in turn. None is reset by itself: whoever collects says when, and the seed.

Every episode begins with `reset(seed=…)`, so an episode is a function of its seed and its actions: that is how a
resumed run comes back to the middle of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from whet.control.spaces import Floats, ObservationCoder, gymnasium, observation_coder
from whet.errors import RunFailed, UserError
from whet.imports import load_named
from whet.user_code import located, one_line


class Copies(Protocol):
    """Copies of an environment, here or in other processes."""

    action_space: Any
    coder: ObservationCoder
    observations: Floats  # (N, D): the newest of each copy as a row
    successes: list[bool | None]  # of the newest step, where the environment says

    def __len__(self) -> int: ...

    def reset(self, index: int, seed: int) -> None:
        """Begins an episode."""

    def step(
        self, actions: Sequence[Any], where: Sequence[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Takes one action in each of these copies: rewards, terminated, and truncated where not terminated."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """What single environments are made by; plain JSON values."""

    name: str
    options: Mapping[str, Any]
    max_steps: int | None = None

    def __call__(self) -> Any:
        return make_environment(self.name, self.options, max_steps=self.max_steps)


def make_environment(
    name: str, options: Mapping[str, Any], *, max_steps: int | None = None, render: bool = False
) -> Any:
    """A registered environment (`CartPole-v1`, `package:Name-v0`), or a class of the user's (`file.py:Class`)."""
    gym = gymnasium()
    pictures = {"render_mode": "rgb_array"} if render else {}
    try:
        if name.rpartition(":")[2].isidentifier() and ":" in name:
            made = _own(name)(**options, **pictures)
            return made if max_steps is None else gym.wrappers.TimeLimit(made, max_steps)
        limit = {} if max_steps is None else {"max_episode_steps": max_steps}
        return gym.make(name, disable_env_checker=True, **limit, **options, **pictures)
    except (gym.error.Error, TypeError, ImportError) as error:
        raise UserError(f"environment {name}: {one_line(error)}") from error


def _own(name: str) -> Callable[..., Any]:
    found: Any = load_named(name, "environment")
    return found  # type: ignore[no-any-return]


class Environments:
    """`count` copies and their newest observations as rows: the last `history` of an episode, oldest first."""

    def __init__(
        self, make: Callable[[], Any], count: int, *, history: int = 1, watch: Callable[[Any], None] | None = None
    ) -> None:
        """`watch` is called with a copy after each of its steps."""
        self.watch = watch
        self.successes: list[bool | None] = [None] * count  # of the newest step, where the environment says
        self.copies = [make() for _ in range(count)]
        self.action_space = self.copies[0].action_space
        self.coder = observation_coder(self.copies[0].observation_space)
        self.history = history
        # With a history, a flag beside each observation says whether it is one, or from before the episode.
        self.width = self.coder.size + (history > 1)
        self.observations: Floats = np.zeros((count, history * self.width), np.float32)

    def __len__(self) -> int:
        return len(self.copies)

    def reset(self, index: int, seed: int) -> None:
        """Begins an episode."""
        try:
            observation, _ = self.copies[index].reset(seed=seed)
        except Exception as error:  # of the environment's own code
            raise RunFailed(f"the environment failed in reset: {located(error)}") from error
        self.observations[index] = 0.0
        self._write(index, observation)

    def step(
        self, actions: Sequence[Any], where: Sequence[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Takes one action in each of these copies: rewards, terminated, and truncated where not terminated."""
        rewards = np.empty(len(where))
        terminated, truncated = np.empty(len(where), np.bool_), np.empty(len(where), np.bool_)
        for place, (index, action) in enumerate(zip(where, actions, strict=True)):
            try:
                observation, reward, is_over, is_cut, info = self.copies[index].step(action)
            except Exception as error:  # of the environment's own code
                raise RunFailed(f"the environment failed in step, with action {action}: {located(error)}") from error
            rewards[place], terminated[place], truncated[place] = reward, is_over, is_cut and not is_over
            self._write(index, observation)
            if info:
                self.successes[index] = bool(info["is_success"]) if "is_success" in info else None
            if self.watch is not None:
                self.watch(self.copies[index])
        return rewards, terminated, truncated

    def _write(self, index: int, observation: Any) -> None:
        row = self.observations[index]
        if self.history > 1:
            row[: -self.width] = row[self.width :]
            row[-1] = 1.0
            row = row[-self.width : -1]
        self.coder.write(observation, row)

    def close(self) -> None:
        for copy in self.copies:
            copy.close()
