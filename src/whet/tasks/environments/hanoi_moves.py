"""Tower of Hanoi move by move: every move is answered with the pegs, and an illegal one with why it is not.

    reward = (1 − progress) · solved + progress · share of the way that is covered

The second part is paid move by move: by how much of the shortest way from the start a move comes nearer to the goal,
less where it leads away. An illegal move leaves the disks as they are and is used up, as a turn that is no move is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.puzzles.final_answer import final_answer
from whet.tasks.puzzles.hanoi import Hanoi, Move, State, distance, read_moves, solution, spelled_pegs
from whet.tasks.puzzles.hanoi import play as played

EMPTY, LARGER, NO_MOVE = "0", "<", "?"  # why a move is none: the peg is empty, a smaller disk lies there, other text
INSTRUCTION = (
    "Tower of Hanoi with pegs A, B and C. {question} Move one disk at a time, the top one of its peg, and never a "
    "larger disk onto a smaller one. Write one move in every turn, as FROM->TO between <answer> and </answer>, for "
    "example <answer>A->C</answer>. You have {moves} moves."
)


@dataclass(frozen=True, kw_only=True)
class HanoiMoves:
    """Tower of Hanoi with 3 (level 1) to 10 disks (level 8), one move a turn."""

    level: int = 1  # difficulty, from 1 on
    chat: bool = False  # ask and answer in words
    spare: int = 4  # moves that are allowed beyond the shortest solution
    progress: float = 0.2  # weight of the reward for each move; 0: only the end is paid
    renamed_twins: bool = True  # starts that differ by the names of the pegs only are on one side of the split

    name: ClassVar[str] = "hanoi_moves"

    def __post_init__(self) -> None:
        if self.spare < 0:
            raise UserError(f"task {self.name}: spare is {self.spare}, must be 0 or more")
        if not 0 <= self.progress <= 1:
            raise UserError(f"task {self.name}: progress is {self.progress}, must be from 0 to 1")
        _ = self._whole

    @property
    def alphabet(self) -> str:
        return "".join(sorted(set(self._whole.alphabet + EMPTY + LARGER + NO_MOVE + ">\n")))

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(example) for example in self._whole.draw(count, seed=seed)]

    def held_out(self, count: int) -> list[Example]:
        return [self._example(example) for example in self._whole.held_out(count)]

    def score(self, example: Example, text: str) -> Score:
        solved = float(self.correct(example, text))
        return Score(reward=(1 - self.progress) * solved, parts={"correct": solved})

    def correct(self, example: Example, text: str) -> bool:
        return text == example.answer

    def environment(self) -> "Tower":
        return Tower(self)

    def move(self, example: Example, texts: Sequence[str]) -> str:
        """The next move of the shortest solution."""
        tower = self.environment()
        tower.reset(example)
        for text in texts:
            tower.step(text)
        return ("->" if self.chat else "").join(solution(tower.state, tower.goal)[0])

    @cached_property
    def _whole(self) -> Hanoi:
        """The task of whole solutions, whose problems these are."""
        return Hanoi(level=self.level, chat=self.chat, renamed_twins=self.renamed_twins)

    def _example(self, example: Example) -> Example:
        question = str(example.columns["question"])
        start, _, goal = question.partition(":")
        moves = distance(tuple(start), goal) + self.spare
        asked = f"{spelled_pegs(tuple(start))} Bring all disks to peg {goal}."
        request = INSTRUCTION.format(question=asked, moves=moves)
        return replace(
            example,
            id=f"{self.name}:{question}",
            prompt=(Message(role="user", content=request),) if self.chat else example.prompt,
            answer=goal * len(start),
        )


class Tower:
    """One tower. Its outcome is the peg of every disk, the smallest first."""

    def __init__(self, task: HanoiMoves) -> None:
        self._task = task
        self.state: State = ()
        self.goal = ""
        self._shortest = self._left = 0

    def reset(self, example: Example) -> str:
        start, _, self.goal = str(example.columns["question"]).partition(":")
        self.state = tuple(start)
        self._shortest = distance(self.state, self.goal)
        self._left = self._shortest + self._task.spare
        return ""

    def step(self, text: str) -> tuple[str, float, bool]:
        self._left -= 1
        moves = read_moves(final_answer(text) if self._task.chat else text)
        problem = self._problem(moves)
        before = distance(self.state, self.goal)
        if problem == "":
            self.state, _ = played(self.state, moves)
        after = distance(self.state, self.goal)
        paid = self._task.progress * (before - after) / self._shortest
        return self._said(problem, moves), paid, after == 0 or self._left <= 0

    def outcome(self) -> str:
        return "".join(self.state)

    def _problem(self, moves: Sequence[Move]) -> str:
        """Why these moves are not one legal move; empty if they are."""
        if len(moves) != 1 or moves[0][0] == moves[0][1]:
            return NO_MOVE
        if moves[0][0] not in self.state:
            return EMPTY
        return "" if played(self.state, list(moves))[1] else LARGER

    def _said(self, problem: str, moves: Sequence[Move]) -> str:
        if not self._task.chat:
            return f"{problem}{''.join(self.state)}>"
        return f"{self._reason(problem, moves)}{spelled_pegs(self.state)} Moves left: {self._left}."

    def _reason(self, problem: str, moves: Sequence[Move]) -> str:
        if problem == NO_MOVE:
            return "This is no move: write one, as FROM->TO with two different pegs. "
        if problem == EMPTY:
            return f"This is illegal: peg {moves[0][0]} is empty. "
        if problem == LARGER:
            source, target = moves[0]
            upper, lower = self.state.index(source) + 1, self.state.index(target) + 1
            return f"This is illegal: disk {upper} is larger than disk {lower}, the top one of peg {target}. "
        return ""
