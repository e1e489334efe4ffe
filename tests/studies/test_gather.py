"""What is committed of finished runs: all numbers, and no text of the data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from studies.gather import gather, main
from studies.results import read_study
from tests.studies.fake_pipeline import SECRET, write_pipeline, write_reward_model, write_run
from whet.errors import UserError
from whet.runs.experiment_directories import ComparisonDirectory

ROOT = Path(__file__).resolve().parents[2]


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_pipeline_leaves_its_numbers_and_pictures(tmp_path):
    pipeline = write_pipeline(tmp_path / "runs" / "one")
    (folder,) = gather([pipeline], tmp_path / "results")
    assert folder == tmp_path / "results" / "seed-0"
    assert files(folder) == [
        "comparison/comparison.json",
        "comparison/comparison.md",
        "comparison/overview.png",
        "judge.png",
        "reward.png",
        "runs.json",
    ]
    runs = json.loads((folder / "runs.json").read_text())
    assert list(runs) == [
        *("stages/sft", "stages/pairs", "stages/reward", "stages/judge"),
        *("methods/ppo/seed-0", "methods/dpo/seed-0"),
    ]
    sft = runs["stages/sft"]
    assert (sft["before"]["step"], sft["before"]["eval/accuracy"]) == (0, 0.5)
    assert (sft["after"]["step"], sft["after"]["eval/accuracy"]) == (4, 0.75)
    assert (sft["seconds_of_steps"], sft["seconds_of_evaluations"]) == (2.0, 0.5)
    assert sft["machine"] == {"device": "x86_64", "threads": 2, "processes": 1}
    assert (runs["stages/pairs"]["rows"], runs["stages/pairs"]["seconds_of_steps"]) == (1, 8.0)
    assert runs["stages/reward"]["analysis"]["accuracy"]["mean"] == 0.75  # three of the four pairs of the report


def test_no_text_of_the_data_and_no_place_of_the_machine(tmp_path):
    pipeline = write_pipeline(tmp_path / "runs" / "one")
    (folder,) = gather([pipeline], tmp_path / "results")
    said = {row["text"] for row in ComparisonDirectory(pipeline / "comparison").samples("start")}
    assert len(said) > 10
    for name in files(folder):
        content = (folder / name).read_bytes().decode("utf-8", "replace")
        assert SECRET not in content
        assert not any(json.dumps(text)[1:-1] in content for text in said)
        assert str(tmp_path) not in content
    analysis = json.loads((folder / "runs.json").read_text())["stages/reward"]["analysis"]
    assert not {"margins", "worst", "worst_rows"} & analysis.keys()
    assert {"pairs", "accuracy", "bins", "calibration_error", "by_length", "longer"} <= analysis.keys()


def test_the_numbers_are_those_of_the_contest_but_for_places(tmp_path):
    pipeline = write_pipeline(tmp_path / "one")
    (folder,) = gather([pipeline], tmp_path / "results")
    before, after = (ComparisonDirectory(path / "comparison").results() for path in (pipeline, folder))
    assert (after["proxy_path"], after["judge_path"]) == ("@reward", "@judge")
    assert (after["settings"]["start"], after["settings"]["reward"]) == ("@sft", "@reward")
    pipeline = write_pipeline(tmp_path / "two")
    compared = ComparisonDirectory(pipeline / "comparison")
    compared.write_results(
        {**compared.results(), "judge_path": str(tmp_path / "models" / "a-judge"), "proxy_path": None}
    )
    gather([pipeline], tmp_path / "others")
    named = ComparisonDirectory(tmp_path / "others" / "seed-0" / "comparison").results()
    assert (named["judge_path"], named["proxy_path"]) == ("a-judge", None)
    same = [key for key in before if key not in ("proxy_path", "judge_path", "settings")]
    assert {key: before[key] for key in same} == {key: after[key] for key in same}


def test_every_seed_has_a_folder_and_the_lowest_has_the_pictures(tmp_path):
    sources = [write_pipeline(tmp_path / str(seed), seed=seed) for seed in (2, 0)]
    assert [folder.name for folder in gather(sources, tmp_path / "results")] == ["seed-0", "seed-2"]
    assert "reward.png" in files(tmp_path / "results" / "seed-0")
    gather([write_pipeline(tmp_path / "1", seed=1)], tmp_path / "results")
    for seed in (1, 2):
        assert files(tmp_path / "results" / f"seed-{seed}") == ["comparison/comparison.json", "runs.json"]
    assert [seed.seed for seed in read_study(tmp_path / "results").seeds] == [0, 1, 2]


def test_a_method_that_failed_is_left_out_of_the_runs(tmp_path):
    (folder,) = gather([write_pipeline(tmp_path / "one", failed=[("dpo", 0)])], tmp_path / "results")
    assert [name for name in json.loads((folder / "runs.json").read_text()) if name.startswith("methods/")] == [
        "methods/ppo/seed-0"
    ]


def test_runs_by_themselves_go_into_one_file_for_each_seed(tmp_path):
    first = [write_reward_model(tmp_path / "runs" / f"20260101-00000{i}-{name}") for i, name in enumerate("ab")]
    gather(first, tmp_path / "results")
    later = write_reward_model(tmp_path / "runs" / "20260102-000000-b", accuracy=0.875)
    gather([later, write_reward_model(tmp_path / "runs" / "20260103-000000-b", seed=1)], tmp_path / "results")
    zero, one = read_study(tmp_path / "results").seeds
    assert {name: run["after"]["eval/accuracy"] for name, run in zero.runs.items()} == {"a": 0.75, "b": 0.875}
    assert list(one.runs) == ["b"]
    assert files(tmp_path / "results") == ["seed-0/a.png", "seed-0/b.png", "seed-0/runs.json", "seed-1/runs.json"]


def test_what_cannot_be_gathered_is_refused(tmp_path):
    begun = write_run(tmp_path / "begun", finished=False)
    with pytest.raises(UserError, match=r"begun is not finished; go on with: whet train .*begun --resume"):
        gather([begun], tmp_path / "results")
    pipeline = write_pipeline(tmp_path / "one")
    with pytest.raises(UserError, match="seed 0 of fake comes twice"):
        gather([pipeline, pipeline], tmp_path / "results")
    (pipeline / "comparison" / "comparison.json").unlink()
    with pytest.raises(UserError, match="holds no comparison"):
        gather([pipeline], tmp_path / "results")
    with pytest.raises(UserError, match="is not a run directory"):
        gather([tmp_path / "nowhere"], tmp_path / "results")


def test_the_command(tmp_path, capsys):
    source = write_pipeline(tmp_path / "one", seed=7)
    main([str(source), "--to", str(tmp_path / "results")])
    assert capsys.readouterr().out == f"{tmp_path / 'results' / 'seed-7'}\n"
    script = [sys.executable, str(ROOT / "studies" / "gather.py"), str(tmp_path), "--to", str(tmp_path / "results")]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path} is not a run directory")
    assert done.stderr.count("\n") == 1
