"""A user's own rewards and tasks that are wrong: the run stops with one line, and the example is on the disk."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.refusal import refused, train_tiny, write_recipe
from tests.cli.tiny import Whet

REWARDS = """
import os, sys, time

number = 3
def short(completions, **columns): return [1.0]
def nan(completions, **columns): return [float("nan")] * len(completions)
def strings(completions, **columns): return ["1"] * len(completions)
def nothing(completions, **columns): return None
def raises(completions, **columns): raise ValueError("bad\\nthing")
def huge(completions, **columns): return [1e308] * len(completions)
def silent(completions, **columns): return [None] * len(completions)
def forks(completions, **columns): os.fork(); return [1.0] * len(completions)
def hangs(completions, **columns): time.sleep(100)
def dies(completions, **columns): os._exit(3)
def leaves(completions, **columns): sys.exit(4)
def colour(completions, colour): return [1.0] * len(completions)
def positional(completions, /): return [1.0]
def trainer(completions, environments): return [1.0]
"""
TASKS = """
import sys
from whet.records import Example, Score

class Task:
    def __init__(self, level: int = 1):
        self.level = level
    name, alphabet = "mine", "0123456789>"
    def draw(self, count, *, seed):
        return [Example(id=f"t{i}", prompt=f"1{(i + sum(seed)) % 10}>", answer="1") for i in range(count)]
    def held_out(self, count):
        return [Example(id=f"h{i}", prompt=f"2{i % 10}>", answer="2") for i in range(count)]
    def score(self, example, text):
        return Score(reward=float(text == example.answer), parts={})
    def correct(self, example, text):
        return text == example.answer

def boom(*_, **__): raise ValueError("bad\\nthing")
def leave(*_, **__): sys.exit(5)

class DrawRaises(Task): draw = boom
class HeldOutRaises(Task): held_out = boom
class ScoreRaises(Task): score = boom
class CorrectRaises(Task): correct = boom
class AlphabetRaises(Task): alphabet = property(boom)
class NameRaises(Task): name = property(boom)
class InitRaises(Task): __init__ = boom
class DrawLeaves(Task): draw = leave
class DrawsNothing(Task): draw = lambda self, count, *, seed: None
class DrawsText(Task): draw = lambda self, count, *, seed: ["1>"] * count
class DrawsFew(Task): draw = lambda self, count, *, seed: Task.draw(self, count - 1, seed=seed)
class HoldsNothing(Task): held_out = lambda self, count: []
class ScoresFloat(Task): score = lambda self, example, text: 1.0
class ScoresNan(Task): score = lambda self, example, text: Score(reward=float("nan"), parts={})
class ScoresHuge(Task): score = lambda self, example, text: Score(reward=-1e300, parts={})
class CorrectText(Task): correct = lambda self, example, text: "no"
class NoTask: pass
a_function = boom
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "own.py").write_text(TASKS)
    return write_recipe(tmp_path)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("rewards", "must look like module:name or path/to/file.py:name"),
        ("nowhere:f", "importing nowhere failed: ModuleNotFoundError"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("rewards.py:nann", "rewards.py has no 'nann'; did you mean 'nan'?"),
        ("rewards.py:number", "is a int, not a function"),
        ("rewards.py:positional", "'completions' must be accepted by keyword: remove the '/'"),
        ("rewards.py:trainer", "requires 'environments', which whet does not offer: give it a default"),
        ("rewards.py:colour", "requires 'colour', which is not a column of the task (columns: question, level;"),
    ],
)
def test_a_reward_function_that_cannot_be_used(whet: Whet, recipe: Path, spec: str, told: str) -> None:
    assert told in refused(whet, "train", recipe, f"reward.functions=['{spec}']")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def f(:", "failed: SyntaxError: invalid syntax"),
        ("import sys; sys.exit(4)", "failed: broken.py:1 in <module>: SystemExit: 4"),
        ("raise KeyError('x')", "failed: broken.py:1 in <module>: KeyError: 'x'"),
    ],
)
def test_a_module_that_cannot_be_imported(whet: Whet, recipe: Path, source: str, told: str) -> None:
    (recipe.parent / "broken.py").write_text(source)
    assert told in refused(whet, "train", recipe, "reward.functions=['broken.py:f']")
    assert told in refused(whet, "train", recipe, "task=broken.py:Task")
    assert list(recipe.parent.glob("runs/*")) == []


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("short", "short gave 1 rewards for 4 completions"),
        ("nan", "nan gave nan for row 0"),
        ("strings", "strings gave a str for row 0, not a number or None"),
        ("huge", "huge gave 1e+308 for row 0, beyond ±1e+15, where training overflows"),
        ("silent", "every reward function (silent) gave None for row 0, so it has no reward"),
        ("nothing", "nothing gave a NoneType, not a list of numbers"),
        ("raises", "raises failed at rewards.py:9 in raises: ValueError: bad thing"),
        ("hangs", "hangs took longer than 1 s and was stopped"),
        ("dies", "dies ended its process: the worker ended with exit code 3"),
        ("leaves", "leaves ended its process: the worker ended with exit code 4"),
    ],
)
def test_a_reward_that_breaks_stops_the_run_with_the_example_on_the_disk(
    whet: Whet, recipe: Path, function: str, told: str
) -> None:
    overrides = (f"reward.functions=['rewards.py:{function}']", "reward.time_limit_seconds=1")
    message = refused(whet, "train", recipe, *overrides, code=1)
    where = "evaluation before training"
    assert message.startswith((f"{where}: reward function ", f"{where}: every reward function "))
    assert told in message
    (evidence,) = recipe.parent.glob("runs/*/failures/*.json")
    assert f"see {evidence.relative_to(recipe.parent)}" in message
    assert message.endswith("--resume --accept-changes")
    kept = json.loads(evidence.read_text())
    assert (kept["step"], kept["where"]) == (0, where)
    assert kept["example"]["prompt"].endswith(">")
    assert isinstance(kept["text"], str)


def test_a_reward_that_forks_never_trains_on_other_scores(whet: Whet, recipe: Path) -> None:
    message = refused(whet, "train", recipe, "reward.functions=['rewards.py:forks']", "steps=50", code=1)
    assert "forks broke the protocol of its worker, which sent " in message
    assert "must end with os._exit instead of returning" in message


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("DrawRaises", "own.py:DrawRaises: draw failed at own.py:18 in boom: ValueError: bad thing"),
        ("HeldOutRaises", "own.py:HeldOutRaises: held_out failed at own.py:18 in boom: ValueError: bad thing"),
        ("ScoreRaises", "the score of task mine failed at own.py:18 in boom: ValueError: bad thing (example h0"),
        (
            "CorrectRaises",
            "CorrectRaises: correct failed at own.py:18 in boom: ValueError: bad thing on example 'h0'",
        ),
        ("AlphabetRaises", "own.py:AlphabetRaises: alphabet failed at own.py:18 in boom: ValueError: bad thing"),
        ("DrawLeaves", "own.py:DrawLeaves: draw failed at own.py:19 in leave: SystemExit: 5"),
        ("DrawsNothing", "own.py:DrawsNothing: draw gave something else than a list of Examples"),
        ("DrawsText", "own.py:DrawsText: draw gave something else than a list of Examples"),
        ("DrawsFew", "own.py:DrawsFew drew 1 examples instead of 2"),
        ("ScoresFloat", "it gave a float, not a Score"),
        ("ScoresNan", "the score of task mine gave reward = nan for row 0"),
        ("ScoresHuge", "the score of task mine gave reward = -1e+300 for row 0, beyond ±1e+15"),
        ("CorrectText", "own.py:CorrectText: correct gave a str, not True, False or None on example 'h0'"),
    ],
)
def test_a_task_that_breaks_is_named_with_its_method(whet: Whet, recipe: Path, task: str, told: str) -> None:
    assert told in refused(whet, "train", recipe, f"task=own.py:{task}", code=1)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("NameRaises", "own.py:NameRaises refuses its options: own.py:18 in boom: ValueError: bad thing"),
        ("InitRaises", "own.py:InitRaises refuses its options: own.py:18 in boom: ValueError: bad thing"),
        ("HoldsNothing", "own.py:HoldsNothing has no held-out examples"),
        ("NoTask", "it needs name, draw, held_out, score and correct"),
        ("Tusk", "own.py has no 'Tusk'; did you mean 'Task'?"),
        ("a_function", "must name a class, not a function"),
        ("Task, lvl: 3", "own.py:Task has no option 'lvl'; did you mean 'level'?"),
    ],
)
def test_a_task_that_cannot_be_used(whet: Whet, recipe: Path, task: str, told: str) -> None:
    assert told in refused(whet, "train", recipe, f"task={{name: own.py:{task}}}")
    assert list(recipe.parent.glob("runs/*")) == []


def test_the_other_commands_guard_a_users_task_too(whet: Whet, recipe: Path, run: Path) -> None:
    assert "in boom: ValueError" in refused(whet, "eval", run, "--task", "own.py:CorrectRaises", code=1)
    assert "in boom: ValueError" in refused(whet, "sample", run, "--task", "own.py:CorrectRaises", code=1)
    assert "in boom: ValueError" in refused(whet, "eval", run, "--task", "own.py:HeldOutRaises", code=1)
    assert "in boom: ValueError" in refused(whet, "explain", recipe, "task=own.py:DrawRaises", code=1)
    assert refused(whet, "tasks", "own.py:DrawRaises") == "draw raises ValueError: bad thing"


def test_a_users_task_that_is_right_trains(whet: Whet, recipe: Path) -> None:
    result = whet("train", recipe, "task=own.py:Task")
    assert result.code == 0, result.err
    (results,) = recipe.parent.glob("runs/*/final_results.json")
    assert json.loads(results.read_text())["steps"] == 2


def test_a_users_module_is_imported_only_when_it_is_named(whet: Whet, recipe: Path) -> None:
    for name in ("rewards", "own", "sitecustom", "conftest", "arithmetic"):
        (recipe.parent / f"{name}.py").write_text(f"open({name + '.seen'!r}, 'w').close()\nf = None\n")
    assert whet("train", recipe).code == 0
    assert whet("explain", recipe).code == 0
    assert list(recipe.parent.glob("*.seen")) == []
    refused(whet, "train", recipe, "reward.functions=['rewards:f']")
    assert [path.name for path in recipe.parent.glob("*.seen")] == ["rewards.seen"]
    assert "rewards" not in sys.modules  # it was the worker that imported it


def test_what_the_users_code_prints_is_no_part_of_the_json(whet: Whet, recipe: Path) -> None:
    (recipe.parent / "noisy.py").write_text(
        "print('imported')\n\n\ndef loss(logprobs, logprobs_old, advantages):\n    print('called')\n"
        "    return -(logprobs - logprobs_old).exp() * advantages\n"
    )
    result = whet("train", recipe, "algorithm={preset: grpo, surrogate: 'noisy.py:loss'}", "steps=1", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["steps"] == 1
    assert "called" in result.err
