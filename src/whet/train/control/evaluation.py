"""Evaluation on starts that no training episode has, and one of its episodes as pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.config.control import ControlConfig
from whet.config.loops import Acting
from whet.control.batched import BatchedEnvironment, batched_environment, play_batched
from whet.control.environments import Copies, Environments, Named, make_environment
from whet.control.playing import Episode, gif, play
from whet.control.policies import Policy
from whet.control.processes import ProcessEnvironments
from whet.control.seeds import EVALUATION, episode_seed
from whet.errors import UserError
from whet.evaluate.statistics import Interval, flat_metrics, mean_interval
from whet.streams import stream_key
from whet.user_code import one_line

COPIES = 20  # at most, that are evaluated at a time
NOISE = 3  # of the streams of random numbers


def build_environments(config: Acting, count: int) -> Environments:
    """Copies of the environment of a config, stepped in turn."""
    return Environments(_named(config), count, history=config.policy.history)


def build_copies(config: Acting, count: int) -> Copies:
    """The same, in the processes that the config asks for."""
    processes = config.rollout.processes if isinstance(config, ControlConfig) else 1
    if processes > 1:
        return ProcessEnvironments(_named(config), count, processes=processes, history=config.policy.history)
    return build_environments(config, count)


def _named(config: Acting) -> Named:
    asked = config.environment
    return Named(name=asked.name, options=asked.options, max_steps=asked.max_steps)


def step_limit(config: Acting, environment: BatchedEnvironment) -> int:
    """Of an episode of a batched environment."""
    return config.environment.max_steps or environment.max_steps


class Evaluation:
    """Measures a policy on the same episodes every time."""

    def __init__(self, config: Acting, policy: Policy) -> None:
        self.config, self.policy = config, policy
        self._batched = batched_environment(config.environment.name, config.environment.options)
        self._environments: Copies | None = None

    def __call__(self) -> dict[str, float]:
        settings, seed = self.config.eval, self.config.seed
        seeds = [episode_seed(EVALUATION, seed, number) for number in range(settings.episodes)]
        noise = None if settings.deterministic else stream_key((seed, NOISE)) % 2**63
        if self._batched is not None:
            most = step_limit(self.config, self._batched)
            return measured(play_batched(self.policy, self._batched, seeds, max_steps=most, noise_seed=noise))
        if self._environments is None:
            self._environments = build_copies(self.config, min(COPIES, settings.episodes))
        return measured(play(self.policy, self._environments, seeds, noise_seed=noise))

    def close(self) -> None:
        if self._environments is not None:
            self._environments.close()


def measured(episodes: Sequence[Episode]) -> dict[str, float]:
    """The metrics of an evaluation."""
    successes = [float(one.success) for one in episodes if one.success is not None]
    means: dict[str, Interval | float | None] = {
        "reward": mean_interval([one.reward for one in episodes]),
        "episode_length": fmean(one.length for one in episodes),
        "success": fmean(successes) if successes else None,
        "episodes": len(episodes),
    }
    return flat_metrics(means)


def film(config: Acting, policy: Policy) -> bytes | None:
    """A GIF of the first evaluation episode; None if the environment draws nothing."""
    named, pictures = config.environment, list[NDArray[Any]]()

    def watch(environment: Any) -> None:
        try:
            picture = environment.render()
        except Exception as error:  # without a library for drawing, of any type
            raise UserError(f"{named.name} cannot be drawn: {one_line(error)}") from error
        if isinstance(picture, np.ndarray):
            pictures.append(picture)

    def make() -> Any:
        return make_environment(named.name, named.options, max_steps=named.max_steps, render=True)

    if batched_environment(named.name, named.options) is not None:
        return None
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, without a screen
    environments = Environments(make, 1, history=config.policy.history, watch=watch)
    try:
        play(policy, environments, [episode_seed(EVALUATION, config.seed, 0)])
    finally:
        environments.close()
    return gif(pictures) if pictures else None
