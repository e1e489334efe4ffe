"""TRL-style reward functions work unchanged; what they get wrong is said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from whet.errors import RunFailed, UserError
from whet.records import Example, Message, Score
from whet.tasks.grading.reward_functions import RewardFailed, load_rewards, score_with

FUNCTIONS = """
import asyncio, functools, itertools, math
from decimal import Decimal
seen = []

def length(completions, **kwargs):
    seen.append(sorted(kwargs))
    return [float(len(c)) for c in completions]

def exact(prompts, completions, answer):
    return [1.0 if c == a else 0.0 for c, a in zip(completions, answer)]

def bonus(completions, bonus):
    return bonus

def optional(completions, missing=None, completion_ids=None, trainer_state=None):
    assert missing is None and completion_ids is None and trainer_state is None
    return [1] * len(completions)

def chat(prompts, completions):
    return [p[-1]["content"] == c[0]["content"] and c[0]["role"] == "assistant" for p, c in zip(prompts, completions)]

async def slow(completions, **kwargs):
    await asyncio.sleep(0.001)
    return [2.0 for _ in completions]

class Judge:
    async def __call__(self, completions, **kwargs):
        return [3.0 for _ in completions]
judge = Judge()
half = functools.partial(lambda scale, completions: [scale] * len(completions), 0.5)

def some(completions): return [None if i % 2 else 1.0 for i, _ in enumerate(completions)]
def never(completions): return [None for _ in completions]
def not_a_number(completions): return [0.0, math.nan, math.inf][:len(completions)]
def word(completions): return [0.0, "one"][:len(completions)]
def short(completions): return [0.0]
def scalar(completions): return 1.0
def nothing(completions): pass
def mapping(completions): return {c: 1.0 for c in completions}
def huge(completions): return [1e308 for _ in completions]
def large(completions): return [5e14 for _ in completions]
def lazy(completions): return (1 / 0 for _ in completions)
def endless(completions): return itertools.repeat(1.0)
async def cancelled(completions): raise asyncio.CancelledError
class NoFloat:
    def __float__(self): raise RuntimeError
def no_float(completions): return [NoFloat() for _ in completions]
def big_int(completions): return [10 ** 400 for _ in completions]
def boom(completions): raise KeyError("line one\\nline two")
def leave(completions): raise LookupError
def needs_ids(completions, completion_ids): return []
def needs_state(completions, *, trainer_state): return []
def needs_rooms(completions, environments): return []
def needs_column(completions, difficulty): return []
def positional(prompts, /, completions): return []
constant = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "rewards.py").write_text(FUNCTIONS)
    return str(tmp_path / "rewards.py")


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


ROWS = [
    Example(id="a", prompt="1+1=", answer="2", columns={"bonus": 5.0}),
    Example(id="b", prompt="1+2=", answer="3", columns={"bonus": 7.0, "extra": "x"}),
]


def score(
    file: str, runner: asyncio.Runner, *rewards: tuple[str, float], texts: tuple[str, ...] = ("2", "44")
) -> list[Score]:
    functions = load_rewards([(f"{file}:{name}", weight) for name, weight in rewards])
    return score_with(functions, ROWS[: len(texts)], list(texts), runner=runner)


def test_reward_is_the_weighted_sum_of_parts(file: str, runner: asyncio.Runner) -> None:
    first, second = score(file, runner, ("exact", 2.0), ("length", -0.5), ("bonus", 0.1))
    assert first.parts == {"exact": 1.0, "length": 1.0, "bonus": 5.0}
    assert first.reward == pytest.approx(2.0 - 0.5 + 0.5)
    assert second.parts == {"exact": 0.0, "length": 2.0, "bonus": 7.0}
    assert second.reward == pytest.approx(0.0 - 1.0 + 0.7)


def test_any_keyword_receives_everything_and_nothing_else_does(file: str, runner: asyncio.Runner) -> None:
    functions = load_rewards([(f"{file}:length", 1.0)])
    score_with(functions, ROWS, ["2", "3"], runner=runner)
    assert functions[0].call.__globals__["seen"] == [["answer", "bonus", "extra", "log_extra", "log_metric", "prompts"]]


def test_a_column_that_some_rows_lack_is_none_there(file: str, runner: asyncio.Runner, tmp_path: Path) -> None:
    (tmp_path / "extra.py").write_text("def f(completions, extra): return [0.0 if e is None else 1.0 for e in extra]")
    assert [s.reward for s in score(str(tmp_path / "extra.py"), runner, ("f", 1.0))] == [0.0, 1.0]


def test_optional_arguments_that_are_not_offered_keep_their_defaults(file: str, runner: asyncio.Runner) -> None:
    assert [s.reward for s in score(file, runner, ("optional", 1.0))] == [1.0, 1.0]


def test_conversations_arrive_as_lists_of_messages(file: str, runner: asyncio.Runner) -> None:
    prompt = (Message(role="system", content="s"), Message(role="user", content="hi"))
    rows = [Example(id=str(i), prompt=prompt, answer="") for i in range(2)]
    functions = load_rewards([(f"{file}:chat", 1.0)])
    assert [s.reward for s in score_with(functions, rows, ["hi", "no"], runner=runner)] == [1.0, 0.0]


def test_asynchronous_functions_and_callable_objects(file: str, runner: asyncio.Runner) -> None:
    first, _ = score(file, runner, ("slow", 1.0), ("judge", 10.0), ("half", 100.0))
    assert first == Score(reward=82.0, parts={"slow": 2.0, "judge": 3.0, "half": 0.5})


def test_none_leaves_the_part_out(file: str, runner: asyncio.Runner) -> None:
    first, second = score(file, runner, ("some", 3.0), ("half", 2.0))
    assert first == Score(reward=4.0, parts={"some": 1.0, "half": 0.5})
    assert second == Score(reward=1.0, parts={"half": 0.5})


def test_a_row_without_any_reward_is_no_reward_of_0(file: str, runner: asyncio.Runner) -> None:
    told = r"every reward function \(some, never\) gave None for row 1, so it has no reward: at least one must give a"
    with pytest.raises(RewardFailed, match=told) as caught:
        score(file, runner, ("some", 3.0), ("never", 1.0))
    assert caught.value.row == 1
    functions = load_rewards([(f"{file}:never", 1.0)])  # beside a reward model they may all be silent
    assert score_with(functions, ROWS, ["2", "2"], runner=runner, may_abstain=True) == [Score(reward=0.0, parts={})] * 2


def test_functions_of_the_same_name_get_parts_of_their_own(file: str, runner: asyncio.Runner, tmp_path: Path) -> None:
    other = tmp_path / "other" / "rewards.py"
    other.parent.mkdir()
    other.write_text("def exact(completions): return [9.0] * len(completions)\nexact_2 = exact")
    specs = [(f"{file}:exact", 1.0), (f"{other}:exact_2", 1.0), (f"{other}:exact", 1.0)]
    (first, _) = score_with(load_rewards(specs), ROWS, ["2", "2"], runner=runner)
    assert first.parts == {"exact": 1.0, "exact_2": 9.0, "exact_3": 9.0}


def test_a_module_of_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rewards_by_module_name.py").write_text("def one(completions): return [1.0]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("unrelated")  # restores the import path afterwards
    assert load_rewards([("rewards_by_module_name:one", 1)])[0].name == "one"


@pytest.mark.parametrize(
    "value", [1, True, np.float32(1), np.bool_(True), np.int64(1), np.array(1.0), Decimal(1), Fraction(1)], ids=repr
)
def test_whatever_is_a_number_counts_as_one(value: object, runner: asyncio.Runner, tmp_path: Path) -> None:
    (tmp_path / "n.py").write_text("values = []\ndef f(completions): return values")
    functions = load_rewards([(f"{tmp_path / 'n.py'}:f", 1.0)])
    functions[0].call.__globals__["values"].append(value)
    (only,) = score_with(functions, ROWS[:1], ["x"], runner=runner)
    assert only.parts == {"f": 1.0}
    assert type(only.parts["f"]) is float


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("not_a_number", 1, "reward function not_a_number gave nan for row 1"),
        ("word", 1, "gave a str for row 1, not a number or None"),
        ("big_int", 0, "gave inf for row 0"),
        ("short", None, "gave 1 rewards for 2 completions"),
        ("scalar", None, "gave a float, not a list of numbers"),
        ("nothing", None, "gave a NoneType, not a list"),
        ("mapping", None, "gave a dict, not a list"),
        ("boom", None, r"reward function boom failed at \S+\.py:\d+ in boom: KeyError: 'line one.*line two'$"),
        ("leave", None, r"reward function leave failed at .*\.py:\d+ in leave: LookupError$"),
        ("huge", 0, r"gave 1e\+308 for row 0, beyond ±1e\+15, where training overflows: scale it down"),
        ("large", 0, r"the weighted sum of the reward functions is 5000000000000000.0 for row 0, beyond ±1e\+15"),
        ("lazy", None, r"function lazy failed at \S+\.py:\d+ in lazy: ZeroDivisionError: division by zero"),
        ("endless", None, "gave more than 2 rewards for 2 completions"),
        ("cancelled", None, r"function cancelled failed at \S+\.py:\d+ in cancelled: CancelledError"),
        ("no_float", 0, "gave a NoFloat for row 0, not a number or None"),
    ],
)
def test_a_broken_reward_fails_the_run(
    file: str, runner: asyncio.Runner, name: str, row: int | None, message: str
) -> None:
    with pytest.raises(RewardFailed, match=message) as caught:
        score(file, runner, (name, 10.0))
    assert caught.value.row == row
    assert isinstance(caught.value, RunFailed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("needs_rooms", "requires 'environments', which whet does not offer"),
        ("positional", "'prompts' must be accepted by keyword"),
        ("constant", "is a int, not a function"),
        ("exacd", "has no 'exacd'; did you mean 'exact'"),
    ],
)
def test_an_unusable_function_is_refused_when_loaded(file: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_rewards([(f"{file}:{name}", 1.0)])


def test_a_required_column_that_no_row_has(file: str, runner: asyncio.Runner) -> None:
    with pytest.raises(
        UserError, match=r"requires 'difficulty', which is not a column of the task .columns: bonus, extra;"
    ):
        score(file, runner, ("needs_column", 1.0))


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), True, "1", None])
def test_weights_are_finite_numbers(file: str, weight: float) -> None:
    with pytest.raises(UserError, match="the weight must be a finite number"):
        load_rewards([(f"{file}:exact", weight)])


def test_what_a_function_does_to_its_arguments_reaches_no_other(tmp_path: Path, runner: asyncio.Runner) -> None:
    (tmp_path / "two.py").write_text(
        "def turns(prompts, completions, bonus):\n    completions.reverse(); bonus.clear(); prompts[0] = ''\n"
        "    return [0.0] * len(prompts)\n"
        "def length(prompts, completions, bonus): return [100.0 * len(p) + 10 * len(c) + b\n"
        "    for p, c, b in zip(prompts, completions, bonus, strict=True)]\n"
    )
    scores = score(str(tmp_path / "two.py"), runner, ("turns", 1.0), ("length", 1.0))
    assert [s.reward for s in scores] == [400 + 10 + 5.0, 400 + 20 + 7.0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{1.0, 2.0}", "gave a set, not a list of numbers"),
        ("types.MappingProxyType({1.0: 0, 2.0: 0})", "gave a mappingproxy, not a list of numbers"),
        ("collections.UserDict({1.0: 0, 2.0: 0})", "gave a UserDict, not a list of numbers"),
        ("list(numpy.array([1 + 2j, 2.0]))", "gave a complex128 for row 0, not a number"),
    ],
)
def test_what_has_no_order_or_two_parts_is_no_list_of_rewards(
    tmp_path: Path, runner: asyncio.Runner, given: str, told: str
) -> None:
    (tmp_path / "odd.py").write_text(f"import collections, numpy, types\ndef odd(completions): return {given}")
    with pytest.raises(RewardFailed, match=told):
        score(str(tmp_path / "odd.py"), runner, ("odd", 1.0))
