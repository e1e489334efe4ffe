"""Every reference solution passes, every stub fails helpfully, and common mistakes fail with the right remark."""

import re
from pathlib import Path

import pytest

from tests.learn.mistakes import MISTAKES
from whet.learn.catalogue import EXERCISES, find, number_of
from whet.learn.examiner_process import judged
from whet.learn.exercise import PHASES, Exercise, Remark

SOLUTIONS = Path(__file__).with_name("solutions")
ROOT = Path(__file__).resolve().parents[2]
BY_FILE = {exercise.stub.stem: exercise for exercise in EXERCISES}
EACH = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
PLANTED = [(name, *mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes]


def solution(exercise: Exercise) -> str:
    return (SOLUTIONS / exercise.stub.name).read_text("utf-8")


def remark_on(exercise: Exercise, text: str, folder: Path) -> Remark | None:
    file = folder / "answer.py"
    file.write_text(text, "utf-8")
    return judged(exercise, file)[1]


@EACH
def test_the_reference_solution_passes(exercise: Exercise, tmp_path: Path) -> None:
    assert remark_on(exercise, solution(exercise), tmp_path) is None


@EACH
def test_the_stub_fails_and_says_what_to_do(exercise: Exercise) -> None:
    passed, remark = judged(exercise, exercise.stub)
    assert (passed, remark is None) == (0 if exercise.name != "bug-temperature" else 1, False)
    assert remark is not None
    if exercise.phase == "bug hunt":
        assert "other numbers" not in remark.sentence
        assert remark.example
    else:
        assert "is not written yet" in remark.sentence


@pytest.mark.parametrize(("name", "right", "wrong", "words"), PLANTED, ids=lambda value: str(value)[:30])
def test_a_common_mistake_gets_its_remark(name: str, right: str, wrong: str, words: str, tmp_path: Path) -> None:
    exercise = BY_FILE[name]
    text = solution(exercise)
    assert right in text
    remark = remark_on(exercise, text.replace(right, wrong, 1), tmp_path)
    assert remark is not None
    assert any(part in f"{remark.sentence}" for part in words.split("|")), remark.sentence


def test_there_are_about_ten_mistakes_of_each_exercise() -> None:
    for name, exercise in BY_FILE.items():
        assert len(MISTAKES[name]) >= {"bug hunt": 2, "broken runs": 4}.get(exercise.phase, 10), name


@EACH
def test_no_remark_and_no_hint_holds_the_solution(exercise: Exercise) -> None:
    """No line of the reference that computes something stands in a hint."""
    said = " ".join(exercise.hints)
    for line in solution(exercise).splitlines():
        bare = line.strip().removeprefix("return ")
        assert len(bare) < 25 or bare not in said, bare


@EACH
def test_its_stub_names_number_chapter_and_command(exercise: Exercise) -> None:
    text = exercise.stub.read_text("utf-8")
    head = re.sub(r"\s+", " ", text.partition('"""\n')[0])
    assert f"Exercise {number_of(exercise)}" in head
    assert f"docs/learn/{exercise.chapter}" in head
    assert f"`whet learn check {exercise.name}`" in head
    assert exercise.phase in PHASES
    assert 2 <= len(exercise.hints) <= 5
    assert find(str(number_of(exercise))) is find(exercise.name) is exercise


def test_the_solutions_are_not_in_the_package() -> None:
    package = {path.name for path in (ROOT / "src").rglob("*.py")}
    texts = {path.read_text("utf-8") for path in (ROOT / "src" / "whet" / "learn").rglob("*.py")}
    assert not {exercise.stub.name for exercise in EXERCISES} - package
    assert not {solution(exercise) for exercise in EXERCISES} & texts
