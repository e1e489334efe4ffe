"""Episodes that are played to be measured or seen, not to be learned from."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from whet.control.environments import Copies
from whet.control.policies import Policy

PICTURES = 150  # at most, of a video
WIDTH = 360  # pixels of a video, at most
MILLISECONDS = 40  # between pictures


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """A finished episode."""

    reward: float  # its return
    length: int
    success: bool | None  # where the environment says


@torch.inference_mode()
def play(policy: Policy, environments: Copies, seeds: Sequence[int], *, noise_seed: int | None = None) -> list[Episode]:
    """An episode from each seed. Without a `noise_seed` the likeliest actions are taken."""
    found: dict[int, Episode] = {}
    device = next(policy.parameters()).device
    noise = None if noise_seed is None else torch.Generator().manual_seed(noise_seed)
    waiting = iter(enumerate(seeds))
    episode: dict[int, int] = {}  # copy → the number of its episode
    rewards, lengths = np.zeros(len(environments)), np.zeros(len(environments), np.int64)

    def begin(copy: int) -> None:
        number, seed = next(waiting, (None, 0))
        episode.pop(copy, None)
        if number is not None:
            episode[copy], rewards[copy], lengths[copy] = number, 0.0, 0
            environments.reset(copy, seed)

    for copy in range(len(environments)):
        begin(copy)
    while episode:
        where = sorted(episode)
        parameters = policy.action_parameters(
            policy.seen(torch.from_numpy(environments.observations[where]).to(device))
        )
        if noise is None:
            actions = policy.distribution.mode(parameters)
        else:
            drawn = policy.distribution.draw_noise((len(where),), noise).to(device)
            actions = policy.distribution.sample(parameters, drawn)
        chosen = policy.distribution.for_environment(actions.cpu().numpy())
        got, terminated, truncated = environments.step(chosen, where)
        rewards[where] += got
        lengths[where] += 1
        for place in np.flatnonzero(terminated | truncated).tolist():
            copy = where[place]
            found[episode[copy]] = Episode(
                reward=float(rewards[copy]), length=int(lengths[copy]), success=environments.successes[copy]
            )
            begin(copy)
    return [found[number] for number in range(len(seeds))]


def gif(pictures: Sequence[NDArray[Any]]) -> bytes:
    """An animation of at most `PICTURES` pictures, evenly chosen."""
    chosen = [pictures[place] for place in np.linspace(0, len(pictures) - 1, min(PICTURES, len(pictures))).astype(int)]
    frames = [Image.fromarray(np.asarray(one, np.uint8)) for one in chosen]
    for frame in frames:
        frame.thumbnail((WIDTH, WIDTH))
    flat = [frame.quantize(64) for frame in frames]
    stream = io.BytesIO()
    flat[0].save(stream, "GIF", save_all=True, append_images=flat[1:], duration=MILLISECONDS, loop=0)
    return stream.getvalue()
