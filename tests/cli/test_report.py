"""`whet report` on a run directory made by the real `Run`."""

from pathlib import Path

import pytest

from tests.cli.tiny import Whet
from whet.runs.directory import Run

ACCURACY = {"eval/accuracy": 0.25, "eval/accuracy_low": 0.125, "eval/accuracy_high": 0.5}
BETTER = {"eval/accuracy": 0.75, "eval/accuracy_low": 0.5, "eval/accuracy_high": 0.875}


def _run(root: Path, *evaluations: dict[str, float]) -> Path:
    with Run.create(root, "grpo-test", "steps: 2\nloop: online\n") as run:
        for step in range(3):
            metrics = {} if step == 0 else {"reward/mean": 0.1 * step, "loss": 1.0 / step}
            run.log(step, {**metrics, **(evaluations[step] if step < len(evaluations) else {})})
    return run.path


def test_it_writes_both_files_and_says_how_the_run_went(whet: Whet, tmp_path: Path) -> None:
    run = _run(tmp_path, {**ACCURACY, "eval/loss": 2.5}, {}, {**BETTER, "eval/loss": 1.25})
    result = whet("report", run)
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        f"report: {run / 'report.html'}",
        "held-out accuracy: 25.0% [12.5% … 50.0%] → 75.0% [50.0% … 87.5%] (95 % intervals)",
        "held-out loss: 2.5000 → 1.2500",
    ]
    assert (run / "training_curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in (run / "report.html").read_text()


def test_a_single_evaluation_and_none(whet: Whet, tmp_path: Path) -> None:
    assert "held-out accuracy: 25.0% [12.5% … 50.0%] (95 %" in whet("report", _run(tmp_path / "one", ACCURACY)).out
    assert "no evaluation yet" in whet("report", _run(tmp_path / "none")).out


def test_open_shows_the_page(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    run = _run(tmp_path, ACCURACY)
    whet("report", run, "--open")
    assert opened == [(run / "report.html").as_uri()]


def test_what_is_no_run_is_refused(whet: Whet, tmp_path: Path) -> None:
    result = whet("report", tmp_path)
    assert result.code == 2
    assert "is not a run directory" in result.err
