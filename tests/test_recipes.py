"""Every packaged recipe fits on a screen, says what it is, loads, explains itself and trains a step."""

import re

import pytest
import yaml

from tests.small import small_chat_model
from whet.cli.progress import SilentProgress
from whet.models.load import load_model
from whet.recipe import (
    dump,
    is_pipeline,
    packaged_recipes,
    parse_yaml,
    read_any,
    read_recipe,
    validate,
    validate_pipeline,
)
from whet.runs.directory import RunDirectory
from whet.train.explain.explanation import explain
from whet.train.start import start_run

RECIPES = packaged_recipes()
PIPELINES = [name for name in RECIPES if is_pipeline(name)]
CONTROL = [name for name in RECIPES if "loop: control" in RECIPES[name]]  # trained in tests/control
STARTERS = [
    name for name in RECIPES if name not in (*PIPELINES, *CONTROL) and "model" not in yaml.safe_load(RECIPES[name])
]
SINGLE = [name for name in RECIPES if name not in (*PIPELINES, *STARTERS, *CONTROL)]  # test_starter_recipes.py: others


@pytest.mark.parametrize("name", RECIPES)
def test_fits_on_a_screen_and_describes_itself(name):
    lines = RECIPES[name].splitlines()
    assert len(lines) <= (80 if name in PIPELINES else 40)
    assert re.match(r"# \w.{20,}", lines[0])
    assert not {"extends", "inherit", "defaults", "<<"} & set(yaml.safe_load(RECIPES[name]))


@pytest.mark.parametrize("name", PIPELINES)
def test_a_saved_pipeline_is_the_pipeline(name):
    config = read_any(name).config
    assert validate_pipeline(parse_yaml(dump(config), where="saved"), where="saved") == config


@pytest.mark.parametrize("name", [*SINGLE, *CONTROL])
def test_the_saved_config_is_the_config(name):
    config = read_recipe(name).config
    assert validate(parse_yaml(dump(config), where="saved"), where="saved") == config


@pytest.mark.parametrize("name", SINGLE)
def test_trains_a_step(name, tmp_path, monkeypatch):
    overrides = ["steps=1", "eval.examples=8", "device=cpu"]
    recipe = read_recipe(name, overrides)
    if recipe.config.task.name == "corpus":  # a text that has to be downloaded: one that is here stands in
        monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
        overrides += ["task.path=python-stdlib", "task.limit=8", "task.eval_windows=20"]
        overrides += ["batch_size=4", "eval.max_tokens=8"] if recipe.config.loop == "offline" else []
        recipe = read_recipe(name, overrides)
    if recipe.config.model.path:  # a model that has to be pulled: a small one of the same kind stands in
        overrides += [f"model.path={small_chat_model(tmp_path / 'model')}"]
        recipe = read_recipe(name, overrides)
    if recipe.config.loop == "online":
        cold = ["cold_start.steps=2"] if recipe.config.cold_start.steps else []
        recipe = read_recipe(name, [*overrides, "rollout.prompts=4", *cold])
    assert explain(recipe) is not None
    path = start_run(recipe, tmp_path / "runs", lambda config, run: SilentProgress())
    run = RunDirectory.open(path, is_writer=False)
    assert [row["step"] for row in run.metrics()] == [0, 1]
    assert run.metrics()[1]["grad_norm"] >= 0
    assert run.finished
    assert load_model(path / "best_model", bidirectional=None).vocab_size > 0
    assert (path / "report.html").is_file()
