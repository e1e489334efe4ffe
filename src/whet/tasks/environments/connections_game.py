"""Connections as it is played: one group of four words a turn, "one away" where three belong together, four lives.

    reward = 0.3 · solved + 0.1 · solved · lives left / lives + 0.6 · groups found / groups

A group is paid in the turn that finds it, and the lives that are left in the last one. A turn that is no guess (other
words, not four, four that were guessed before) costs no life, but only so many are answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from whet.errors import UserError
from whet.records import Example, Score
from whet.tasks.maths.extraction import answer_block
from whet.tasks.puzzles.connections import LEAKED, SIZE, TAG, Connections, Group, listed_words

SOLVED, LIVES, FOUND = 0.3, 0.1, 0.6
SLIPS = 4  # turns that are no guess; the last of them ends the game
RIGHT, ONE_AWAY, WRONG, NO_GUESS = "+", "~", "-", "?"
SIGNS = RIGHT + ONE_AWAY + WRONG + NO_GUESS
INSTRUCTION = (
    "These {count} words make {groups} groups of four that belong together: {words}. Every word is in one group. "
    "Find the groups one at a time: in every turn guess one, four words separated by commas, between <answer> and "
    "</answer>. You are told whether the group is right, or one away: three of the four belong together. After wrong "
    "guess number {lives} the game is over."
)


@dataclass(frozen=True, kw_only=True)
class ConnectionsGame(Connections):
    """The game of Connections: guess one group of four at a time, with four lives."""

    lives: int = 4  # wrong guesses that end the game

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lives < 1:
            raise UserError(f"task {self.name}: lives is {self.lives}, must be 1 or more")

    @property
    def name(self) -> str:
        return "connections_game"

    @cached_property
    def alphabet(self) -> str:
        said = "" if not self.chat else "".join(chr(code) for code in range(32, 127)) + "\n"
        return "".join(sorted(set(super().alphabet + SIGNS + said)))

    def score(self, example: Example, text: str) -> Score:
        parts = super().score(example, text).parts
        solved = parts["correct"]
        return Score(reward=SOLVED * solved, parts={"correct": solved, "groups": parts["groups"]})

    def environment(self) -> "Game":
        return Game(self)

    def move(self, example: Example, texts: Sequence[str]) -> str:
        """The first group that is not found yet."""
        game = self.environment()
        game.reset(example)
        for text in texts:
            game.step(text)
        return self.written([game.left[0]])

    def _asked(self, words: Sequence[str]) -> str:
        listed = ", ".join(words)
        return INSTRUCTION.format(count=len(words), groups=self.groups, words=listed, lives=self.lives)


class Game:
    """One game. Its outcome are the groups that were found."""

    def __init__(self, task: ConnectionsGame) -> None:
        self._task = task
        self.left: list[list[str]] = []  # groups that are not found yet
        self._found: list[list[str]] = []
        self._guessed: set[Group] = set()
        self._lives = self._slips = 0

    def reset(self, example: Example) -> str:
        self.left = [list(group) for group in example.columns["groups"]]
        self._found, self._guessed = [], set()
        self._lives, self._slips = self._task.lives, SLIPS
        return ""

    def step(self, text: str) -> tuple[str, float, bool]:
        words = frozenset(word for group in self.left for word in group)
        guess = frozenset(self._read(text, words))
        if len(guess) != SIZE or guess in self._guessed:
            self._slips -= 1
            why = "you have guessed these four before" if guess in self._guessed else "write four of the words left"
            return self._said(NO_GUESS, f"That is no guess: {why}, separated by commas."), 0.0, self._slips == 0
        self._guessed.add(guess)
        right = next((group for group in self.left if guess == frozenset(group)), None)
        if right is not None:
            return self._right(right)
        self._lives -= 1
        is_near = any(len(guess & frozenset(group)) == LEAKED for group in self.left)
        said = self._said(ONE_AWAY, "One away.") if is_near else self._said(WRONG, "Wrong.")
        return said, 0.0, self._lives == 0

    def outcome(self) -> str:
        return self._task.written(self._found)

    def _right(self, group: list[str]) -> tuple[str, float, bool]:
        self.left.remove(group)
        self._found.append(group)
        paid = FOUND / (len(self._found) + len(self.left))
        if self.left:
            return self._said(RIGHT, "Right."), paid, False
        return self._said(RIGHT, "Right."), paid + LIVES * self._lives / self._task.lives, True

    def _read(self, text: str, words: Group) -> list[str]:
        """The words of a guess; in a chat it stands in the last <answer> block or the last line."""
        if self._task.chat:
            block = answer_block(text)
            inner = text if block is None else block
            lines = TAG.findall(inner) or [line for line in inner.splitlines() if line.strip()] or [""]
            return listed_words(lines[-1], words)
        return listed_words(text, words)

    def _said(self, sign: str, sentence: str) -> str:
        if not self._task.chat:
            return sign
        left = ", ".join(sorted(word for group in self.left for word in group))
        return f"{sentence} Lives left: {self._lives}. " + (f"Words left: {left}." if left else "All groups are found.")
