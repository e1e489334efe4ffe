"""The broken runs of `whet learn`: recipes that are read, answers that name what they hold, faults that are real."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny import Whet
from tests.learn.test_exercises import SOLUTIONS
from whet.learn import folder as learner
from whet.learn.bugs.broken_runs import RUNS
from whet.learn.bugs.diagnosis import Named
from whet.learn.exercise import Exercise
from whet.metrics.table import row_of
from whet.recipe import plain, read_recipe
from whet.runs.logs import read_log

EACH = pytest.mark.parametrize("exercise", RUNS, ids=lambda exercise: exercise.name)
# A supervised start as before training, and what RL adds or destroys: (broken, repaired) differ by so much.
LEAST_GAIN = 0.08


def answers(exercise: Exercise) -> dict[str, Any]:
    return runpy.run_path(str(SOLUTIONS / exercise.stub.name))


def at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


@EACH
def test_metrics_and_keys_of_its_checks_exist(exercise: Exercise) -> None:
    recipe = read_recipe(str(exercise.recipe))
    assert exercise.recipe
    assert exercise.recipe.name == f"{exercise.stub.stem}.yaml"
    symptom, key = exercise.checks[:2]
    assert isinstance(symptom, Named)
    assert isinstance(key, Named)
    for name in [*symptom.right, *symptom.wrong]:
        assert row_of(name), name
    for name in [*key.right, *key.wrong]:
        if name != "lr":  # short for optimizer.lr
            at(plain(recipe.config), name)


@EACH
def test_the_value_of_the_recipe_is_refused_and_that_of_the_solution_is_another(exercise: Exercise) -> None:
    told = answers(exercise)
    broken = at(plain(read_recipe(str(exercise.recipe)).config), told["key"])
    assert exercise.checks[2]({**told, "value": broken})
    assert exercise.checks[2](told) is None
    read_recipe(str(exercise.recipe), [f"{told['key']}={told['value']}"])


def test_start_puts_the_recipe_beside_the_answers_and_keeps_one_that_is_there(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "`whet train learn/run_a.yaml`" in whet("learn", "start", "run-a").out
    file = tmp_path / "learn" / "run_a.yaml"
    assert file.read_bytes() == RUNS[0].recipe.read_bytes()  # type: ignore[union-attr]
    file.write_text("mine", "utf-8")
    learner.file_of(Path("learn"), RUNS[0]).unlink()
    assert whet("learn", "start", "run-a").code == 0
    assert file.read_text("utf-8") == "mine"


@pytest.mark.slow
@EACH
def test_it_is_broken_and_the_solution_repairs_it(exercise: Exercise, whet: Whet, tmp_path: Path) -> None:
    told = answers(exercise)
    ends = []
    for name, override in (("broken", []), ("repaired", [f"{told['key']}={told['value']}"])):
        assert whet("train", str(exercise.recipe), *override, "--out", str(tmp_path / name)).code == 0
        rows = read_log(tmp_path / name / "metrics.jsonl")
        ends.append([row["eval/accuracy"] for row in rows if "eval/accuracy" in row][-1])
    assert ends[1] - ends[0] > LEAST_GAIN
    assert whet("doctor", str(tmp_path / "broken")).code in (1, 2)
