"""Connections, Hanoi move by move and the text adventure: their contracts, games by hand, and a solver of its own."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from whet.errors import UserError
from whet.records import Example
from whet.tasks.check import check_task
from whet.tasks.environments.adventure import Adventure, Walkthrough
from whet.tasks.loading import load_task
from whet.tasks.puzzles.hanoi import solution
from whet.tasks.stepping.check_environment import check_environment, play, play_moves

GROUPS = [["ANT", "BEE", "CAT", "DOG"], ["EGG", "FIG", "HAM", "JAM"], ["KEY", "LID", "MOP", "NET"]]
GROUPS.append(["OAK", "PINE", "RYE", "SALT, SEA"])  # a word with a comma
PUZZLES = [
    {"id": n, "answers": [{"group": "G", "members": [f"{word}{n}" for word in group]} for group in GROUPS]}
    for n in range(30)
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("puzzles") / "puzzles.json"
    file.write_text(json.dumps(PUZZLES))
    return str(file)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("connections_game", {}),
        ("connections_game", {"chat": True, "path": "…", "lives": 1}),
        ("hanoi_moves", {"spare": 0}),
        ("hanoi_moves", {"chat": True, "level": 2, "progress": 0.0}),
        ("adventure", {"chat": True}),
        ("adventure", {"level": 6}),
    ],
)
def test_keeps_its_contracts(name: str, options: dict[str, Any], path: str) -> None:
    task = load_task(name, {**options, **({"path": path} if "path" in options else {})})
    check_task(task)
    check_environment(task)


def guess(*words: str) -> str:
    return f"I think of <answer>{', '.join(words)}</answer>."


def game(path: str, number: int = 7) -> tuple[Any, Example, list[list[str]]]:
    task: Any = load_task("connections_game", {"path": path, "chat": True})
    example = next(one for side in task.sides for one in side if one.id == f"connections_game:{number}")
    return task, example, example.columns["groups"]


def test_a_game_of_connections_by_hand(path: str) -> None:
    """A life for one away, none for what is no guess; the groups in their turns, the lives with the last one."""
    task, example, (a, b, c, d) = game(path)
    turns = [
        guess(*a[:3], b[0]),
        guess(b[0], *a[:3]),
        guess(*a),
        guess(*a),
        guess(*b[:2], *c[:2]),
        "\n".join(c),
        f"So it is\n{', '.join(c).lower()}",
        guess(*d),
        guess(*b),
    ]
    found = play(task, example, turns)
    first_words = [reply.observation.split(".")[0] for reply in found.replies[1:]]
    assert first_words == [
        "One away",
        "That is no guess: you have guessed these four before, separated by commas",
        "Right",
        "That is no guess: write four of the words left, separated by commas",
        "Wrong",
        "That is no guess: write four of the words left, separated by commas",
        "Right",
        "Right",
        "Right",
    ]
    assert "Lives left: 2. Words left: EGG7, FIG7, HAM7" in found.replies[7].observation
    assert [reply.reward for reply in found.replies[1:]] == pytest.approx(
        [0, 0, 0.15, 0, 0, 0, 0.15, 0.15, 0.15 + 0.1 * 2 / 4]
    )
    outcome = str(found.replies[-1].outcome)
    assert found.replies[-1].done
    assert task.correct(example, outcome)
    assert task.score(example, outcome).reward == pytest.approx(0.3)
    best = play_moves(task, example)
    assert best.reward + 0.3 == pytest.approx(1.0)


def test_the_fourth_wrong_guess_ends_a_game_of_connections(path: str) -> None:
    task, example, (a, b, c, d) = game(path)
    wrong = [guess(*a[:2], *b[:2]), guess(*b[:2], *c[:2]), guess(*c[:2], *d[:2])]
    lost = play(task, example, [wrong[0], guess(*a), *wrong[1:], guess(*b[:3], d[0]), guess(*b)])
    assert len(lost.texts) == 5
    assert lost.replies[-1].done
    assert lost.replies[-1].outcome == ", ".join(a)
    assert not task.correct(example, str(lost.replies[-1].outcome))
    assert task.score(example, str(lost.replies[-1].outcome)).reward == 0
    assert task.score(example, str(lost.replies[-1].outcome)).parts["groups"] == pytest.approx(0.25)
    assert len(play(task, example, ["no"] * 9).texts) == 4


def test_connections_with_signs_alone() -> None:
    task = load_task("connections_game", {"groups": 2})
    (example,) = task.held_out(1)
    a, b = example.columns["groups"]
    signs = play(task, example, [",".join([*a[:3], b[0]]), ",".join([*a[:2], *b[:2]]), "x", ",".join(a), ",".join(b)])
    assert [reply.observation for reply in signs.replies] == ["", "~", "-", "?", "+", "+"]
    assert signs.reward == pytest.approx(0.6 + 0.1 * 2 / 4)


def test_a_tower_says_why_a_move_is_illegal() -> None:
    """Disk 1 on A, 2 and 3 on B, the goal is C: seven moves at best, of BBB a whole tower; here four to spare."""
    task: Any = load_task("hanoi_moves", {"chat": True})
    example = Example(id="x", prompt="x", answer="CCC", columns={"question": "ABB:C"})
    shortest = len(solution(("A", "B", "B"), "C"))
    found = play(task, example, ["C->A", "B to A", "A->A", "A->C B->A", "Let me see.\nAnswer: A->C"])
    said = [re.split(r" Disk 1 is| This| from", reply.observation)[0] for reply in found.replies[1:]]
    assert said[0].startswith("This is illegal: peg C is empty.")
    assert said[1].startswith("This is illegal: disk 2 is larger than disk 1, the top one of peg A.")
    assert said[2].startswith("This is no move: write one")
    assert said[3].startswith("This is no move: write one")
    assert found.replies[-1].observation.endswith(f"A: empty; B: 2, 3; C: 1. Moves left: {shortest + 4 - 5}.")
    assert [reply.outcome for reply in found.replies] == ["ABB"] * 5 + ["CBB"]


def test_what_moves_of_a_tower_are_paid() -> None:
    """BAA to A is one move from the end; B→C leads to two."""
    task: Any = load_task("hanoi_moves", {"spare": 2, "progress": 0.4})
    example = Example(id="x", prompt="x", answer="AAA", columns={"question": "BAA:A"})
    assert [reply.reward for reply in play(task, example, ["BC", "CA"]).replies] == pytest.approx([0, 0.0, 0.4])
    late = play(task, example, ["AB", "BC", "?", "BA"])
    assert [reply.observation for reply in late.replies] == ["", "<BAA>", "CAA>", "?CAA>"]
    assert late.replies[-1].done
    assert not task.correct(example, str(late.replies[-1].outcome))
    assert play(task, example, ["CB"]).replies[-1].observation == "0BAA>"
    won = play_moves(task, example)
    assert won.texts == ("BA",)
    assert won.reward + task.score(example, "AAA").reward == pytest.approx(1.0)


def shortest_by_text(game: Walkthrough, seen: str, *, without: str = "") -> int | None:
    """Commands until the treasure is held, found by nothing but what the game says; None if no way leads there."""
    waiting, known = [(game, seen, 0)], set()
    while waiting:
        here, text, steps = waiting.pop(0)
        things, exits = re.findall(r"You see: (.*?)\. Exits: (.*)\.", text)[-1]
        ways = [
            way.split(" ")[0] for way in exits.split(", ") if " locked" not in way and way.split(" ")[0] != "locked)"
        ]
        commands = [f"{verb} {way}" for way in ways for verb in ("go", "unlock")]
        commands += [f"take {thing}" for thing in things.split(", ") if thing not in ("nothing", without)]
        for command in commands:
            after = copy.copy(here)
            observation, _, _ = after.step(command)
            held = copy.copy(after).step("inventory")[0].split(".")[0]
            state = (*re.findall(r"in the (\w+)\.", observation)[-1:], held, after.place.opened)
            if after.outcome():
                return steps + 1
            if state not in known:
                known.add(state)
                waiting.append((after, observation, steps + 1))
    return None


@pytest.mark.parametrize("level", [1, 2, 4])
def test_every_adventure_can_be_won_and_only_with_its_keys(level: int) -> None:
    task = Adventure(level=level, spare=10**6)
    for example in task.draw(6, seed=(level,)):
        game = task.environment()
        seen = game.reset(example)
        keys = [thing for thing in game.world.lying if thing.endswith(" key")]
        assert len(keys) == (2 if level >= 3 else 1)
        assert shortest_by_text(game, seen) == len(play_moves(task, example).texts)
        for key in keys:
            assert shortest_by_text(game, seen, without=key) is None


def test_an_adventure_says_what_it_understands() -> None:
    task = Adventure(chat=True)
    example = next(one for one in task.draw(50, seed=(3,)) if "locked" in _first(task, one))
    game = task.environment()
    first = game.reset(example)
    colour, way = re.search(r"(\w+) \((\w+) door, locked\)", first).group(2, 1)  # type: ignore[union-attr]
    said = [
        game.step(text)[0] for text in (f"go {way}", f"<answer>UNLOCK {way}</answer>", "take moon", "sing", "inventory")
    ]
    assert said[0].startswith(f"The {colour} door to the {way} is locked. You are in")
    assert said[1].startswith(f"You have no {colour} key. You are in")
    assert said[2].startswith("There is no such thing here.")
    assert said[3].startswith("You can go DIRECTION")
    assert said[4].startswith("You have: nothing.")
    assert play(task, example, ["look"] * 99).replies[-1].done


def _first(task: Adventure, example: Example) -> str:
    return task.environment().reset(example)


def test_worlds_on_both_sides_of_the_split_differ() -> None:
    task = Adventure()
    assert not {one.twin for one in task.draw(500, seed=(1,))} & {one.twin for one in task.held_out(500)}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("connections_game", {"lives": 0}, "lives is 0, must be 1 or more"),
        ("connections_game", {"groups": 5}, "task connections_game: groups is 5"),
        ("hanoi_moves", {"spare": -1}, "spare is -1"),
        ("hanoi_moves", {"progress": 1.5}, "progress is 1.5, must be from 0 to 1"),
        ("hanoi_moves", {"level": 9}, "level is 9"),
        ("adventure", {"level": 7}, "level is 7, must be between 1 and 6"),
        ("adventure", {"spare": -1}, "spare is -1"),
    ],
)
def test_options_of_games_are_checked(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_task(name, options)
