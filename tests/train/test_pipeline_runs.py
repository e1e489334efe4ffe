"""What a pipeline is about to do: which runs, where, from which paths, and with which seeds."""

from pathlib import Path

import pytest

from whet.errors import UserError
from whet.recipe import Pipeline, dump, parse_yaml, read_any, validate_pipeline
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import PipelineDirectory
from whet.train.experiments.pipeline_runs import chosen, make_plan, reopened

PIPELINE = """
loop: pipeline
seed: 2
shared: {task: {name: sorting}, rollout: {max_tokens: 3}}
stages:
  sft: {loop: offline, steps: 1, model: {new: {}}}
methods:
  grpo: {algorithm: grpo, steps: 1, model: "@sft"}
  more: {loop: offline, steps: 1, model: "@sft/checkpoints/step-000001/model", seed: 6}
compare: {start: "@sft"}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "chain.yaml").write_text(PIPELINE)
    return str(tmp_path / "chain.yaml")


def read(recipe: str, *overrides: str) -> Pipeline:
    found = read_any(recipe, overrides)
    assert isinstance(found, Pipeline)
    return found


def begin(directory: PipelineDirectory, pipeline: Pipeline, *, finished: bool) -> None:
    """The first stage as if it had run."""
    job = make_plan(pipeline, directory).stages["sft"]
    with RunDirectory.create(job.path.parent, "sft", dump(job.recipe.config), path=job.path) as run:
        if finished:
            run.finish({})


def test_names_become_absolute_paths_and_methods_keep_their_seed(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = make_plan(read(recipe), PipelineDirectory(Path("out")))
    assert list(plan.methods) == [("grpo", 2), ("more", 6)]
    assert plan.methods["grpo", 2].path == Path("out/methods/grpo/seed-2")
    assert plan.methods["grpo", 2].recipe.config.model.path == str(tmp_path / "out/stages/sft")
    assert plan.methods["more", 6].recipe.config.model.path.endswith("/stages/sft/checkpoints/step-000001/model")
    assert plan.methods["more", 6].recipe.name == "more"


def test_seeds_are_for_all_methods_and_come_one_after_the_other(recipe, tmp_path):
    plan = make_plan(read(recipe, "seeds=[0,1]"), PipelineDirectory(tmp_path / "out"))
    assert list(plan.methods) == [("grpo", 0), ("more", 0), ("grpo", 1), ("more", 1)]
    assert [job.recipe.config.seed for job in plan.methods.values()] == [0, 0, 1, 1]
    assert plan.stages["sft"].recipe.config.seed == 2


def test_a_choice_of_methods_can_be_saved_and_read_again(recipe):
    """Nothing that is left has rollouts, which are shared: that was right in the recipe and stays right."""
    choice = chosen(recipe, ["more"], [3], [])
    assert list(choice.config.methods) == ["more"]
    assert validate_pipeline(parse_yaml(dump(choice.config), where="saved"), where="saved") == choice.config
    assert choice.config.stages == read(recipe).config.stages


def test_what_there_is_decides_what_is_left(recipe, tmp_path):
    directory = PipelineDirectory(tmp_path / "out")
    assert {job.state for job in make_plan(read(recipe), directory).jobs} == {"new"}
    begin(directory, read(recipe), finished=True)
    assert [job.state for job in make_plan(read(recipe), directory).jobs] == ["finished", "new", "new"]
    with pytest.raises(UserError, match=r"another config \(steps: 1 there, 2 here\)"):
        make_plan(read(recipe, "stages.sft.steps=2"), directory)


def test_a_method_that_began_from_a_stage_that_is_gone_is_refused(recipe, tmp_path):
    directory = PipelineDirectory(tmp_path / "out")
    begin(directory, read(recipe), finished=False)
    method = make_plan(read(recipe), directory).methods["grpo", 2]
    with RunDirectory.create(method.path.parent, "grpo", dump(method.recipe.config), path=method.path):
        pass
    with pytest.raises(UserError, match=r"grpo/seed-2 was made from stage sft, but .*/stages/sft is not finished"):
        make_plan(read(recipe), directory)


def test_a_directory_says_what_it_was_made_from(recipe, tmp_path):
    directory = PipelineDirectory.create(tmp_path, "chain")
    with directory.writing(dump(read(recipe).config)):
        pass
    again = reopened(directory, ["methods.grpo.lr=3e-4"])
    assert again.name == "chain"
    assert again.config.methods["grpo"].optimizer.lr == 3e-4
    assert again.config.stages == read(recipe).config.stages
    with pytest.raises(UserError, match=r"seed=3: the runs of .* have it already"):
        reopened(directory, ["seed=3"])
