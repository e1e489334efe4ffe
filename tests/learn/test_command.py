"""`whet learn` from the first list to a solved exercise."""

import json
from pathlib import Path

import pytest

from tests.cli.tiny import Whet
from whet.errors import UserError
from whet.learn import folder as learner
from whet.learn.catalogue import EXERCISES, find

SOLUTIONS = Path(__file__).with_name("solutions")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_way_of_a_learner(whet: Whet, here: Path) -> None:
    assert "28 run-e" in whet("learn", "list").out
    assert "0 of 28 solved; next: `whet learn start bigrams`" in whet("learn", "progress").out
    started = whet("learn", "start", "11")
    assert "docs/learn/11-kl.md" in started.out
    file = here / "learn" / "11_kl_estimators.py"
    assert file.read_text("utf-8") == find("11").stub.read_text("utf-8")

    failed = whet("learn", "check", "11")
    assert (failed.code, "`k1` is not written yet" in failed.out) == (1, True)
    assert "hint 1 of 4" in whet("learn", "hint", "11").out
    assert "hint 2 of 4" in whet("learn", "hint", "11").out

    wrong = (SOLUTIONS / "kl_estimators.py").read_text("utf-8").replace("(-d).exp()", "d.exp()")
    file.write_text(wrong, "utf-8")
    told = json.loads(whet("learn", "check", "kl-estimators", "--json").out)
    assert (told["solved"], told["passed"], told["of"]) == (False, 2, 4)
    assert "expected" in told["remark"]["example"]

    file.write_text((SOLUTIONS / "kl_estimators.py").read_text("utf-8"), "utf-8")
    solved = whet("learn", "check", "11")
    assert (solved.code, solved.out) == (0, "solved: all 4 checks of 'kl-estimators' passed\n")
    progress = json.loads(whet("learn", "progress", "--json").out)
    assert progress["seen"] == {"kl-estimators": {"state": "solved", "checks": 3, "hints": 2}}
    states = {row["name"]: row["state"] for row in json.loads(whet("learn", "list", "--json").out)}
    assert (states["kl-estimators"], states["gae"]) == ("solved", "")


def test_an_answer_is_never_overwritten(whet: Whet, here: Path) -> None:
    assert whet("learn", "start", "1").code == 0
    (here / "learn" / "01_bigrams.py").write_text("mine", "utf-8")
    again = whet("learn", "start", "1")
    assert (again.code, "exists" in again.err) == (2, True)
    assert (here / "learn" / "01_bigrams.py").read_text("utf-8") == "mine"


@pytest.mark.parametrize("words", [("check", "1"), ("start", "29"), ("start", "0"), ("hint", "gea")])
def test_what_does_not_exist_is_refused(whet: Whet, here: Path, words: tuple[str, ...]) -> None:
    result = whet("learn", *words)
    assert (result.code, result.out) == (2, "")
    assert not (here / "learn").exists()


def test_git_ignores_the_progress(here: Path) -> None:
    learner.start(here / "mine", EXERCISES[0])
    assert (here / "mine" / ".gitignore").read_text("utf-8") == "PROGRESS.md\n"
    (here / "mine" / ".gitignore").write_text("*.pyc\n", "utf-8")
    learner.start(here / "mine", EXERCISES[1])
    assert (here / "mine" / ".gitignore").read_text("utf-8") == "*.pyc\n"


def test_progress_survives_what_people_write_into_it(here: Path) -> None:
    folder = here / "mine"
    learner.start(folder, EXERCISES[3])
    learner.checked(folder, EXERCISES[3], solved=True)
    file = folder / learner.PROGRESS
    file.write_text(file.read_text("utf-8") + "\nMy notes.\n| 9 | broken row |\n", "utf-8")
    learner.checked(folder, EXERCISES[3], solved=False)  # what was solved once stays solved
    assert learner.progress(folder) == {"next-token": learner.Record("solved", 2, 0)}


def test_another_folder_is_named_in_what_is_suggested(whet: Whet, here: Path) -> None:
    assert "`whet learn check 3 --folder mine`" in whet("learn", "start", "3", "--folder", "mine").out
    assert "`whet learn hint 3 --folder mine`" in whet("learn", "check", "3", "--folder", "mine").out


def test_hints_end_with_the_last_one(here: Path) -> None:
    hints = [learner.next_hint(here / "mine", EXERCISES[5])[0] for _ in range(5)]
    assert hints == [1, 2, 3, 3, 3]


def test_a_name_that_is_nearly_right_is_guessed() -> None:
    with pytest.raises(UserError, match="did you mean 'ppo-loss'"):
        find("ppo-los")
