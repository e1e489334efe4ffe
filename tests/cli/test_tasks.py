"""`whet tasks show`, `play` and `check` on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny import Whet
from tests.tasks.bench import known_bad
from whet.tasks.environments.guessing import Guessing
from whet.tasks.loading import load_task
from whet.tasks.procedural import Arithmetic
from whet.tasks.puzzles.hanoi import Hanoi
from whet.tasks.stepping.check_environment import play_moves

REWARDS = Path(known_bad.__file__)


def test_the_name_of_a_task_is_short_for_show(whet: Whet) -> None:
    short, long = whet("tasks", "hanoi", "--count", 1), whet("tasks", "show", "hanoi", "--count", 1)
    assert short == long
    assert "  level: difficulty, from 1 on" in short.out
    assert "training (54 examples)" in short.out
    assert "held out (24 examples)" in short.out
    assert "columns: question, level" in short.out
    assert whet("tasks", "--json", "hanoi").out == whet("tasks", "show", "hanoi", "--json").out
    assert json.loads(whet("tasks", "hanoi", "--json").out)["sizes"] == {"training": 54, "held_out": 24}


def test_a_file_shows_how_many_rows_it_has(whet: Whet, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "answer": str(n), "source": "me"} for n in range(50)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(whet("tasks", "rows", f"path={tmp_path / 'rows.jsonl'}", "--json").out)
    assert sum(found["sizes"].values()) == 50
    assert found["training"][0]["columns"] == {"source": "me"}
    assert "sizes" in json.loads(whet("tasks", "arithmetic", "level=5", "--json").out)  # too many to be counted: none


def test_a_person_plays(whet: Whet) -> None:
    first, second = Arithmetic(level=1).draw(2, seed=(0, 1))
    result = whet("tasks", "play", "arithmetic", stdin=f"{first.answer}\nnine\n")
    assert result.code == 0
    assert first.prompt in result.out
    assert "correct: reward 1 (correct 1, partial 1)" in result.out
    assert f"answer: {second.answer}" in result.out
    assert result.out.endswith("1 of 2 correct, mean reward 0.5\n")


def test_an_answer_may_have_several_lines(whet: Whet) -> None:
    (example,) = Hanoi(chat=True).held_out(1)
    typed = f'"""\nI move.\n<answer>{example.answer}</answer>\n"""\n'
    asked = ("tasks", "play", "hanoi", "chat=true", "--held-out", "--count", 3, "--json")
    found = json.loads(whet(*asked, stdin=typed).out)
    assert (found["answered"], found["correct"], found["mean_reward"]) == (1, 1, 1.0)
    assert found["rounds"][0]["given"] == f"I move.\n<answer>{example.answer}</answer>"
    assert found["rounds"][0]["prompt"].startswith("user: Tower of Hanoi")


def test_a_person_plays_in_turns(whet: Whet) -> None:
    """The middle is always the best guess; then a word, until the guesses are used up."""
    task = Guessing(level=1)
    first, second = task.draw(2, seed=(0, 1))
    moves: list[str] = []
    while not moves or moves[-1] != first.answer:
        moves.append(task.move(first, moves))
    result = whet("tasks", "play", "guessing", "--count", 2, stdin="\n".join([*moves, "x", "y", "z", ""]))
    assert result.code == 0
    assert "correct: reward 1 (correct 1, environment 0.5)" in result.out
    assert "\n?\n?\n?\n" in result.out
    assert f"wrong: reward 0 (correct 0, environment 0)\nanswer: {second.answer}" in result.out
    asked = ("tasks", "play", "guessing", "--count", 1, "--json")
    (found,) = json.loads(whet(*asked, stdin="\n".join([*moves, ""])).out)["rounds"]
    assert [turn["text"] for turn in found["turns"]] == moves
    assert sum(turn["reward"] for turn in found["turns"]) == pytest.approx(0.5)
    unfinished = json.loads(whet(*asked, stdin="x\n").out)
    assert unfinished["answered"] == 0


@pytest.mark.parametrize(
    ("name", "options", "seen"),
    [
        ("adventure", ["chat=true"], "You are in the "),
        ("connections_game", ["chat=true"], "All groups are found."),
        ("hanoi_moves", ["chat=true"], "Moves left: 4."),
    ],
)
def test_a_person_wins_a_game(whet: Whet, name: str, options: list[str], seen: str) -> None:
    task: Any = load_task(name, {"chat": True})
    moves = play_moves(task, task.draw(1, seed=(0, 1))[0]).texts
    result = whet("tasks", "play", name, *options, "--count", 1, stdin="\n".join([*moves, ""]))
    assert result.code == 0
    assert seen in result.out
    assert "correct: reward 1 " in result.out


def test_a_person_calls_a_tool(whet: Whet) -> None:
    call = '{"name": "calculator", "arguments": {"expression": "6*7"}}'
    result = whet("tasks", "play", "word_problems", "--count", 1, stdin=f"{call}\nnothing\n")
    assert 'tool: {"type": "function", "function": {"name": "calculator"' in result.out
    assert '{"name": "calculator", "content": "42"}' in result.out
    assert "wrong: reward 0 (correct 0, environment 0)" in result.out


def test_a_game_ends_without_answers_and_by_an_interrupt(whet: Whet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert whet("tasks", "play", "sorting").out.endswith("0 of 0 correct\n")

    def interrupted() -> None:
        yield "123"
        raise KeyboardInterrupt

    monkeypatch.setattr("whet.cli.commands.tasks.playing._answers", interrupted)
    result = whet("tasks", "play", "sorting")
    assert result.code == 0
    assert "of 1 correct" in result.out


def test_a_good_task_passes_the_check(whet: Whet) -> None:
    result = whet("tasks", "check", "sorting", "--examples", 4)
    assert result.code == 0, result.out + result.err
    assert result.out.splitlines()[0].startswith("sorting: 4 examples, ")
    assert "passed: right answers score 1 on average, the best wrong completion 0.1" in result.out


def test_a_bad_reward_fails_the_check_with_what_to_do(whet: Whet) -> None:
    asked = ("tasks", "check", f"{REWARDS}:substring", "--task", "arithmetic", "chat=true", "--examples", 4)
    result = whet(*asked)
    assert result.code == 1
    assert "failed list: all answers in a list, the right one among them: as much as the right answer" in result.out
    assert "  to do: accept one final answer in an agreed place" in result.out
    assert "do not train with this reward" in result.out.splitlines()[-1]
    found = json.loads(whet(*asked, "--json").out)
    assert found["passed"] is False
    failed = {one["check"]: one for one in found["findings"] if one["outcome"] == "failed"}
    assert failed["contradiction"]["score"] == failed["contradiction"]["gold"] == 1.0


def test_a_reward_function_on_rows_of_a_file(whet: Whet, tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ("tasks", "check", f"{REWARDS}:sound", "--data", tmp_path / "rows.jsonl", "--examples", 4)
    result = whet(*asked)
    assert result.code == 0, result.out + result.err
    assert f"sound on data path={tmp_path / 'rows.jsonl'}: 4 examples" in result.out


def test_a_recipe_is_checked_with_its_own_rewards(whet: Whet) -> None:
    functions = f"reward.functions=[{{use: '{REWARDS}:length', weight: 0.5}}]"
    result = whet("tasks", "check", "grpo-sorting", functions, "--examples", 4, "--json")
    assert result.code == 1, result.err
    found = json.loads(result.out)
    assert found["subject"] == "recipe grpo-sorting"
    assert "long text" in {one["check"] for one in found["findings"] if one["outcome"] == "failed"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("check", "sortin"), "did you mean 'sorting'"),
        (("check", "sorting", "level=x"), "must be int"),
        (("check", f"{REWARDS}:sound"), "is a reward function and needs rows to score: add --data FILE or --task NAME"),
        (("check", f"{REWARDS}:TAGGED", "--task", "sorting"), "neither a task nor a reward function"),
        (("check", f"{REWARDS}:nothing"), "has no 'nothing'"),
        (("check", "sorting", "--task", "hanoi"), "is a task and has rows of its own"),
        (("check", f"{REWARDS}:sound", "--task", "hanoi", "--data", "x"), "leave one of them out"),
        (("check", "grpo-sorting", "--task", "hanoi"), "is no reward function"),
        (("check", "demo-sft"), "recipe demo-sft trains without a reward, so there is nothing to check"),
        (("check", f"{REWARDS}:sound", "--task", "hanoi", "--gold", "x"), "has no {answer}, where each answer goes"),
        (("play", "nothing"), "there is no task 'nothing'"),
    ],
)
def test_wrong_arguments_are_one_sentence(whet: Whet, arguments: tuple[str, ...], sentence: str) -> None:
    result = whet("tasks", *arguments)
    assert result.code == 2, result.out
    assert sentence in result.err
    assert result.err.count("\n") == 1
