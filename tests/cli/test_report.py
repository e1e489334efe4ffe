"""`whet report` on directories made by the code that makes the real ones."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.tiny import Whet
from tests.report.fake_contest import METHODS, fake_contest
from tests.report.fake_sweep import comparison
from whet.report.comparison.comparison_page import write_page
from whet.report.comparison.sweep_results import sweep_results
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory

ACCURACY = {"eval/accuracy": 0.25, "eval/accuracy_low": 0.125, "eval/accuracy_high": 0.5}
BETTER = {"eval/accuracy": 0.75, "eval/accuracy_low": 0.5, "eval/accuracy_high": 0.875}


def _run(root: Path, *evaluations: dict[str, float]) -> Path:
    with RunDirectory.create(root, "grpo-test", "steps: 2\nloop: online\n") as run:
        for step in range(3):
            metrics = {} if step == 0 else {"reward/mean": 0.1 * step, "loss": 1.0 / step}
            run.log(step, {**metrics, **(evaluations[step] if step < len(evaluations) else {})})
    return run.path


def test_it_writes_both_files_and_says_how_the_run_went(whet: Whet, tmp_path: Path) -> None:
    run = _run(tmp_path, {**ACCURACY, "eval/loss": 2.5}, {}, {**BETTER, "eval/loss": 1.25, "eval/prompts": 8})
    result = whet("report", run)
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        f"report: {run / 'report.html'}",
        "held-out accuracy: 25.0% [12.5% … 50.0%] → 75.0% [50.0% … 87.5%] (95 % intervals, on 8 prompts)",
        "held-out loss: 2.5 → 1.25",
    ]
    assert (run / "training_curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in (run / "report.html").read_text()


def test_a_single_evaluation_and_none(whet: Whet, tmp_path: Path) -> None:
    assert "held-out accuracy: 25.0% [12.5% … 50.0%] (95 %" in whet("report", _run(tmp_path / "one", ACCURACY)).out
    assert "no evaluation yet" in whet("report", _run(tmp_path / "none")).out


def test_the_report_as_json(whet: Whet, tmp_path: Path) -> None:
    run = _run(tmp_path, ACCURACY, {}, BETTER)
    told = json.loads(whet("report", run, "--json").out)
    assert Path(told["report"]).is_file()
    assert Path(told["curves"]).is_file()
    assert told["finished"] is False
    assert told["held_out"] == {"held-out accuracy": [ACCURACY, BETTER]}
    sentence = "held-out accuracy went from 25.0% to 75.0%: intervals overlap, may be chance"
    assert ("note", sentence) in [(one["level"], one["sentence"]) for one in told["health"]]


def test_a_comparison_as_json(whet: Whet, tmp_path: Path) -> None:
    directory = compared(tmp_path)
    told = json.loads(whet("report", tmp_path, "--json").out)
    assert (told["report"], told["numbers"]) == (str(directory.page_path), str(directory.results_path))
    assert told["verdict"] == [json.loads(directory.results_path.read_bytes())["verdict"]]


def test_open_shows_the_page(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    run = _run(tmp_path, ACCURACY)
    whet("report", run, "--open")
    assert opened == [(run / "report.html").as_uri()]


def refused(whet: Whet, path: Path) -> str:
    result = whet("report", path)
    assert result.code == 2
    assert result.err.count("\n") == 1
    return result.err


def test_what_is_neither_run_nor_comparison_is_refused_in_one_sentence(whet: Whet, tmp_path: Path) -> None:
    told = "is neither a run nor a comparison; name a directory that whet train or whet compare made"
    assert f"{tmp_path} {told}" in refused(whet, tmp_path)
    assert f"{tmp_path / 'nowhere'} {told}" in refused(whet, tmp_path / "nowhere")


def test_the_page_of_a_contest_is_made_again(whet: Whet, tmp_path: Path) -> None:
    directory = fake_contest(tmp_path, methods={"ppo": METHODS["ppo"]}, seeds=1, prompts=20, pairwise=False)
    write_page(directory)
    drawn = {path: path.read_bytes() for path in tmp_path.glob("*.png")}
    page, table = directory.page_path.read_bytes(), directory.table_path.read_bytes()
    numbers = directory.results_path.read_bytes()
    for path in (directory.page_path, directory.table_path, *drawn):
        path.unlink()
    result = whet("report", tmp_path)
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        f"report: {directory.page_path}",
        "ppo has a higher gold reward than sft.",
        "By the judge: ppo is preferred to sft.",
    ]
    assert directory.page_path.read_bytes() == page
    assert directory.table_path.read_bytes() == table
    assert {path: path.read_bytes() for path in drawn} == drawn
    assert directory.results_path.read_bytes() == numbers
    assert "Side by side" in page.decode()


def test_numbers_without_completions_still_have_a_page(whet: Whet, tmp_path: Path) -> None:
    directory = fake_contest(tmp_path, methods={"ppo": METHODS["ppo"]}, seeds=1, prompts=20, pairwise=False)
    shutil.rmtree(tmp_path / "samples")
    assert whet("report", tmp_path).code == 0
    page = directory.page_path.read_text("utf-8")
    assert "Side by side" not in page
    assert "the completions were left out" in page
    assert "ppo has a higher gold reward than sft." in page


def test_a_pipeline_is_reported_by_its_comparison(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "config.yaml").write_text("loop: pipeline\n", "utf-8")
    assert f"has no comparison yet: continue with whet train {tmp_path} --resume" in refused(whet, tmp_path)
    fake_contest(tmp_path / "comparison", methods={"dpo": METHODS["dpo"]}, seeds=1, prompts=20, pairwise=False)
    result = whet("report", tmp_path)
    assert result.out.splitlines()[0] == f"report: {tmp_path / 'comparison' / 'comparison.html'}"


def test_a_comparison_of_an_older_format_is_refused(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text('{"accuracy": 1}', "utf-8")
    assert f"{tmp_path} holds no comparison of format 3" in refused(whet, tmp_path)


def compared(path: Path) -> ComparisonDirectory:
    """Two methods with two seeds, one of which failed, as `whet compare` leaves them."""
    directory = comparison(path, {"rloo": [[0.1, 0.5], [0.1, 0.6]], "grpo": [[0.1, 0.9], []]})
    results = sweep_results(
        directory,
        {("grpo", 1): "step 3: the loss is not finite"},
        recipe="grpo-test",
        command="whet compare --methods rloo,grpo --seeds 2 grpo-test",
        overrides={"rloo": (), "grpo": ("update.epochs=2",)},
        seeds=[0, 1],
        target=0.8,
    )
    directory.write_results(results)
    write_page(directory)
    return directory


def test_the_page_of_a_sweep_is_made_again_from_its_numbers(whet: Whet, tmp_path: Path) -> None:
    directory = compared(tmp_path)
    paths = (directory.results_path, directory.table_path, directory.page_path, directory.picture_path("curves"))
    made = {path: path.read_bytes() for path in paths}
    directory.table_path.unlink()
    directory.picture_path("curves").write_bytes(b"")
    shutil.rmtree(directory.run_path("rloo", 1))  # whoever shares the numbers may leave the runs out
    result = whet("report", tmp_path)
    assert result.code == 0, result.err
    assert {path: path.read_bytes() for path in made} == made
    assert "step 3: the loss is not finite" in directory.table_path.read_text("utf-8")
    verdict = json.loads(directory.results_path.read_bytes())["verdict"]
    assert result.out.splitlines() == [f"report: {directory.page_path}", verdict]


def test_runs_without_their_numbers_are_no_comparison(whet: Whet, tmp_path: Path) -> None:
    directory = compared(tmp_path)
    directory.results_path.unlink()
    told = f"holds several runs and no comparison of them; name one of them, e.g. {directory.run_path('grpo', 0)}"
    assert told in refused(whet, tmp_path)
