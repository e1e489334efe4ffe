"""Environments of which thousands of copies are one tensor, on the device of the run. They are pure functions.

`environment: torch:CartPole` names one of ours; a class of your own is one if it has `begin` and `step` as here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from whet.control.playing import Episode
from whet.control.policies import Policy
from whet.control.spaces import gymnasium
from whet.errors import UserError, nearest
from whet.imports import load_named
from whet.streams import uniform
from whet.user_code import one_line

PREFIX = "torch:"


class BatchedEnvironment(Protocol):
    """The state of N copies is (N, S) of any dtype; an episode is a function of its seed and its actions."""

    observation_space: Any  # of one copy, a Box of Gymnasium
    action_space: Any
    max_steps: int  # of an episode, which is then truncated

    def begin(self, seeds: Tensor) -> Tensor:
        """(N,) int64 seeds → (N, S) states of new episodes, on the device of the seeds."""

    def step(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, S) states and (N, K) actions → the next states, (N,) rewards, and (N,) whether the episode terminated."""

    def observe(self, states: Tensor) -> Tensor:
        """(N, D) float32."""


class CartPole:
    """Gymnasium's CartPole-v1 (Barto, Sutton and Anderson 1983) with its constants, in float64 as there."""

    max_steps = 500
    GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    FAR, TILTED = 2.4, 12 * 2 * math.pi / 360  # where an episode terminates
    START = 0.05  # the largest number of a first state
    ROW: ClassVar = (FAR * 2, np.inf, TILTED * 2, np.inf)  # bounds of observations

    def __init__(self) -> None:
        spaces, bounds = gymnasium().spaces, np.array(self.ROW, np.float32)
        self.observation_space, self.action_space = spaces.Box(-bounds, bounds), spaces.Discrete(2)

    def begin(self, seeds: Tensor) -> Tensor:
        numbers = uniform(seeds[:, None], torch.arange(len(self.ROW), device=seeds.device))
        return (2 * numbers - 1) * self.START

    def step(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, speed, angle, turning = states.unbind(dim=1)
        force = (2 * actions[:, 0] - 1) * self.FORCE
        sine, cosine, mass = angle.sin(), angle.cos(), self.CART + self.POLE
        lever = self.POLE * self.HALF_LENGTH
        push = (force + lever * turning.square() * sine) / mass
        inertia = self.HALF_LENGTH * (4 / 3 - self.POLE * cosine.square() / mass)
        twist = (self.GRAVITY * sine - cosine * push) / inertia
        moved = push - lever * twist * cosine / mass
        following = states + self.SECONDS * torch.stack([speed, moved, turning, twist], dim=1)
        terminated = (following[:, 0].abs() > self.FAR) | (following[:, 2].abs() > self.TILTED)
        return following, torch.ones_like(place), terminated

    def observe(self, states: Tensor) -> Tensor:
        return states.float()


OURS: dict[str, Callable[..., BatchedEnvironment]] = {"CartPole": CartPole}


def batched_environment(name: str, options: Mapping[str, Any]) -> BatchedEnvironment | None:
    """The batched environment of a name; None if the name is that of another environment."""
    if name.startswith(PREFIX):
        made = OURS.get(name.removeprefix(PREFIX))
        if made is None:
            raise UserError(f"environment {name}: there is no such batched environment{nearest(name, _names())}")
    elif ":" in name and name.rpartition(":")[2].isidentifier():
        found: Any = load_named(name, "environment")
        if not hasattr(found, "begin"):
            return None
        made = found
    else:
        return None
    try:
        return made(**options)
    except TypeError as error:
        raise UserError(f"environment {name}: {one_line(error)}") from error


def _names() -> list[str]:
    return [f"{PREFIX}{name}" for name in OURS]


@torch.inference_mode()
def play_batched(
    policy: Policy,
    environment: BatchedEnvironment,
    seeds: Sequence[int],
    *,
    max_steps: int,
    noise_seed: int | None = None,
) -> list[Episode]:
    """An episode from each seed, all at once. Without a `noise_seed` the likeliest actions are taken."""
    device, distribution = next(policy.parameters()).device, policy.distribution
    states = environment.begin(torch.tensor(seeds, device=device))
    noise = None if noise_seed is None else torch.Generator(device).manual_seed(noise_seed)
    running = torch.ones(len(seeds), dtype=torch.bool, device=device)
    rewards, lengths = torch.zeros(len(seeds), dtype=torch.float64, device=device), torch.zeros_like(running).long()
    for _ in range(max_steps):
        parameters = policy.action_parameters(policy.seen(environment.observe(states)))
        if noise is None:
            actions = distribution.mode(parameters)
        else:
            actions = distribution.sample(parameters, distribution.draw_noise((len(seeds),), noise))
        states, got, terminated = environment.step(states, distribution.for_batch(actions))
        rewards += got * running
        lengths += running
        running &= ~terminated
        if not running.any():
            break
    pairs = zip(rewards.tolist(), lengths.tolist(), strict=True)
    return [Episode(reward=reward, length=length, success=None) for reward, length in pairs]
