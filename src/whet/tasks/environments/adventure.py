"""A text adventure of our own: rooms, things, locked doors and a treasure, made from the number of the game.

    reward = 0.8 · found + 0.2 · progress

`progress` is paid turn by turn: by how much of the shortest way from the start a command comes nearer to the treasure,
less where it leads away. Every command is used up, and `spare` more are allowed than the shortest way needs. A key lies
where it can be reached without the door that it opens (`adventure_world`), so every game can be won. Neither prompt nor
number says where.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.environments.adventure_world import DIRECTIONS, Place, World, commands_to_treasure, made_world
from whet.tasks.puzzles.final_answer import final_answer
from whet.tasks.space import Problem, Space

FOUND_WEIGHT = 0.8
PROGRESS_WEIGHT = 0.2
HIGHEST_LEVEL = 6
GAMES = 10_000
INSTRUCTION = (
    "Text adventure {number}. You are in a house and look for the {treasure}. In every turn write one command between "
    "<answer> and </answer>: go DIRECTION (north, east, south or west), take THING, unlock DIRECTION (a door needs the "
    "key of its colour), look, or inventory. The game ends when you take the {treasure}, or after {commands} commands."
)


@dataclass(frozen=True, kw_only=True)
class Adventure:
    """A text adventure: find a treasure behind locked doors, one command a turn."""

    level: int = 1  # 1 … 6: level + 3 rooms, one locked door, two from level 3 on
    chat: bool = False  # ask in words
    spare: int = 10  # commands that are allowed beyond the shortest way

    name: ClassVar[str] = "adventure"

    def __post_init__(self) -> None:
        if not 1 <= self.level <= HIGHEST_LEVEL:
            raise UserError(f"task {self.name}: level is {self.level}, must be between 1 and {HIGHEST_LEVEL}")
        if self.spare < 0:
            raise UserError(f"task {self.name}: spare is {self.spare}, must be 0 or more")

    @property
    def alphabet(self) -> str:
        return "".join(chr(code) for code in range(32, 127)) + "\n"

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(problem) for problem in self._space.training(count, seed)]

    def held_out(self, count: int) -> list[Example]:
        return [self._example(problem) for problem in self._space.held_out(count)]

    def score(self, example: Example, text: str) -> Score:
        found = float(self.correct(example, text))
        return Score(reward=FOUND_WEIGHT * found, parts={"correct": found})

    def correct(self, example: Example, text: str) -> bool:
        return text == example.answer

    def environment(self) -> "Walkthrough":
        return Walkthrough(self)

    def move(self, example: Example, texts: Sequence[str]) -> str:
        """The next command of a shortest way."""
        game = self.environment()
        game.reset(example)
        for text in texts:
            game.step(text)
        return commands_to_treasure(game.world, game.place)[0]

    @cached_property
    def _space(self) -> Space:
        return Space(sizes=(GAMES,), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        world = made_world(self.level, index)
        return Problem(question=f"{index:0{len(str(GAMES - 1))}d}", answer=world.treasure, twin=world.content)

    def _example(self, problem: Problem) -> Example:
        world = made_world(self.level, int(problem.question))
        commands = len(commands_to_treasure(world, world.start)) + self.spare
        request = INSTRUCTION.format(number=problem.question, treasure=problem.answer, commands=commands)
        return Example(
            id=f"{self.name}:{problem.question}",
            prompt=(Message(role="user", content=request),) if self.chat else f"{problem.question} {problem.answer}\n",
            answer=problem.answer,
            columns={"question": problem.question, "level": self.level},
            twin=problem.twin,
        )


class Walkthrough:
    """One game. Its outcome is the treasure, once it was taken."""

    def __init__(self, task: Adventure) -> None:
        self._task = task
        self.world: World = made_world(1, 0)
        self.place: Place = self.world.start
        self._shortest = self._left = 0

    def reset(self, example: Example) -> str:
        self.world = made_world(int(example.columns["level"]), int(example.columns["question"]))
        self.place = self.world.start
        self._shortest = len(commands_to_treasure(self.world, self.place))
        self._left = self._shortest + self._task.spare
        return self._said("")

    def step(self, text: str) -> tuple[str, float, bool]:
        self._left -= 1
        before = len(commands_to_treasure(self.world, self.place))
        said = self._done(" ".join((final_answer(text) if self._task.chat else text).lower().split()))
        after = len(commands_to_treasure(self.world, self.place))
        paid = PROGRESS_WEIGHT * (before - after) / self._shortest
        return self._said(said), paid, after == 0 or self._left <= 0

    def outcome(self) -> str:
        return self.world.treasure if self.world.treasure in self.place.held else ""

    def _done(self, command: str) -> str:
        """Carries a command out; the sentence about it, or about why it cannot be."""
        verb, _, what = command.partition(" ")
        after = self.world.after(self.place, command)
        if after is not None:
            self.place = after
            return {"go": "", "take": f"You take the {what}.", "unlock": f"You unlock the door to the {what}."}[verb]
        if command == "look":
            return ""
        if command == "inventory":
            return f"You have: {', '.join(sorted(self.place.held)) or 'nothing'}."
        return self._refused(verb, what)

    def _refused(self, verb: str, what: str) -> str:
        """Why a command cannot be carried out."""
        if verb in ("go", "unlock") and what in DIRECTIONS:
            colour = self.world.lock(self.place, what)
            if what not in self.world.exits(self.place.room):
                return f"There is no way {what}."
            if verb == "go":
                return f"The {colour} door to the {what} is locked."
            return f"You have no {colour} key." if colour else f"There is no locked door to the {what}."
        if verb == "take" and what:
            return "There is no such thing here."
        return "You can go DIRECTION, take THING, unlock DIRECTION, look, or ask for your inventory."

    def _said(self, sentence: str) -> str:
        """The sentence and the room, as the policy sees it."""
        exits = []
        for direction in self.world.exits(self.place.room):
            colour = self.world.lock(self.place, direction)
            exits.append(f"{direction} ({colour} door, locked)" if colour else direction)
        things = ", ".join(self.world.things(self.place)) or "nothing"
        room = f"You are in the {self.world.names[self.place.room]}. You see: {things}. Exits: {', '.join(exits)}."
        return f"{sentence} {room}".strip() if self._task.chat else f"{sentence}\n{room}\n>".lstrip("\n")
