"""Spaces of Gymnasium as arrays: every observation becomes one row of float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import UserError
from whet.imports import optional_package

Floats = NDArray[np.float32]
INSTALL = 'pip install "whet[gym]"'
PICTURE = 255.0  # the largest number of a uint8


@dataclass(frozen=True, slots=True)
class ObservationCoder:
    """How observations of a space are written into a row."""

    size: int
    write: Callable[[Any, Floats], None]
    picture: tuple[int, ...] = ()  # channels, height, width of a row that is a picture


def gymnasium() -> Any:
    """The package, which is an extra."""
    return optional_package("gymnasium", "loop control", remedy=INSTALL)


def observation_coder(space: Any) -> ObservationCoder:
    """The coder of a space: choices one-hot, pictures in [0, 1] with channels first, the rest flat."""
    spaces = gymnasium().spaces
    match space:
        case spaces.Discrete():
            return ObservationCoder(int(space.n), _one_hot([int(space.n)], [int(space.start)]))
        case spaces.MultiDiscrete():
            sizes, starts = space.nvec.reshape(-1).tolist(), np.asarray(space.start).reshape(-1).tolist()
            return ObservationCoder(sum(sizes), _one_hot(sizes, starts))
        case spaces.MultiBinary():
            return ObservationCoder(prod(space.shape), _flat)
        case spaces.Box() if space.dtype == np.uint8 and len(space.shape) == 3:
            height, width, channels = space.shape
            return ObservationCoder(prod(space.shape), _picture, picture=(channels, height, width))
        case spaces.Box():
            return ObservationCoder(prod(space.shape), _flat)
        case spaces.Dict():
            return _joined({key: observation_coder(one) for key, one in space.spaces.items()})
    raise UserError(f"observations of the space {space} are not supported: use Box, Discrete, Multi… or Dict of them")


def _flat(observation: Any, row: Floats) -> None:
    row[:] = observation if row.shape == np.shape(observation) else np.reshape(observation, -1)


def _picture(observation: Any, row: Floats) -> None:
    row[:] = np.moveaxis(observation, -1, 0).reshape(-1)
    row /= PICTURE


def _one_hot(sizes: list[int], starts: list[int]) -> Callable[[Any, Floats], None]:
    offsets = np.array([0, *accumulate(sizes)][: len(sizes)]) - np.array(starts)

    def write(observation: Any, row: Floats) -> None:
        row[:] = 0.0
        row[np.reshape(observation, -1) + offsets] = 1.0

    return write


def _joined(coders: dict[str, ObservationCoder]) -> ObservationCoder:
    """The parts of a dictionary one behind the other, by the order of their names."""
    ends = dict(zip(sorted(coders), accumulate(coders[key].size for key in sorted(coders)), strict=True))

    def write(observation: Any, row: Floats) -> None:
        for key, end in ends.items():
            coders[key].write(observation[key], row[end - coders[key].size : end])

    return ObservationCoder(sum(one.size for one in coders.values()), write)
