"""Number guessing and the grid world: their contracts, their best play, and what a play of one's own is paid."""

import math
from collections.abc import Sequence

import pytest

from whet.errors import UserError
from whet.records import Example
from whet.tasks.check import TaskProblem, check_task
from whet.tasks.environments.guessing import Guessing
from whet.tasks.environments.text_grid import MOVES, GridWorld, cell_of, distances, named
from whet.tasks.stepping.check_environment import check_environment, play, play_moves
from whet.tasks.stepping.replies import Reply

TASKS = [
    *(Guessing(level=level) for level in (1, 2, 4)),
    *(GridWorld(level=level, walls=walls) for level, walls in ((1, 0), (1, 2), (2, 5))),
]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_keeps_its_contracts(task: Guessing | GridWorld) -> None:
    check_task(task)
    check_environment(task)


@pytest.mark.parametrize("level", [1, 2, 5])
def test_bisection_finds_every_number_in_time(level: int) -> None:
    task = Guessing(level=level)
    for secret in range(1, task.highest + 1):
        example = Example(id="x", prompt="x", answer=task._written(secret))
        found = play_moves(task, example)
        assert len(found.texts) <= level + 2
        assert task.correct(example, str(found.replies[-1].outcome))
        assert found.reward + task.score(example, str(found.replies[-1].outcome)).reward == pytest.approx(1.0)


def test_what_a_guess_is_paid() -> None:
    """Secret 11 of 1 … 15: 08 leaves 09 … 15, then 12 leaves 09 … 11; a word, and what is known, pay nothing."""
    task = Guessing(level=2)
    example = Example(id="x", prompt="x", answer="11")
    found = play(task, example, ["08", "12", "twelve", "12"])
    observations, rewards = zip(*((reply.observation, reply.reward) for reply in found.replies[1:]), strict=True)
    assert observations == ("+", "-", "?", "-")
    assert rewards == pytest.approx((0.5 * math.log(15 / 7, 15), 0.5 * math.log(7 / 3, 15), 0.0, 0.0))
    assert [reply.done for reply in found.replies] == [False, False, False, False, True]
    assert found.replies[-1].outcome == "12"
    assert play(task, example, ["11"]).replies[-1] == Reply(
        observation="=", reward=pytest.approx(0.5), done=True, outcome="11"
    )


def test_numbers_have_one_width() -> None:
    task = Guessing(level=2)
    example = Example(id="x", prompt="x", answer="08")
    assert [reply.observation for reply in play(task, example, ["8", "008", "٠٨", "08"]).replies[1:]] == [
        *("?", "?", "?", "=")
    ]


def test_a_walk_is_paid_by_the_way_that_it_makes() -> None:
    r"""From a1 to c1 around b1, six moves at best when b2 is closed too: up, up, right, right, down, down."""
    task = GridWorld(walls=2, spare=1)
    example = Example(id="x", prompt="x", answer="c1", columns={"question": "a1>c1#b1b2"})
    best = play_moves(task, example)
    assert best.texts == ("U", "U", "R", "R", "D", "D")
    assert [reply.outcome for reply in best.replies] == ["a1", "a2", "a3", "b3", "c3", "c2", "c1"]
    assert best.reward == pytest.approx(0.2)
    other = play(task, example, ["R", "u", "U", "D", "L", "", "UU", "U"])
    assert [reply.observation for reply in other.replies[1:]] == ["a1", "a1", "a2", "a1", "a1", "a1", "a1"]
    assert [reply.reward for reply in other.replies[1:]] == pytest.approx([0, 0, 0.2 / 6, -0.2 / 6, 0, 0, 0])
    assert other.replies[-1].done  # seven moves, six and one to spare


@pytest.mark.parametrize("level", [1, 3])
def test_the_shortest_ways_agree_with_a_search_from_the_other_end(level: int) -> None:
    task = GridWorld(level=level, walls=3)
    for example in task.draw(30, seed=(1,)):
        ways, _, walls = str(example.columns["question"]).partition("#")
        start, goal = map(cell_of, ways.split(">"))
        blocked = frozenset(cell_of(walls[place : place + 2]) for place in range(0, len(walls), 2))
        assert len(blocked) == 3
        assert not {start, goal} & blocked
        there, back = distances(goal, blocked, task.side), distances(start, blocked, task.side)
        assert there[start] == back[goal]
        for cell, steps in there.items():
            near = [there.get((cell[0] + x, cell[1] + y), steps + 1) for x, y in MOVES.values()]
            assert steps == 0 or min(near) == steps - 1
    assert all(cell_of(named((column, row))) == (column, row) for column in range(9) for row in range(12))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Guessing(level=9), "level is 9, must be between 1 and 8"),
        (lambda: GridWorld(level=0), "level is 0, must be between 1 and 6"),
        (lambda: GridWorld(walls=5), "walls is 5, must be between 0 and 4 at this level"),
        (lambda: GridWorld(spare=-1), "spare is -1, must be 0 or more"),
    ],
)
def test_options_are_checked(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(UserError, match=message):
        make()


class Broken(Guessing):
    """A game in which one thing can be replaced."""

    what = ""

    def environment(self) -> "Game":  # type: ignore[override]
        return Game(self.what)

    def move(self, example: Example, texts: Sequence[str]) -> str:
        return "08"


class Game:
    """Counts its turns, for all games together if it is `shared`."""

    count = 0

    def __init__(self, what: str) -> None:
        self.what = what

    def reset(self, example: Example) -> str:
        if self.what == "shared":
            Game.count = 0
        elif self.what != "not begun anew":
            self.count = 0
        return "é" if self.what == "alphabet" else str(self.count)

    def step(self, text: str) -> tuple[str, float, bool]:
        if self.what == "raises":
            raise ValueError(text)
        if self.what == "shared":
            Game.count += 1
        else:
            self.count += 1
        reward = math.nan if self.what == "reward" else 0.0
        return (7 if self.what == "observation" else str(self.count)), reward, self.what != "endless"  # type: ignore[return-value]


BROKEN = {
    "raises": "raises ValueError",
    "reward": "the reward nan, not a finite number",
    "observation": "step gave 7, not a text",
    "alphabet": r"the alphabet lacks \['é'\]",
    "not begun anew": "begins otherwise when it is reset once more",
    "endless": "is not done after 256 of the task's own moves",
    "": "the task's own moves end in '08', wrong",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_environment_is_found(what: str) -> None:
    task = Broken(level=2)
    object.__setattr__(task, "what", what)
    with pytest.raises(TaskProblem, match=BROKEN[what]):
        check_environment(task)
