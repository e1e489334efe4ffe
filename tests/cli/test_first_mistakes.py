"""What somebody types on the first day, and the line that helps on."""

import json
from pathlib import Path

import pytest

from tests.cli.refusal import refused, train_tiny, write_recipe
from tests.cli.tiny import Whet
from whet.doctor.findings import ENDED, Finding
from whet.errors import RunFailed, UserError
from whet.runs.logs import read_sealed, write_sealed
from whet.train.preflight.results import CheckFailed, run_checks
from whet.train.session.alarms import told


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return train_tiny(tmp_path)


def test_the_doctor_is_asked_about_something_else(whet: Whet, run: Path) -> None:
    assert run.name in refused(whet, "doctor", "nothing-like-it")
    assert "did you mean 'toy-sorting'?" in refused(whet, "doctor", "toy-sortin")
    assert f"name one of its runs: runs/{run.name}" in refused(whet, "doctor", "runs")
    Path("notes.txt").write_text("x")
    assert "notes.txt is a file" in refused(whet, "doctor", "notes.txt")


def test_the_doctor_of_a_pipeline_names_a_run_of_it(whet: Whet, run: Path) -> None:
    run.rename(run.parent / "moved")
    pipeline = run.parent / "pipeline"
    (pipeline / "stages").mkdir(parents=True)
    (run.parent / "moved").rename(pipeline / "stages" / "first")
    (pipeline / "config.yaml").write_text("loop: pipeline\n")
    assert refused(whet, "doctor", pipeline).endswith(f"e.g. {pipeline / 'stages' / 'first'}")


def test_an_empty_run_is_not_called_healthy(whet: Whet, run: Path) -> None:
    empty = run.parent / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    examined = whet("doctor", empty)
    assert examined.code == 0
    assert examined.out.splitlines()[-1] == "nothing to judge yet: no step is logged"
    assert "not judged" not in examined.out
    first = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[0]
    assert first.startswith(b'{"step": 0')
    (empty / "metrics.jsonl").write_bytes(first)  # the evaluation before training
    assert whet("doctor", empty).out.splitlines()[-1] == "nothing to judge yet: no step is logged"
    assert json.loads(whet("doctor", empty, "--json").out)["is_empty"] is True


def test_a_step_that_the_run_does_not_have(whet: Whet, run: Path) -> None:
    beyond, whole = whet("doctor", run, "--until", 9999), whet("doctor", run)
    first, told, *rest = beyond.out.splitlines()
    assert told == "--until 9999: the run has only 2 steps, and all are judged"
    assert [first, *rest] == whole.out.splitlines()
    assert "as it was after step 2" in whet("doctor", run, "--until", 2).out.splitlines()[0]


def test_a_run_that_an_alarm_ended_is_not_listed_as_finished(whet: Whet, run: Path) -> None:
    listed = json.loads(whet("runs", "--json").out)
    assert [row["status"] for row in listed] == ["finished, 2 steps"]
    results = read_sealed(run / "final_results.json")
    for reason, status in (
        (f"{ENDED}: constant-reward: every rollout got the reward 0.5", "after step 2: constant-reward"),
        (ENDED, "after step 2"),  # of a rank that does not look
    ):
        write_sealed(run / "final_results.json", {**results, "ended": reason})
        (row,) = json.loads(whet("runs", "--json").out)
        assert row["status"] == f"stopped by an alarm {status}"
    write_sealed(run / "final_results.json", {**results, "ended": "no improvement in 2 evaluations"})
    assert "finished, 2 steps" in whet("runs").out


def test_an_export_needs_a_folder_and_runs(whet: Whet, run: Path) -> None:
    Path("notes.txt").write_text("x")
    assert "notes.txt is a file" in refused(whet, "ui", "--export", "notes.txt", run)
    assert f"name one of its runs: {run.resolve()}" in refused(whet, "ui", "--export", "out", run.parent)
    assert "(see `whet ui --help`)" in refused(whet, "ui", "--export")


def test_the_command_is_found_behind_its_group(whet: Whet) -> None:
    assert "(see `whet models pull --help`)" in refused(whet, "models", "pull", "--cache")


def test_a_pipeline_without_its_loop(whet: Whet, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "stages: {first: {loop: online}}\n")
    assert "add loop: pipeline" in refused(whet, "train", recipe)


@pytest.mark.parametrize("name", ["kl", "eval/accuracy", "response_length/mean"])
def test_the_metrics_that_its_help_names_are_known(whet: Whet, name: str) -> None:
    assert name in whet("metrics", "--help").out
    assert whet("metrics", name).code == 0


def test_one_error_is_told_once() -> None:
    def raises(error: Exception) -> str:
        raise error

    checks = {
        "a": lambda: raises(UserError("no letter")),
        "b": lambda: "fine",
        "c": lambda: raises(UserError("no letter")),
        "d": lambda: raises(RunFailed("other")),
        "e": lambda: raises(CheckFailed("no letter")),
    }
    assert [(one.check, one.outcome) for one in run_checks(checks)] == [
        *(("a", "failed"), ("b", "ok"), ("c", "not tried"), ("d", "failed"), ("e", "failed")),
    ]


def test_causes_with_commas_stay_apart() -> None:
    """A cause may have an "and" and an "or" of its own."""
    line = told(
        Finding(rule="r", level="warning", sentence="s", causes=("reward-misspecified", "noisy-reward"), step=3)
    )
    assert line.startswith("since step 3: s (perhaps: the reward pays for something other than the task")
    assert "found it; or the reward is random" in line
