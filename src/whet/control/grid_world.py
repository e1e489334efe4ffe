"""The grids of `whet.tasks.puzzles.grid`, played move by move from numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from whet.control.spaces import gymnasium
from whet.tasks.puzzles.grid import MOVES, Grid, count_of, reward_of

STEPS = 4  # moves that an episode may have, times the cells of a side
Row = tuple[Any, float, bool, bool, dict[str, Any]]


class GridWorld:
    """One observation has all that there is to know: where the agent, the goal and the wall are.

    The return of an episode is the score of its moves as a written answer.
    """

    def __init__(self, size: int = 3, render_mode: str | None = None) -> None:
        spaces, self.render_mode = gymnasium().spaces, render_mode
        self.size, self._letters = size, "".join(MOVES)
        self.observation_space = spaces.Box(0.0, 1.0, (3, size, size), np.float32)
        self.action_space = spaces.Discrete(len(MOVES))
        self._grid, self._start, self._moves = Grid.numbered(size, 0), Grid.numbered(size, 0), ""

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        """A grid of all, by its seed."""
        number = int(np.random.default_rng(seed).integers(count_of(self.size)))
        self._grid = self._start = Grid.numbered(self.size, number)
        self._moves = ""
        return self._observation(), {}

    def step(self, action: int) -> Row:
        move = self._letters[action]
        self._moves += move
        self._grid = self._grid.at(self._grid.moved(move))
        is_there = self._grid.agent == self._grid.goal
        is_over = is_there or len(self._moves) == STEPS * self.size
        reward = reward_of(self._start, self._moves).reward if is_over else 0.0
        return self._observation(), reward, is_over, False, {"is_success": is_there}

    def _observation(self) -> Any:
        found = np.zeros((3, self.size, self.size), np.float32)
        for layer, cell in enumerate((self._grid.agent, self._grid.goal, self._grid.wall)):
            found[layer, cell[0], cell[1]] = 1.0
        return found

    def render(self) -> Any:
        """Cells as squares: the agent blue, the goal green, the wall dark."""
        shown = np.full((self.size, self.size, 3), 235, np.uint8)
        places = (self._grid.wall, self._grid.goal, self._grid.agent)
        for cell, colour in zip(places, ((60, 60, 60), (74, 160, 90), (42, 111, 187)), strict=True):
            shown[cell] = colour
        return shown.repeat(40, axis=0).repeat(40, axis=1)

    def close(self) -> None:
        """Nothing is open."""
