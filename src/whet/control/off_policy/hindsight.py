"""Goals in observations: where they stand in a row, and the reward of achieving one in place of another.

A goal-conditioned environment observes a dictionary of `observation`, `achieved_goal` and `desired_goal`, and has
`compute_reward(achieved, desired, info)` for arrays of goals (Plappert et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.control.spaces import Floats, gymnasium, observation_coder
from whet.errors import RunFailed, UserError
from whet.user_code import located

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


@dataclass(frozen=True, slots=True)
class Goals:
    """Where goals stand in rows, and what judges them."""

    achieved: slice
    desired: slice
    shape: tuple[int, ...]  # of a goal
    judge: Callable[[NDArray[Any], NDArray[Any], dict[str, Any]], Any]  # the environment's compute_reward

    def rewards(self, rows: Floats) -> Floats:
        """(n,) rewards of observations after an action."""
        achieved, desired = (rows[:, part].reshape(-1, *self.shape) for part in (self.achieved, self.desired))
        try:
            found = np.asarray(self.judge(achieved, desired, {}), np.float32)
        except Exception as error:  # of the environment's own code
            raise RunFailed(f"the environment failed in compute_reward: {located(error)}") from error
        if found.shape != (len(rows),):
            raise RunFailed(
                f"compute_reward of the environment gave the shape {found.shape} for {len(rows)} goals at once: "
                f"hindsight needs one reward for each, so let it take arrays (n, {', '.join(map(str, self.shape))})"
            )
        return found


def goals_of(environment: Any) -> Goals:
    """The goals of an environment; a UserError for one without."""
    space, inside = environment.observation_space, getattr(environment, "unwrapped", environment)
    spaces = gymnasium().spaces
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
    if not {ACHIEVED, DESIRED} <= parts.keys() or not callable(getattr(inside, "compute_reward", None)):
        raise UserError(
            f"replay.hindsight needs observations that are a Dict with {ACHIEVED} and {DESIRED}, and compute_reward, "
            f"and this environment has {'no compute_reward' if parts else f'observations of {space}'}: leave it out"
        )
    is_box = all(isinstance(parts[name], spaces.Box) for name in (ACHIEVED, DESIRED))
    if not is_box or parts[ACHIEVED].shape != parts[DESIRED].shape:
        raise UserError(
            f"replay.hindsight puts achieved goals in place of desired ones, and their spaces are {parts[ACHIEVED]} "
            f"and {parts[DESIRED]}: they must be boxes of one shape"
        )
    places, first = {}, 0
    for name in sorted(parts):  # as the coder of a dictionary joins them
        size = observation_coder(parts[name]).size
        places[name], first = slice(first, first + size), first + size
    return Goals(places[ACHIEVED], places[DESIRED], tuple(parts[ACHIEVED].shape), inside.compute_reward)
