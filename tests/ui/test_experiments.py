"""Pipelines, comparisons and surveys."""

import json
from pathlib import Path
from typing import Any

from tests.report.fake_contest import fake_contest
from tests.report.fake_sweep import comparison
from tests.ui.pages import ask, client
from whet.report.comparison.sweep_results import sweep_results
from whet.runs.experiment_directories import ComparisonDirectory


def sweep(path: Path, **curves: list[list[float]]) -> ComparisonDirectory:
    """A finished comparison of these methods."""
    made = comparison(path, curves)
    seeds = list(range(max(map(len, curves.values()))))
    about: dict[str, Any] = {"recipe": "toy", "command": "whet compare toy", "seeds": seeds}
    made.write_results(sweep_results(made, {}, overrides={method: [] for method in curves}, **about))
    return made


def test_a_comparison_has_its_runs_and_its_verdict(tmp_path: Path) -> None:
    made = sweep(tmp_path / "sweep", grpo=[[0.1, 0.9], [0.1, 0.8]], rloo=[[0.1, 0.2], [0.1, 0.3]])
    entries = {entry["name"]: entry for entry in ask(tmp_path, "runs")["entries"]}
    assert entries["sweep"]["kind"] == "comparison"
    assert {name for name, entry in entries.items() if entry["in"] == "sweep"} == {
        f"sweep/{method}/seed-{seed}" for method in ("grpo", "rloo") for seed in (0, 1)
    }
    found = ask(tmp_path, "experiment", **{"in": "sweep"})
    assert found["comparison"]["verdict"][0].startswith("grpo has the highest mean")
    assert [entry["name"] for entry in found["comparison"]["entries"]] == ["grpo", "rloo"]
    assert len(found["runs"]) == 4
    assert found["page"] is None
    made.page_path.write_text("the report")
    page = ask(tmp_path, "experiment", **{"in": "sweep"})["page"]
    assert client(tmp_path).get("/file", params=page).text == "the report"


def test_a_pipeline_shows_the_comparison_of_its_methods(tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline"
    (pipeline / "stages").mkdir(parents=True)
    (pipeline / "config.yaml").write_text("loop: pipeline\n")
    empty = ask(tmp_path, "experiment", **{"in": "pipeline"})
    assert (empty["kind"], empty["comparison"], empty["runs"]) == ("pipeline", None, [])
    fake_contest(pipeline / "comparison", prompts=12, seeds=1)
    found = ask(tmp_path, "experiment", **{"in": "pipeline"})
    assert found["config"] == "loop: pipeline\n"
    assert [entry["is_start"] for entry in found["comparison"]["entries"]] == [True, False, False, False, False]


def test_a_damaged_comparison_is_told_beside_its_runs(tmp_path: Path) -> None:
    made = sweep(tmp_path / "sweep", grpo=[[0.1, 0.9]])
    results = json.loads(made.results_path.read_text("utf-8"))
    for wrong in (
        "{",
        "[]",
        "{}",
        json.dumps(results | {"format": 1}),
        json.dumps(results | {"methods": 3}),
        json.dumps({"format": 3, "kind": "sweep"}),
    ):
        made.results_path.write_text(wrong)
        found = ask(tmp_path, "experiment", **{"in": "sweep"})
        assert found["comparison"] is None
        assert found["problems"], wrong
        assert len(found["runs"]) == 1


def test_a_survey_is_its_page(tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "data.html").write_text("<p>200 pairs")
    [entry] = ask(tmp_path, "runs")["entries"]
    assert (entry["name"], entry["kind"]) == ("pairs", "survey")
    page = ask(tmp_path, "survey", **{"in": "pairs"})["page"]
    assert client(tmp_path).get("/file", params=page).text == "<p>200 pairs"
    assert "neither a pipeline nor a comparison" in ask(tmp_path, "experiment", **{"in": "pairs"})["error"]
