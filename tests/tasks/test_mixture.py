"""A mixture of tasks: draws by weight, one grader for each, a user's task behind its guard."""

from collections import Counter
from pathlib import Path

import pytest

from whet.config.parts import TaskConfig
from whet.errors import UserError
from whet.tasks.check import check_task
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.graders import DirectGrader, WorkerGrader, make_grader
from whet.tasks.loading import load_task
from whet.tasks.procedural import Arithmetic, Sorting
from whet.tasks.protocol import HasAlphabet
from whet.tasks.selection.mixture import Mixture

SUMS_AND_SORTING = [{"name": "arithmetic", "weight": 2, "level": 2}, "sorting"]
OWN = """
from whet.records import Example, Score

class Echo:
    name = "echo"
    def draw(self, count, *, seed):
        return [Example(id=f"{seed[-1]}-{n}", prompt=f"say {n}", answer=str(n)) for n in range(count)]
    def held_out(self, count):
        return [Example(id=f"held{n}", prompt=f"say h{n}", answer=f"h{n}") for n in range(count)]
    def score(self, example, text):
        if text == "crash":
            raise ValueError("no")
        return Score(reward=5.0 * (text == example.answer), parts={"same": float(text == example.answer)})
    def correct(self, example, text):
        return text == example.answer
"""


def test_a_mixture_keeps_the_promises_of_a_task() -> None:
    check_task(Mixture(tasks=SUMS_AND_SORTING))
    check_task(Mixture(tasks=[{"name": "arithmetic", "level": 1}, {"name": "arithmetic", "level": 2}, "reviews"]))


def test_examples_are_the_tasks_own_under_a_label() -> None:
    mixture = load_task("mixture", {"tasks": SUMS_AND_SORTING})
    assert isinstance(mixture, Mixture)
    drawn = [one for step in (1, 2, 3) for one in mixture.draw(4, seed=(7, step))]
    assert Counter(one.part for one in drawn) == {"arithmetic": 8, "sorting": 4}
    sums = Arithmetic(level=2)
    own = [one for block in (1, 2, 3) for one in sums.draw(3, seed=(7, block))]  # 4 · ⅔, rounded up, at a time
    mine = [one for one in drawn if one.part == "arithmetic"]
    assert [one.id for one in mine] == [f"arithmetic/{one.id}" for one in own[:8]]
    assert [one.prompt for one in mine] == [one.prompt for one in own[:8]]
    held_out = mixture.held_out(6)
    assert [one.part for one in held_out] == ["arithmetic", "sorting"] * 3
    assert [one.prompt for one in held_out[1::2]] == [one.prompt for one in Sorting().held_out(3)]
    assert isinstance(mixture, HasAlphabet)
    assert mixture.alphabet == "".join(sorted(set(sums.alphabet + Sorting().alphabet)))


def test_each_task_grades_its_own() -> None:
    mixture = Mixture(tasks=SUMS_AND_SORTING)
    one, other = mixture.held_out(2)
    assert mixture.score(one, one.answer).reward == 1
    assert mixture.correct(other, other.answer)
    assert not mixture.correct(other, one.answer)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "has no tasks"),
        ([3], "must be a task's name or a mapping with one"),
        ([{"weight": 2}], "must be a task's name or a mapping with one"),
        (["sortin"], "there is no task 'sortin'; did you mean 'sorting'"),
        ([{"name": "sorting", "levl": 2}], "no option 'levl'; did you mean 'level'"),
        ([{"name": "sorting", "weight": 0}], "the weight of sorting is 0, must be a number above 0"),
        ([{"name": "sorting", "label": "a/b"}], "'a/b' cannot be a label"),
        ([{"name": "mixture", "tasks": ["sorting"]}], "a mixture is one of its tasks"),
    ],
)
def test_wrong_tasks_are_refused(tasks: list[object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_task("mixture", {"tasks": tasks})


def test_labels() -> None:
    same = [{"name": "sorting", "level": 1}, {"name": "sorting", "level": 2}, {"name": "sorting", "label": "long"}]
    assert list(Mixture(tasks=same).parts) == ["sorting", "sorting-2", "long"]


def test_a_users_task_is_graded_in_a_worker(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    tasks = [{"name": f"{tmp_path / 'own.py'}:Echo"}, "sorting"]
    mixture = Mixture(tasks=tasks)
    grader = make_grader("mixture", {"tasks": tasks}, (), 20.0, task=mixture)
    assert isinstance(grader._graders["Echo"], WorkerGrader)  # type: ignore[attr-defined]
    assert isinstance(grader._graders["sorting"], DirectGrader)  # type: ignore[attr-defined]
    examples = mixture.held_out(4)
    assert [one.part for one in examples] == ["Echo", "sorting"] * 2
    scores = grader.grade(examples, [one.answer for one in examples])
    assert [score.reward for score in scores] == [5, 1, 5, 1]
    with pytest.raises(GradingFailed, match="ValueError: no"):
        grader.grade(examples[:1], ["crash"])
    grader.close()


def test_files_of_its_tasks_have_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    given = ["sorting", {"name": "rows", "path": "rows.jsonl", "weight": 2}, {"name": "own.py:Echo", "label": "mine"}]
    config = TaskConfig(name="mixture", tasks=given)  # type: ignore[call-arg]
    assert config.options["tasks"] == [
        {"name": "sorting"},
        {"name": "rows", "weight": 2, "path": str(tmp_path / "rows.jsonl")},
        {"name": f"{tmp_path / 'own.py'}:Echo", "label": "mine"},
    ]
    assert config.is_graded
    assert not TaskConfig(name="mixture", tasks=[{"name": "data", "path": "rows.jsonl"}]).is_graded  # type: ignore[call-arg]
