"""NYT Connections: published puzzles, rewards by hand, no group on both sides of the split, and answers that cheat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.real import real
from tests.tasks.bench.known_bad import old_connections_reward
from whet.errors import UserError
from whet.tasks.check import check_task
from whet.tasks.puzzles.connections import Connections, puzzle_groups
from whet.tasks.puzzles.invented import PLANES, WORDS, invented_puzzles

PUZZLES = [
    {"id": n, "date": "2023-06-12", "answers": [{"level": k, "group": f"G{k}", "members": members} for k, members in
     enumerate([[f"{letter}{n}{i}" for i in range(4)] for letter in "abcd"])]}
    for n in range(40)
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "puzzles.json").write_text(json.dumps(PUZZLES))
    return str(tmp_path / "puzzles.json")


@pytest.mark.parametrize("options", [{}, {"chat": True}, {"groups": 2}], ids=str)
def test_task_keeps_its_promises(path: str, options: dict) -> None:
    check_task(Connections(path=path, **options))


def test_invented_puzzles_leak_nothing() -> None:
    puzzles = [groups for _, groups in invented_puzzles(4)]
    assert len(puzzles) == 280
    assert len(PLANES) == 140
    assert len({word for kind in WORDS for word in kind}) == 8 * 16
    every = [frozenset(group) for groups in puzzles for group in groups]
    assert len(set(every)) == 1120
    assert (
        max(len(one & other) for kind in (every[::8], every[1::8]) for one in kind for other in kind if one != other)
        <= 2
    )
    assert len(set(puzzle_groups(puzzles))) == 280
    assert all(len({word for group in groups for word in group}) == 16 for groups in puzzles)
    for options in ({}, {"chat": True}, {"groups": 2}):
        check_task(Connections(**options))


def test_a_limit_reads_the_first_puzzles(path: str) -> None:
    assert sum(map(len, Connections(path=path, limit=10).sides)) == 10


def test_words_are_shuffled_and_the_same_every_time(path: str) -> None:
    task = Connections(path=path)
    trained, held_out = task.sides
    assert len(trained) + len(held_out) == 40
    for one in (*trained, *held_out):
        words = one.prompt.removesuffix(">").split(",")
        chunks = [words[i : i + 4] for i in range(0, 16, 4)]
        assert sorted(words) == sorted(word for group in one.columns["groups"] for word in group)
        assert not all(sorted(chunk) in map(sorted, one.columns["groups"]) for chunk in chunks)  # not in answer order
    assert Connections(path=path).sides == task.sides


G = [[f"{letter.upper()}0{i}" for i in range(4)] for letter in "abcd"]
LINES = [", ".join(group) for group in G]


@pytest.mark.parametrize(
    ("lines", "reward"),
    [
        (LINES, 1.0),
        (LINES[::-1], 1.0),
        ([line.lower() for line in LINES], 1.0),
        ([f"{n}. {line}" for n, line in enumerate(LINES, 1)], 1.0),
        ([f"- {line}" for line in LINES], 1.0),
        ([", ".join(f'"{word}"' for word in group) for group in G], 1.0),
        (["<group>" + line + "</group>" for line in LINES], 1.0),
        (LINES[:1], 0.25),  # one right group is a quarter, not a whole
        (LINES[:2], 0.5),
        (LINES[:3], 0.75),
        ([*LINES, LINES[0]], 0.0),  # a word twice
        ([LINES[0]] * 4, 0.0),
        ([", ".join(G[0][:3])], 0.0),  # three words
        ([", ".join([*G[0], G[1][0]])], 0.0),  # five words
        ([", ".join([*G[0][:3], "OTHER"])], 0.0),
        ([", ".join(word for group in G for word in group)], 0.0),  # all words in one group
        (["everything"], 0.0),
        ([""], 0.0),
        ([", ".join([*G[0][:3], G[1][0]]), ", ".join([*G[1][1:], G[0][3]])], 0.2 * 6 / 24),  # three pairs in each
        ([", ".join([G[0][i], G[1][i], G[2][i], G[3][i]]) for i in range(4)], 0.0),  # no pair
        (
            [LINES[0], ", ".join([*G[1][:2], *G[2][:2]]), ", ".join([*G[1][2:], *G[2][2:]]), LINES[3]],
            0.8 / 2 + 0.2 * 16 / 24,
        ),
        (["Here they are:", *LINES], 0.0),  # a line of other text inside the answer
    ],
)
def test_rewards(path: str, lines: list[str], reward: float) -> None:
    task = Connections(path=path, chat=True)
    one = next(example for side in task.sides for example in side if example.id == "connections:0")
    answer = "\n".join(lines)
    assert task.score(one, f"Let me think.\n<answer>\n{answer}\n</answer>").reward == pytest.approx(reward)
    assert task.correct(one, f"<answer>{answer}</answer>") == (reward == 1)


def test_what_fooled_the_old_reward_does_not_pay(path: str) -> None:
    task = Connections(path=path, chat=True)
    one = next(example for side in task.sides for example in side if example.id == "connections:0")
    assert old_connections_reward(G, G[:1]) == old_connections_reward(G, G) == 1
    assert task.score(one, LINES[0]).reward < task.score(one, "\n".join(LINES)).reward == 1


def test_puzzles_that_share_a_group_are_on_one_side() -> None:
    a, b = [["1", "2", "3", "4"], ["5", "6", "7", "8"]], [["1", "2", "3", "x"], ["p", "q", "r", "s"]]
    c, d = [["p", "q", "r", "y"], ["k", "l", "m", "n"]], [["1", "2", "w", "v"], ["5", "6", "t", "u"]]
    assert puzzle_groups([a, b, c, d]) == ["0", "0", "0", "3"]  # a and c through b; two words are no leak


@given(st.text(max_size=200))
def test_no_text_raises(text: str) -> None:
    task = Connections.__new__(Connections)
    object.__setattr__(task, "chat", True)
    object.__setattr__(task, "groups", 4)
    assert task._submitted(text, frozenset(G[0])) in ([], [frozenset(G[0])])


def test_long_and_repeated_text_is_graded_quickly(path: str) -> None:
    task = Connections(path=path, chat=True)
    one = task.held_out(1)[0]
    for text in (",".join(["A00"] * 20_000), "A00" + "," * 50_000 + "A01", "<answer>" * 10_000, "\n" * 50_000):
        assert task.score(one, text).reward == 0


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"id": 1}, "is no puzzle: it needs answers"),
        ({"answers": [{"members": ["a"]}]}, "has groups of 1 words: a puzzle has four groups of four"),
        ({"answers": [{"members": list("abcd")}] * 3}, "has groups of 4, 4, 4 words"),
    ],
)
def test_other_shapes_are_refused(tmp_path: Path, row: dict, sentence: str) -> None:
    (tmp_path / "bad.json").write_text(json.dumps([row]))
    with pytest.raises(UserError, match=sentence):
        Connections(path=str(tmp_path / "bad.json")).held_out(1)
    with pytest.raises(UserError, match="groups is 5"):
        Connections(path="x", groups=5)


def test_published_puzzles() -> None:
    path = real("nyt-connections/connections.json.gz")
    task = Connections(path=path)
    trained, held_out = task.sides
    assert len(trained) + len(held_out) == 932  # one of 933 has a word twice
    assert all(task.score(one, one.answer).reward == 1 for one in (*trained, *held_out))
    of_training = {tuple(sorted(group)) for one in trained for group in one.columns["groups"]}
    assert not any(tuple(sorted(group)) in of_training for one in held_out for group in one.columns["groups"])
