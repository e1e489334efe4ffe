"""A grid with a wall, an agent and a goal: the shortest way in moves U, D, L and R, written as one answer.

    reward = 0.8 + 0.2 · shortest / moves     if the last move, and no earlier one, reaches the goal
             0.2 · progress                   otherwise

`progress` is the share of the distance to the goal that the moves have covered. A move into a wall or over the edge
stays where it is. A policy of numbers plays the same grids move by move: `whet.control.grid_world`.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from whet.records import Example, Score
from whet.tasks.procedural import Procedural
from whet.tasks.space import Problem, Space

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
AGENT, GOAL, WALL, FREE = "AGxo"  # letters: texts that differ in signs only count as the same elsewhere
SMALLEST = 3  # cells of a side at level 1
SOLVED, SHORTEST, PROGRESS = 0.8, 0.2, 0.2
Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Grid:
    """Where things stand on `size` × `size` cells."""

    size: int
    wall: Cell
    goal: Cell
    agent: Cell

    @classmethod
    def numbered(cls, size: int, number: int) -> Grid:
        """One of the `count_of(size)` grids, whose three cells differ."""
        cells, chosen = [divmod(place, size) for place in range(size * size)], list[Cell]()
        for _ in range(3):
            number, place = divmod(number, len(cells))
            chosen.append(cells.pop(place))
        return cls(size, *chosen)

    def moved(self, move: str) -> Cell:
        """Where the agent is after a move."""
        row, column = self.agent[0] + MOVES[move][0], self.agent[1] + MOVES[move][1]
        inside = 0 <= row < self.size and 0 <= column < self.size
        return (row, column) if inside and (row, column) != self.wall else self.agent

    def at(self, agent: Cell) -> Grid:
        return Grid(self.size, self.wall, self.goal, agent)

    @property
    def text(self) -> str:
        """Its rows, with a slash between them."""
        signs = {self.wall: WALL, self.goal: GOAL, self.agent: AGENT}
        rows = range(self.size)
        return "/".join("".join(signs.get((row, column), FREE) for column in rows) for row in rows)


def read_grid(text: str) -> Grid:
    """The grid that `Grid.text` wrote, with the agent elsewhere than the goal."""
    rows = text.split("/")
    found = {
        sign: (row, line.index(sign)) for row, line in enumerate(rows) for sign in (WALL, GOAL, AGENT) if sign in line
    }
    return Grid(len(rows), found[WALL], found[GOAL], found[AGENT])


def count_of(size: int) -> int:
    cells = size * size
    return cells * (cells - 1) * (cells - 2)


@lru_cache(maxsize=65536)
def shortest_way(grid: Grid) -> str:
    """The first of the shortest ways to the goal, by the order of the moves; there is one on three cells or more."""
    ways, waiting = {grid.agent: ""}, deque([grid.agent])
    while waiting:
        place = waiting.popleft()
        if place == grid.goal:
            return ways[place]
        for move in MOVES:
            following = grid.at(place).moved(move)
            if following not in ways:
                ways[following] = ways[place] + move
                waiting.append(following)
    raise AssertionError("one wall does not divide a grid")


def walked(grid: Grid, moves: str) -> tuple[Grid, int]:
    """The grid after the moves, and how many were made: none after the goal is reached."""
    for count, move in enumerate(moves):
        if grid.agent == grid.goal:
            return grid, count
        grid = grid.at(grid.moved(move))
    return grid, len(moves)


def reward_of(grid: Grid, moves: str) -> Score:
    """Of an answer, or of an episode that ended after these moves."""
    end, made = walked(grid, moves)
    shortest = len(shortest_way(grid))
    if end.agent == end.goal and made == len(moves):
        short = shortest / made
        return Score(reward=SOLVED + SHORTEST * short, parts={"correct": 1.0, "shortest": short})
    progress = max(0.0, 1 - len(shortest_way(end)) / shortest) if made == len(moves) else 0.0
    return Score(reward=PROGRESS * progress, parts={"correct": 0.0, "shortest": 0.0})


@dataclass(frozen=True, kw_only=True)
class GridTask(Procedural):
    """Grids of 3 × 3 (level 1) to 8 × 8 cells (level 6) as text: `Aoo/oxo/ooG>` is answered by `RRDD`."""

    name = "grid"
    highest_level = 6
    instruction = (
        "A is you, G is the goal, x is a wall; rows are separated by slashes: {question}. Write the shortest way to "
        "the goal with U, D, L and R for up, down, left and right, and end with it."
    )

    @property
    def size(self) -> int:
        return self.level + SMALLEST - 1

    @property
    def _characters(self) -> str:
        return AGENT + GOAL + WALL + FREE + "/" + "".join(MOVES)

    @property
    def _space(self) -> Space:
        return Space(sizes=(count_of(self.size),), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        grid = Grid.numbered(self.size, index)
        return Problem(question=grid.text, answer=shortest_way(grid), twin=grid.text)

    def _last(self, text: str) -> str:
        runs = re.findall(r"\b[UDLR]+\b", text)
        return str(runs[-1]) if runs else ""

    def score(self, example: Example, text: str) -> Score:
        given = self._given(text)
        if not given or not set(given) <= set(MOVES):
            return Score(reward=0.0, parts={"correct": 0.0, "shortest": 0.0})
        return reward_of(read_grid(str(example.columns["question"])), given)

    def correct(self, example: Example, text: str) -> bool:
        return self.score(example, text).parts["correct"] == 1

    def wrong_play(self, example: Example, *, seed: int) -> list[str]:  # noqa: ARG002 - the same for every seed
        """Every cell in turn, the way without its last move and with one more, and the way back."""
        size = self.size
        sweep = "".join(("R" if row % 2 == 0 else "L") * (size - 1) + "D" for row in range(size))
        plays = ("U" * size + "L" * size + sweep, example.answer[:-1], example.answer + "U", example.answer[::-1] + "U")
        return [play for play in plays if play and not self.correct(example, play)]
