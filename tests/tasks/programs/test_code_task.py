"""The task `code`: rows of three shapes, extraction, rewards, the split, and the published data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.tiny import Whet
from tests.data.real import real
from tests.small import small_chat_model
from tests.tasks.programs import hostile
from whet.errors import UserError
from whet.records import Message
from whet.tasks.check import check_task
from whet.tasks.grading.graders import DirectGrader
from whet.tasks.programs.cases import case_of
from whet.tasks.programs.code_task import Code, case_groups
from whet.tasks.programs.program_extraction import continued, program_of

OPEN = {"isolation": "none"}  # the tests of the sandbox say what a machine isolates


def mbpp(n: int, **more: Any) -> dict[str, Any]:
    """A row in the shape of MBPP."""
    code = f"import math\r\ndef add_{n}(a):\r\n    return math.floor(a + {n})"
    tests = [f"assert add_{n}({a}) == {a + n}" for a in (1, 5, -3)]
    text = f"Write a function that adds {'x' * (n + 1)} to a number."
    row = {"task_id": n, "text": text, "code": code, "test_list": tests, "test_setup_code": ""}
    return {**row, "challenge_test_list": [], **more}


HUMANEVAL = {
    "task_id": "HumanEval/900",
    "prompt": "from typing import List\n\n\ndef shift(n: int) -> int:\n    return n + 2\n\n\n"
    'def unshift(numbers: List[int]) -> List[int]:\n    """ Undo `shift` of each number.\n    """\n',
    "entry_point": "unshift",
    "canonical_solution": "    return [n - 2 for n in numbers]\n",
    "test": "\n\nMETADATA = {'author': 'us'}\n\n\ndef check(candidate):\n    import math\n"
    "    assert True, 'never fails'\n    assert candidate([]) == []\n"
    "    for n in range(5):\n        assert candidate([shift(n)]) == [n]\n    x = candidate([7, 8])\n"
    "    assert math.isclose(x[1], 6)\n",
}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code")
    write(path / "mbpp.jsonl", [mbpp(n) for n in range(12)])
    write(path / "humaneval.jsonl", [HUMANEVAL])
    return path


def test_a_row_of_mbpp() -> None:
    case = case_of(mbpp(3, test_imports=["import re"], test_setup_code="y = 4"), "f:1")
    assert case.names == ("add_3",)
    assert case.tests == ("assert add_3(1) == 4", "assert add_3(5) == 8", "assert add_3(-3) == 0")
    assert case.setup == "import re\ny = 4"
    assert "\r" not in case.solution


def test_tests_may_use_what_the_solution_imports_and_names_of_builtins_that_it_defines() -> None:
    row = mbpp(1, test_list=["assert math.isclose(sum(1, 2), 3)"], code="import math\ndef sum(a, b): return a + b")
    case = case_of(row, "f:1")
    assert (case.names, case.setup) == (("sum",), "import math")


def test_a_row_of_humaneval_is_taken_apart() -> None:
    case = case_of(HUMANEVAL, "f:1")
    assert case.names == ("unshift",)
    assert case.tests == (
        "assert candidate([]) == []",
        "for n in range(5):\n    assert candidate([shift(n)]) == [n]",
        "x = candidate([7, 8])\nassert math.isclose(x[1], 6)",
    )
    assert "def shift" in case.setup  # the data set's, not the program's
    assert case.setup.endswith("candidate = unshift\nimport math")


def test_old_escapes_of_a_solution_are_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    case_of(mbpp(2, code="def add_2(a): return a if '\\d' else 0"), "f:1")
    assert list(recwarn) == []


def test_a_check_that_returns_stays_whole() -> None:
    case = case_of(
        {**HUMANEVAL, "test": "def check(candidate):\n    if candidate([]): return\n    assert 1 == 2"}, "f:1"
    )
    assert case.tests == ("check(unshift)",)


def test_own_rows() -> None:
    row = {
        "prompt": "Add.",
        "tests": "from math import inf\ndef near(a, b): return abs(a - b) < 1\nassert near(add(1), 2)",
    }
    case = case_of(row, "f:1")
    assert (case.names, case.tests) == (("add",), ("assert near(add(1), 2)",))
    assert case_of({**row, "tests": ["check_it(add)"], "setup": "def check_it(f): f(1)"}, "f:1").tests == (
        "check_it(add)",
    )


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "x"}, "f:1 has no tests (it has: prompt)"),
        ({"prompt": "x", "tests": "assert f("}, "are not Python"),
        ({"prompt": "x", "tests": "assert 1 == 1"}, "test nothing"),
        ({"prompt": "x", "tests": 5}, "must be a list of Python statements"),
        ({"prompt": " ", "tests": "assert f()"}, "has no text in prompt"),
        ({"prompt": "x", "test_list": [1]}, "must be a list of Python statements"),
        ({**HUMANEVAL, "test": "assert 1"}, "has no function check(candidate)"),
    ],
)
def test_rows_that_are_refused(row: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as refused:
        case_of(row, "f:1")
    assert told in str(refused.value)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("name", ["mbpp", "humaneval"])
def test_the_task_keeps_its_contract(place: Path, name: str, chat: bool) -> None:
    task = Code(path=str(place / f"{name}.jsonl"), chat=chat, **OPEN)
    if name == "mbpp" and chat:
        check_task(task)
    for example in (*task.sides[0], *task.sides[1]):
        assert task.score(example, example.answer).reward == 1.0


def test_prompts(place: Path) -> None:
    path = str(place / "mbpp.jsonl")
    one = next(e for side in Code(path=path, **OPEN).sides for e in side if e.id == "code:0")
    assert one.prompt == '"""\nWrite a function that adds x to a number.\nassert add_0(1) == 1\n"""\n'
    sides = Code(path=path, chat=True, shown_tests=2, **OPEN).sides
    (message,) = next(e for side in sides for e in side if e.id == "code:0").prompt
    assert isinstance(message, Message)
    assert "pass these tests:\n\n```python\nassert add_0(1) == 1\nassert add_0(5) == 5\n```" in message.content
    assert "-3" not in message.content
    hidden = Code(path=path, chat=True, shown_tests=0, **OPEN).sides[0][0].prompt[0].content
    assert "assert" not in hidden


GOOD, BAD = "def total(numbers):\n    return sum(numbers)", "def total(numbers):\n    return 6"


def block(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```"


COMPLETIONS = [
    (block(GOOD), 1.0),
    (GOOD, 1.0),
    (block(GOOD, "py"), 1.0),
    (block(GOOD, ""), 1.0),
    (f"Here it is:\n\n{block(GOOD)}\n\nIt adds the numbers up.", 1.0),
    (f"```python\n{GOOD}", 1.0),  # cut at its end
    (block(GOOD).replace("\n", "\r\n"), 1.0),
    (f"{block(BAD)}\nBetter:\n{block(GOOD)}", 1.0),
    (f"{block(GOOD)}\nRun it:\n{block('python total.py', 'bash')}", 1.0),
    (f"<think>{block(BAD)}</think>{block(GOOD)}", 1.0),
    (f"{block(GOOD)}\nOr:\n{block(BAD)}", 0.0),  # the last counts
    (f"{block(GOOD)}\n{block('')}", 0.0),
    (f"<think>{block(GOOD)}</think>", 0.0),
    (f"<think>{block(GOOD)}", 0.0),
    (f"{block(GOOD)}<think>", 0.0),
    (f"The answer is\n{GOOD}\nas you can see", 0.0),
    (block(BAD), 0.0),
    (block("# " + GOOD), 0.0),
    (block(f'"""{GOOD}"""'), 0.0),
    (block("\n".join(hostile.TESTS)), 0.0),
    (block(GOOD) + "\n" + block("total(numbers)"), 0.0),
    (block("def total(numbers): ..."), 0.0),
    (block(f"{GOOD}\n{BAD}"), 0.0),
    (block(f"{GOOD}\n" * 100), 1.0),  # the same a hundred times is still right
    ("`" + GOOD.replace("\n", " ") + "`", 0.0),
    ("", 0.0),
    ("```python\n```", 0.0),
    ("```", 0.0),
    ("x" * 200_000, 0.0),
    ("def total(numbers):\n    return " + "0 + " * 60_000 + "sum(numbers)", 0.0),  # longer than a program may be
    ("\ud800" + GOOD, 0.0),
    ("６", 0.0),
    (block(GOOD, "javascript"), 0.0),
    (block("total = 6"), 0.0),
    ("The sum of a list.", 0.0),  # the prompt
]


@pytest.fixture(scope="module")
def total(tmp_path_factory: pytest.TempPathFactory) -> Code:
    row = {"prompt": "The sum of a list.", "tests": hostile.TESTS, "solution": GOOD}
    path = write(tmp_path_factory.mktemp("total") / "rows.jsonl", [row])
    return Code(path=path, chat=True, held_out_share=0, **OPEN)


@pytest.mark.parametrize(("text", "reward"), COMPLETIONS, ids=lambda value: repr(value)[:40])
def test_only_the_last_block_counts(total: Code, text: str, reward: float) -> None:
    assert total.score(total.sides[0][0], text).reward == reward


def test_parts_and_partial_credit(total: Code) -> None:
    (example,) = total.sides[0]
    score = total.score(example, block(BAD))
    third = pytest.approx(1 / 3)
    assert (score.reward, score.parts) == (
        0.0,
        {"correct": 0.0, "tests": third, "syntax": 1.0, "ran": 1.0, "timed_out": 0.0},
    )
    partial = Code(path=total.path, chat=True, held_out_share=0, partial=True, **OPEN)
    assert partial.score(example, block(BAD)).reward == third
    assert partial.correct(example, block(BAD)) is False
    assert partial.score(example, block(GOOD)).reward == 1.0
    assert total.score(example, block("def f(:")).parts["syntax"] == 0.0
    assert total.score(example, block("1 / 0")).parts["ran"] == 0.0


BODY = "    return [n - 2 for n in numbers]\n"
WHOLE = f"def unshift(numbers: List[int]):\n{BODY}"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (BODY, 1.0),
        (BODY + "\n\ndef other():\n    return", 1.0),  # what follows is cut
        (BODY + "\nprint(unshift([1]))\nnonsense here", 1.0),
        (BODY + "\n# and so on", 1.0),
        (WHOLE, 1.0),  # uses the import of the prompt
        (block(WHOLE), 1.0),
        (block(BODY), 1.0),
        (block("def shift(n): return n\ndef unshift(numbers): return numbers"), 0.0),  # its shift is not the tests'
        (HUMANEVAL["prompt"], 0.0),
        ("    return numbers", 0.0),
        ("    pass", 0.0),
        ("", 0.0),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_a_function_that_is_continued(place: Path, text: str, reward: float, chat: bool) -> None:
    task = Code(path=str(place / "humaneval.jsonl"), chat=chat, held_out_share=0, **OPEN)
    assert task.score(task.sides[0][0], text).reward == reward


@given(st.text(alphabet="`~\n pythondef<>/k", max_size=80))
def test_extraction_never_fails_and_invents_nothing(text: str) -> None:
    assert program_of(text) in text
    assert isinstance(continued("def f():\n", "", "f", program_of(text)), str)


@given(st.text(max_size=60).filter(lambda code: "```" not in code and "~~~" not in code and "think>" not in code))
def test_a_block_gives_its_code(code: str) -> None:
    assert program_of(f"First:\n```python\nx\n```\nthen\n```python\n{code}\n```\nand words") == code + "\n"


def test_copies_of_a_problem_are_on_one_side() -> None:
    rows = [
        mbpp(0),
        mbpp(1),
        mbpp(0, text="Other words."),
        mbpp(1, code="def g(a): return a", test_list=["assert g(1) == 1"]),
    ]
    rows.append(mbpp(5, text="write a FUNCTION that adds x to a number!"))
    cases = [case_of(row, "f") for row in rows]
    assert case_groups(cases) == ["0", "1", "0", "1", "0"]  # by name and test, by words, by words in another case
    many = [case_of({"prompt": chr(97 + n), "tests": [f"assert solve({n}) == 1"]}, "f") for n in range(9)]
    assert len(set(case_groups(many))) == 9  # a name that everyone uses says nothing


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"isolation": "total"}, "isolation is 'total', must be one of none, minimum, full"),
        ({"cpu_seconds": 0}, "cpu_seconds is 0, must be 1 or more"),
        ({"memory_mb": 1}, "memory_mb is 1, must be 64 or more"),
        ({"shown_tests": -1}, "shown_tests must be 0 or more"),
    ],
)
def test_options_that_are_refused(place: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Code(path=str(place / "mbpp.jsonl"), **options)


def test_a_batch_is_scored_side_by_side(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Code(path=str(place / "mbpp.jsonl"), workers=3, **OPEN)
    examples = task.sides[0]
    answers = [example.answer if n % 2 else "pass" for n, example in enumerate(examples)]
    rewards = [score.reward for score in DirectGrader(task).grade(examples, answers)]
    assert rewards == [float(n % 2) for n in range(len(examples))]
    monkeypatch.setattr(Code, "_sandbox", None)  # outcomes are remembered
    assert [task.correct(*both) for both in zip(examples, answers, strict=True)] == [bool(r) for r in rewards]


def test_the_recipe_trains_and_says_what_isolates(whet: Whet, place: Path, tmp_path: Path) -> None:
    small_chat_model(tmp_path / "model")
    quick = ("steps=1", "rollout.prompts=2", "rollout.max_tokens=8", "eval.examples=2", "eval.max_tokens=8", "track=[]")
    options = (f"model={tmp_path / 'model'}", f"task.path={place / 'mbpp.jsonl'}", "task.isolation=none", "device=cpu")
    done = whet("train", "grpo-code", *options, *quick, "--runs", tmp_path / "runs")
    assert done.code == 0, done.err
    assert "sandbox: isolation " in done.err
    (run,) = (tmp_path / "runs").iterdir()
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"parts/tests", "parts/syntax", "parts/ran", "parts/timed_out"} <= {
        key.partition("/")[2] for key in row
    } | set(row)


@pytest.mark.parametrize("name", ["mbpp/mbpp.jsonl.gz", "humaneval/HumanEval.jsonl.gz"])
def test_published_solutions_score_one(name: str) -> None:
    task = Code(path=real(name), limit=40, chat=True, **OPEN)
    examples = [*task.sides[0], *task.sides[1]]
    assert [score.reward for score in task.score_many(examples, [e.answer for e in examples])] == [1.0] * 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [("mbpp/mbpp.jsonl.gz", 974), ("mbpp/sanitized-mbpp.json.gz", 427), ("humaneval/HumanEval.jsonl.gz", 164)],
)
def test_all_published_solutions_score_one(name: str, count: int) -> None:
    task = Code(path=real(name), wall_seconds=120.0, **OPEN)
    examples = [*task.sides[0], *task.sides[1]]
    scores = task.score_many(examples, [example.answer for example in examples])
    assert len(examples) == count
    assert [example.id for example, score in zip(examples, scores, strict=True) if score.reward != 1] == []
