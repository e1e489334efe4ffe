"""Spelling backward: right answers, no word twice, and rewards by hand."""

import pytest

from whet.records import Example
from whet.tasks.check import check_task
from whet.tasks.puzzles.spelling import SpellBackward

CHAT = SpellBackward(level=2, chat=True)
SUN = Example(id="x", prompt="p", answer="nus", columns={"question": "sun"})


@pytest.mark.parametrize("task", [*(SpellBackward(level=level) for level in (1, 2, 4)), CHAT], ids=str)
def test_task_keeps_its_promises(task: SpellBackward) -> None:
    check_task(task)


def test_every_word_of_a_level_is_another() -> None:
    task = SpellBackward(level=1)
    words = [task._problem(0, index).question for index in range(task._space.sizes[0])]
    assert len(set(words)) == len(words) == 20 * 8 * 8
    for one in (*SpellBackward(level=3).draw(50, seed=(0, 1)), *task.held_out(50)):
        assert one.answer == "".join(reversed(one.columns["question"]))


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<answer>nus</answer>", 1.0),
        ("<answer>NUS</answer>", 1.0),
        ("s, u, n: so\n**nus**.", 1.0),
        ("Answer: nus", 1.0),
        ("<answer>sun</answer>", 0.2 / 3),  # u is in its place
        ("<answer>nu</answer>", 0.2 * 2 / 3),
        ("<answer>nus nus</answer>", 0.2 * 3 / 7),
        ("<answer>nus</answer><answer>sun</answer>", 0.2 / 3),
        ("nus\nor sun", 0.0),
        ("<answer></answer>", 0.0),
        ("", 0.0),
        ("nus" * 500, 0.2 * 3 / 1500),
    ],
)
def test_rewards(text: str, reward: float) -> None:
    assert CHAT.score(SUN, text).reward == pytest.approx(reward)
    assert CHAT.correct(SUN, text) == (reward == 1)
