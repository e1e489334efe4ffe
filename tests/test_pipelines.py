"""The packaged pipelines and the recipes of the studies run a few steps, on small data in the true formats."""

import gzip
import json
import lzma
import shutil
from pathlib import Path

import pytest

from studies.gather import gather
from studies.results import read_study
from studies.tables import contest_lines, rank_lines
from tests.small import small_chat_model
from whet.cli.progress import SilentProgress
from whet.recipe import Pipeline, is_pipeline, packaged_recipes, read_any, read_recipe
from whet.report.figures import png
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import PipelineDirectory
from whet.train.experiments.pipeline_runs import make_plan, run_pipeline
from whet.train.explain.explanation import explain_pipeline
from whet.train.start import start_run

STUDIES = Path(__file__).resolve().parents[1] / "studies"


class Silent:
    """Watches a pipeline and says nothing."""

    def begin(self, label, state):
        pass

    def progress(self, config, run):
        return SilentProgress()

    def end(self, run, failure):
        assert not failure

    def note(self, text):
        pass


def few(config, **changes):
    """Overrides that make every run of a pipeline short."""
    overrides = []
    for part, runs in (("stages", config.stages), ("methods", config.methods)):
        for name, run in runs.items():
            here = f"{part}.{name}"
            overrides += [f"{here}.steps=1", f"{here}.device=cpu"]
            if run.loop == "collect":
                overrides += [f"{here}.rollout.prompts=24", f"{here}.rollout.group=4", f"{here}.rollout.max_tokens=40"]
                overrides += [f"{here}.truncated=keep"]  # a model that has learned nothing hardly ends
                continue
            overrides += [f"{here}.optimizer.warmup_steps=0", f"{here}.eval.examples=4", f"{here}.save.every_steps=1"]
            overrides += [f"{here}.batch_size=4"] if run.loop == "offline" else [f"{here}.rollout.prompts=4"]
            overrides += [f"{here}.critic.warmup_steps=0"] if "critic" in run.model_fields_set else []
    return [*overrides, "compare.prompts=3", "compare.max_tokens=8", "compare.best_of=[1,2]", *changes.get("more", [])]


def run(source, more, tmp_path, made=None):
    whole = read_any(str(source))
    assert isinstance(whole, Pipeline)
    pipeline = read_any(str(source), [*few(whole.config), *more])
    assert explain_pipeline(pipeline)
    directory = PipelineDirectory.create(tmp_path / "runs", pipeline.name)
    if made is not None:
        shutil.copytree(made.path / "stages" / "sft", directory.path / "stages" / "sft")
    return directory, run_pipeline(make_plan(pipeline, directory), Silent())


PACKAGED = {
    "rlhf-reviews": ["dpo", "grpo", "ppo"],
    "online-reviews": ["iterative_dpo", "online_dpo", "rejection_sampling"],
}


def test_the_packaged_pipelines(tmp_path, monkeypatch):
    """The second one goes on from the SFT model that it shares with the first."""
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    made = None
    for name, methods in PACKAGED.items():
        made = run_packaged(name, methods, made, tmp_path / name)


def run_packaged(name, methods, made, tmp_path):
    sft = {"steps": 60, "batch_size": 32, "eval.every_steps": 60, "save.every_steps": 60}
    more = [*(f"stages.sft.{key}={value}" for key, value in sft.items()), "compare.samples=2"]
    directory, (failures, _) = run(name, more, tmp_path, made)
    assert not failures
    results = json.loads((directory.comparison_path / "comparison.json").read_text())
    assert sorted(method["method"] for method in results["methods"]) == methods
    assert (directory.comparison_path / "comparison.html").stat().st_size > 10_000
    gather([directory.path], tmp_path / "results")
    study = read_study(tmp_path / "results")
    assert list(study.seeds[0].runs) == [
        *(f"stages/{stage}" for stage in read_any(name).config.stages),
        *(f"methods/{method['method']}/seed-0" for method in results["methods"]),
    ]
    shown = "\n".join([*contest_lines(study), *rank_lines(study)])
    assert all(f"| {method} " in shown for method in [*methods, "the reward model", "the judge"])
    return directory


def test_every_packaged_pipeline_is_run_here():
    assert [name for name in packaged_recipes() if is_pipeline(name)] == sorted(PACKAGED)


def test_iterative_dpo_goes_on_from_its_first_round():
    """The second round samples from, begins with and is measured against what the first one made."""
    config = read_any("online-reviews").config
    first, second = config.stages["better"], config.methods["iterative_dpo"]
    assert (first.model.path, config.stages["redrafts"].model.path, second.model.path) == ("@sft", "@better", "@better")
    assert (first.reference, second.reference) == ("", "")  # the weights that each starts from
    assert (first.data.path, second.data.path) == ("@drafts", "@redrafts")
    assert first.objective == second.objective


def transcript(turns):
    return "".join(f"\n\n{'Human' if i % 2 == 0 else 'Assistant'}: {text}" for i, text in enumerate(turns))


def hh(path, count=40):
    rows = [
        {
            "chosen": transcript([f"What is {i}+{i}?", "Why?", f"So {i}.", f"It is {2 * i}."]),
            "rejected": transcript([f"What is {i}+{i}?", "Why?", f"So {i}.", "No idea."]),
        }
        for i in range(count)
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def ultrafeedback(path, count=40):
    rows = [
        {
            "prompt": f"What is {i}+{i}?",
            "chosen": f"It is {2 * i}.",
            "rejected": f"It is {2 * i + 1}.",
            "source_index": i,
            "metadata": {"score_chosen": 9.0, "score_rejected": 7.0},
        }
        for i in range(count)
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory as studies/README.md asks for; pictures are drawn."""
    monkeypatch.setattr("whet.report.figures.png", png)
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    small_chat_model(tmp_path / "smollm2-135m-instruct")
    for folder in ("hh", "uf", "judged"):
        (tmp_path / folder).mkdir()
    ultrafeedback(tmp_path / "uf" / "pairs.jsonl.gz")
    for name in ("base", "sampled", "helpful"):
        hh(tmp_path / "hh" / f"{name}.jsonl.gz")
    solved = [
        {
            "question": f"What is {i}+1?",
            "ground_truth": f"{i}+1 is {i + 1}.\nA: {i + 1}",
            **{
                solver: {"is_correct": (i + k) % 2 == 0, "solution": f"It is {i + k}.\nA: {i + k}"}
                for k, solver in enumerate(("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"))
            },
        }
        for i in range(40)
    ]
    content = "".join(json.dumps(row) + "\n" for row in solved).encode()
    (tmp_path / "judged" / "gsm8k_solutions.jsonl.gz").write_bytes(gzip.compress(content))
    traced = [
        {
            "idx": f"circular_{i}",
            "original_question": f"What is {i}+1?",
            "modified_question": f"What is {i}+1?",
            "original_process": [f"Take {i}.", "Add 1.", f"It is {i + 1}."],
            "modified_process": [f"Take {i}.", "Add 2.", f"It is {i + 2}."],
            "modified_steps": [2],
            "error_steps": [2, 3],
            "classification": "circular",
        }
        for i in range(40)
    ]
    content = "".join(json.dumps(row) + "\n" for row in traced).encode()
    (tmp_path / "judged" / "prmbench_all.jsonl.xz").write_bytes(lzma.compress(content))
    return tmp_path


@pytest.mark.parametrize("name", ["hh/hh", "ultrafeedback/ultrafeedback"])
def test_the_studies_are_valid(place, name):
    pipeline = read_any(str(STUDIES / f"{name}.yaml"))
    assert isinstance(pipeline, Pipeline)
    assert explain_pipeline(pipeline)


@pytest.mark.slow
def test_the_study_of_dialogues(place):
    directory, (failures, _) = run(STUDIES / "hh" / "hh.yaml", ["stages.pairs.rollout.max_tokens=4"], place)
    assert not failures
    assert (directory.comparison_path / "overview.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_study_of_scored_answers(place):
    directory, (failures, _) = run(STUDIES / "ultrafeedback" / "ultrafeedback.yaml", [], place)
    assert not failures
    results = json.loads((directory.comparison_path / "comparison.json").read_text())
    assert sorted(method["method"] for method in results["methods"]) == ["dpo", "grpo", "ppo"]


@pytest.mark.parametrize("name", ["preference", "outcome", "process"])
def test_the_studies_of_reward_models(place, name):
    short = ["steps=1", "batch_size=4", "eval.examples=6", "eval.every_steps=1", "save.every_steps=1", "device=cpu"]
    recipe = read_recipe(str(STUDIES / "reward_models" / f"{name}.yaml"), [*short, "optimizer.warmup_steps=0"])
    path = start_run(recipe, place / "runs", lambda config, run: SilentProgress())
    assert RunDirectory.open(path, is_writer=False).finished
    assert (path / "reward_model.png").stat().st_size > 10_000
