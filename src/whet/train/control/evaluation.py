"""Evaluation on starts that no training episode has, and one of its episodes as pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.config.loops import Acting
from whet.control.environments import EVALUATION, Environments, episode_seed, make_environment
from whet.control.playing import Episode, gif, play
from whet.control.policies import Policy
from whet.errors import UserError
from whet.evaluate.statistics import Interval, flat_metrics, mean_interval
from whet.streams import stream_key
from whet.user_code import one_line

COPIES = 20  # at most, that are evaluated at a time
NOISE = 3  # of the streams of random numbers


def build_environments(config: Acting, count: int) -> Environments:
    """Copies of the environment of a config."""
    named = config.environment
    return Environments(
        lambda: make_environment(named.name, named.options, max_steps=named.max_steps),
        count,
        history=config.policy.history,
    )


class Evaluation:
    """Measures a policy on the same episodes every time."""

    def __init__(self, config: Acting, policy: Policy) -> None:
        self.config, self.policy = config, policy
        self._environments: Environments | None = None

    def __call__(self) -> dict[str, float]:
        settings, seed = self.config.eval, self.config.seed
        if self._environments is None:
            self._environments = build_environments(self.config, min(COPIES, settings.episodes))
        seeds = [episode_seed(EVALUATION, seed, number) for number in range(settings.episodes)]
        noise = None if settings.deterministic else stream_key((seed, NOISE)) % 2**63
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

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, without a screen
    environments = Environments(make, 1, history=config.policy.history, watch=watch)
    try:
        play(policy, environments, [episode_seed(EVALUATION, config.seed, 0)])
    finally:
        environments.close()
    return gif(pictures) if pictures else None
