"""A grid world as text: a start, a goal and walls; every turn is one move, answered with the cell that it leads to.

    reward = 0.8 · arrived + 0.2 · progress

`progress` is paid turn by turn: by how much of the shortest way from the start a move has come nearer to the goal, less
where it leads away. The prompt `b3>d1#c2a4:` says start, goal and walls. A move into a wall or beyond the edge, and a
text that is no move, leave the cell as it is and are used up.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from string import ascii_lowercase

from whet.errors import UserError
from whet.records import Example, Score
from whet.tasks.space import Problem, Space, fingerprint

ARRIVED_WEIGHT = 0.8
PROGRESS_WEIGHT = 0.2
HIGHEST_LEVEL = 6
SMALLEST = 4  # cells of a side at level 1
PROBLEMS = 5_000  # about so many, where walls vary
MOVES = {"U": (0, 1), "D": (0, -1), "L": (-1, 0), "R": (1, 0)}  # letter → columns, rows

Cell = tuple[int, int]  # column and row, from 0


@dataclass(frozen=True, kw_only=True)
class GridWorld:
    """Walk to a goal around walls, one letter a turn: U, D, L, R."""

    level: int = 1  # 1 … 6: a square of level + 3 cells a side
    walls: int = 2  # cells that cannot be entered; each problem has others
    spare: int = 2  # moves that are allowed beyond the shortest way

    name = "grid"

    def __post_init__(self) -> None:
        if not 1 <= self.level <= HIGHEST_LEVEL:
            raise UserError(f"task grid: level is {self.level}, must be between 1 and {HIGHEST_LEVEL}")
        if not 0 <= self.walls <= self.side:
            raise UserError(f"task grid: walls is {self.walls}, must be between 0 and {self.side} at this level")
        if self.spare < 0:
            raise UserError(f"task grid: spare is {self.spare}, must be 0 or more")

    @property
    def side(self) -> int:
        return self.level + SMALLEST - 1

    @property
    def alphabet(self) -> str:
        digits = "".join(str(row) for row in range(1, self.side + 1))
        return "".join(sorted(ascii_lowercase[: self.side] + digits + "".join(MOVES) + ">#:"))

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(problem) for problem in self._space.training(count, seed)]

    def held_out(self, count: int) -> list[Example]:
        return self._held_out[:count]

    def score(self, example: Example, text: str) -> Score:
        arrived = float(self.correct(example, text))
        return Score(reward=ARRIVED_WEIGHT * arrived, parts={"correct": arrived})

    def correct(self, example: Example, text: str) -> bool:
        return text == example.answer

    def environment(self) -> "Walk":
        return Walk(side=self.side, spare=self.spare)

    def move(self, example: Example, texts: Sequence[str]) -> str:
        """A move on a shortest way."""
        walk = self.environment()
        walk.reset(example)
        for text in texts:
            walk.step(text)
        return walk.best_move()

    @cached_property
    def _held_out(self) -> list[Example]:
        """All of them: layouts of one start and goal may have the same walls."""
        problems = {problem.question: problem for problem in self._space.held_out(sum(self._space.sizes))}
        return [self._example(problem) for problem in problems.values()]

    @cached_property
    def _space(self) -> Space:
        cells = self.side * self.side
        layouts = max(1, PROBLEMS // (cells * (cells - 1))) if self.walls else 1
        return Space(sizes=(layouts * cells * (cells - 1),), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        """Cells in an order that a hash says: start and goal by the index, and then walls that leave a way."""
        assert kind == 0
        cells = [(column, row) for column in range(self.side) for row in range(self.side)]
        layout, place = divmod(index, len(cells) * (len(cells) - 1))
        first, second = divmod(place, len(cells) - 1)
        start, goal = cells[first], cells[second + (second >= first)]
        free = [cell for cell in cells if cell not in (start, goal)]
        free.sort(key=lambda cell: fingerprint("wall", self.side, layout, place, *cell))
        walls: list[Cell] = []
        for cell in free:
            if len(walls) == self.walls:
                break
            if start in distances(goal, frozenset([*walls, cell]), self.side):
                walls.append(cell)
        question = f"{named(start)}>{named(goal)}" + (f"#{''.join(map(named, sorted(walls)))}" if walls else "")
        return Problem(question=question, answer=named(goal), twin=question)

    def _example(self, problem: Problem) -> Example:
        return Example(
            id=f"{self.name}:{problem.question}",
            prompt=f"{problem.question}:",
            answer=problem.answer,
            columns={"question": problem.question, "level": self.level},
            twin=problem.twin,
        )


class Walk:
    """One walk. Its outcome is the cell that it has come to."""

    def __init__(self, *, side: int, spare: int) -> None:
        self._side, self._spare = side, spare
        self._at: Cell = (0, 0)
        self._left = self._shortest = 0
        self._distances: Mapping[Cell, int] = {}

    def reset(self, example: Example) -> str:
        ways, _, walls = str(example.columns["question"]).partition("#")
        start, _, goal = ways.partition(">")
        blocked = frozenset(cell_of(walls[place : place + 2]) for place in range(0, len(walls), 2))
        self._at, self._distances = cell_of(start), distances(cell_of(goal), blocked, self._side)
        self._shortest = self._distances[self._at]
        self._left = self._shortest + self._spare
        return ""

    def step(self, text: str) -> tuple[str, float, bool]:
        self._left -= 1
        before = self._distances[self._at]
        if text in MOVES:
            aside = _beside(self._at, text)
            self._at = aside if aside in self._distances else self._at
        after = self._distances[self._at]
        reward = PROGRESS_WEIGHT * (before - after) / self._shortest
        return named(self._at), reward, after == 0 or self._left <= 0

    def outcome(self) -> str:
        return named(self._at)

    def best_move(self) -> str:
        """The first letter that leads nearer to the goal."""
        near = self._distances[self._at] - 1
        return next(letter for letter in MOVES if self._distances.get(_beside(self._at, letter)) == near)


def named(cell: Cell) -> str:
    """As the prompt says it: a letter for the column, a digit for the row."""
    return f"{ascii_lowercase[cell[0]]}{cell[1] + 1}"


def cell_of(name: str) -> Cell:
    return ascii_lowercase.index(name[0]), int(name[1:]) - 1


@lru_cache(maxsize=4096)
def distances(goal: Cell, walls: frozenset[Cell], side: int) -> Mapping[Cell, int]:
    """Every cell from which the goal can be reached → moves of the shortest way."""
    found, waiting = {goal: 0}, deque([goal])
    while waiting:
        cell = waiting.popleft()
        for letter in MOVES:
            aside = _beside(cell, letter)
            inside = 0 <= aside[0] < side and 0 <= aside[1] < side
            if inside and aside not in walls and aside not in found:
                found[aside] = found[cell] + 1
                waiting.append(aside)
    return found


def _beside(cell: Cell, letter: str) -> Cell:
    columns, rows = MOVES[letter]
    return cell[0] + columns, cell[1] + rows
