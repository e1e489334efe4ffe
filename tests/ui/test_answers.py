"""What the page is told of a folder of runs."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.report.fake_run import online_run, supervised_run
from tests.ui.pages import ask, client
from whet.runs.directory import RunDirectory
from whet.runs.series import series
from whet.runs.tail import Tail, read_tail
from whet.ui.answers.standings import Standings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    online_run(root, steps=60)
    supervised_run(root, steps=20)
    return root


def test_the_list_has_status_and_result(folder: Path) -> None:
    entries = {entry["name"]: entry["standing"] for entry in ask(folder, "runs")["entries"]}
    online, supervised = entries["20260314-101500-grpo-reverse"], entries["20260314-111500-sft-reverse"]
    assert (online["status"], online["step"], online["steps"], online["kind"]) == ("finished", 60, 60, "online")
    results = RunDirectory.open(folder / "20260314-101500-grpo-reverse", is_writer=False).results()
    assert results is not None
    assert [one["value"] for one in online["headline"]["values"]] == [
        results[when]["eval/accuracy"] for when in ("before", "after")
    ]
    assert supervised["headline"]["metric"] == "eval/loss"
    assert not supervised["headline"]["is_higher_better"]


def test_a_run_of_its_own_is_shown_alone(folder: Path) -> None:
    alone = folder / "20260314-111500-sft-reverse"
    answer = ask(alone, "runs")
    assert [entry["name"] for entry in answer["entries"]] == [answer["alone"]] == [alone.name]
    assert (
        "20260314-101500-grpo-reverse is a link out of"
        in ask(alone, "run", run="20260314-101500-grpo-reverse")["error"]
    )


def test_the_recipe_is_told_key_by_key(folder: Path) -> None:
    about = ask(folder, "run", run="20260314-101500-grpo-reverse")
    assert about["keys"]["rollout.group"] == 8
    assert about["keys"]["algorithm.kl.coefficient"] == 0.02
    assert about["rollout_steps"] == [60]
    assert about["answer_steps"][:2] == [0, 6]
    assert about["setup"]["versions"]["whet"] == "0.1.0"


def test_curves_are_told_once(folder: Path) -> None:
    name = "20260314-101500-grpo-reverse"
    first = ask(folder, "curves", run=name)
    rows = RunDirectory.open(folder / name, is_writer=False).metrics()
    for metric in ("kl", "eval/accuracy_low"):
        assert [tuple(part) for part in first["curves"][metric]] == [
            series(rows, metric).steps,
            series(rows, metric).values,
        ]
    again = ask(folder, "curves", run=name, after=first["cursor"])
    assert again["curves"] == {}
    assert again["cursor"] == first["cursor"]
    assert "seconds/step" in ask(folder, "curves", run=name, log="timings")["curves"]
    assert "log must be one of" in ask(folder, "curves", run=name, log="../config.yaml")["error"]


def test_a_long_curve_keeps_its_spikes(tmp_path: Path) -> None:
    run = tmp_path / "long"
    run.mkdir()
    (run / "config.yaml").write_text("steps: 1\n")
    values = [1000.0 if step == 7777 else 0.5 for step in range(20_000)]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "kl": value}) + "\n" for step, value in enumerate(values))
    )
    steps, kept = ask(tmp_path, "curves", run="long")["curves"]["kl"]
    assert len(steps) <= 1002
    assert kept[steps.index(7777)] == 1000.0


def test_the_doctor_says_the_same_as_the_command(folder: Path) -> None:
    from whet.doctor.examine import examine_run
    from whet.doctor.plain_words import as_json

    run = RunDirectory.open(folder / "20260314-101500-grpo-reverse", is_writer=False)
    assert ask(folder, "doctor", run=run.path.name) == json.loads(json.dumps(as_json(examine_run(run))))


def test_held_out_answers_of_any_evaluation(folder: Path) -> None:
    name = "20260314-101500-grpo-reverse"
    newest = ask(folder, "held_out", run=name)
    assert newest["step"] == newest["steps"][-1] == 60
    stored = RunDirectory.open(folder / name, is_writer=False).answers(6)
    told = ask(folder, "held_out", run=name, step=6)["answers"]
    assert [(row["id"], row["text"], row["correct"]) for row in told] == [
        (row["id"], row["text"], row["correct"]) for row in stored
    ]
    assert "no evals of step 7" in ask(folder, "held_out", run=name, step=7)["error"]
    for wrong in ("-1", "x", "1e3", "²"):
        assert "whole number" in ask(folder, "held_out", run=name, step=wrong)["error"]


def test_an_unknown_question_is_not_found(folder: Path) -> None:
    assert client(folder).get("/api/secrets").status_code == 404
    assert "needs run=" in ask(folder, "run")["error"]


def test_a_log_is_counted_once_by_two_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page asks several questions at once."""
    run = RunDirectory.open(folder / "20260314-101500-grpo-reverse", is_writer=False)
    alone = Standings().of(run)

    def slow(*arguments: Any, **more: Any) -> Tail:
        time.sleep(0.05)
        return read_tail(*arguments, **more)

    monkeypatch.setattr("whet.ui.answers.standings.read_tail", slow)
    standings = Standings()
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(standings.of, [run] * 4)) == [alone] * 4
    assert len(standings._progress[str(run.path)].evaluated) == sum("eval/accuracy" in row for row in run.metrics())
