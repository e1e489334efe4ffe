"""Word problems with a calculator: answers by another reading of their texts, and rows as GSM8K has them."""

import json
import re
from pathlib import Path

import pytest

from whet.errors import UserError
from whet.tasks.check import check_task
from whet.tasks.loading import load_task
from whet.tasks.stepping.check_environment import check_environment, play

BY_WORDS = {
    "boxes": lambda a, b, c: b * a - c,
    "times as many": lambda a, b, c: a + (a * b + c),
    "ticket costs": lambda a, b, c: a * b + a * c,
    "pages a day for": lambda a, b, c: a * b - c * b,
    "rows of": lambda a, b, c: sum(b for _ in range(a)) + c - 1,
    "a week for": lambda a, b, c: -(-(a * b - c) // 2),
}
ROWS = [
    {
        "question": f"A pen costs ${n}. How much are {n + 3} pens and a $2 case?",
        "answer": f"The pens are {n} * {n + 3} = <<{n}*{n + 3}={n * (n + 3)}>>{n * (n + 3)}.\n#### {n * (n + 3) + 2}",
    }
    for n in range(11, 51)
]


def test_problems_made_here_say_what_their_answers_are() -> None:
    task = load_task("word_problems", {})
    check_task(task)
    check_environment(task)
    seen = set()
    for example in task.draw(120, seed=(4,)):
        text = str(example.columns["question"])
        (kind,) = [words for words in BY_WORDS if words in text]
        numbers = [int(found) for found in re.findall(r"\d+", text)]
        seen.add(kind)
        assert example.answer == f"\\boxed{{{BY_WORDS[kind](*numbers)}}}"
    assert seen == set(BY_WORDS)


def test_rows_as_gsm8k_has_them_are_played_with_a_calculator(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    task = load_task("word_problems", {"path": str(path), "held_out_share": 0.2})
    check_task(task)
    (example,) = task.held_out(1)
    (asked,) = example.prompt
    n = int(re.search(r"\$(\d+)", asked.content)[1])  # type: ignore[union-attr, index]
    assert json.loads(asked.tools[0])["function"]["name"] == "calculator"
    call = json.dumps({"name": "calculator", "arguments": {"expression": f"{n} * {n + 3} + 2"}})
    talk = play(task, example, [f"<tool_call>{call}</tool_call>", f"So it is \\boxed{{{n * (n + 3) + 2}}}."])
    assert json.loads(talk.replies[1].observation.split("\n")[1])["content"] == str(n * (n + 3) + 2)
    assert talk.replies[1].messages[0].content == str(n * (n + 3) + 2)
    outcome = str(talk.replies[-1].outcome)
    assert task.score(example, outcome).reward == 1
    assert task.score(example, outcome.replace(str(n * (n + 3) + 2), "0")).reward == 0
    assert task.correct(example, f"{n * (n + 3) + 2} dollars")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": ["search"]}, "the tool search needs a collection: set both, or neither"),
        ({"collection": "x"}, "a collection is for search"),
        ({"tools": ["python"], "isolation": "some"}, "isolation is 'some', must be one of none, minimum, full"),
        ({"tools": ["pythn"]}, "there is no tool 'pythn'"),
    ],
)
def test_options_of_tools_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_task("word_problems", options)
