"""Files of a run that somebody deleted or damaged: the run goes on and says what it lost, or says why it does not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import SUPERVISED
from tests.train.test_stop import Listening
from whet.cli.progress import SilentProgress
from whet.errors import RunFailed, UserError
from whet.evaluate.measures import evaluations, measure_of
from whet.recipe import Recipe, validate
from whet.report.run.page import write_report
from whet.runs.directory import RunDirectory
from whet.train.experiments.jobs import do_job, plan_run
from whet.train.start import resume_run, start_run

RECIPE = {
    **SUPERVISED,
    "steps": 6,
    "eval": {"every_steps": 2, "examples": 6, "max_tokens": 6},
    "save": {"every_steps": 2, "keep": 2},
    "device": "cpu",
}
CLOCKS = ("seconds", "machine", "versions", "checksum")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 4 and 6."""
    recipe = Recipe(name="r", config=validate(RECIPE, where="test"), written={})
    return start_run(recipe, tmp_path_factory.mktemp("lost"), lambda *_: SilentProgress())


@pytest.fixture
def stopped(whole: Path, tmp_path: Path) -> Path:
    """The run, killed after the checkpoint of step 4."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for name in ("final_results.json", "report.html"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints" / "step-000006")
    return run


def resume(run: Path) -> list[str]:
    progress = Listening()
    resume_run(run, [], lambda *_: progress)
    return progress.notes


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "final_results.json").read_text())
    return found


def timeless(run: Path) -> dict[str, Any]:
    return {key: value for key, value in results(run).items() if key not in (*CLOCKS, "lost", "recipe")}


def test_nothing_lost_is_nothing_said(stopped: Path, whole: Path) -> None:
    assert not [note for note in resume(stopped) if note.startswith("lost")]
    assert timeless(stopped) == timeless(whole)
    assert "lost" not in results(stopped)
    assert (stopped / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_without_its_metrics_a_run_still_knows_where_it_began(stopped: Path, whole: Path) -> None:
    (stopped / "metrics.jsonl").unlink()
    sentence = "metrics.jsonl lacks the lines of steps 0, 1, 2, 3, 4, so curves and report do without"
    assert f"lost: {sentence}" in resume(stopped)
    assert timeless(stopped) == timeless(whole)  # `before` is that of step 0, not the evaluation of step 6
    assert results(stopped)["lost"] == [sentence]
    assert f"Lost: {sentence}" in write_report(stopped).read_text()
    assert [row["step"] for row in RunDirectory.open(stopped, is_writer=False).metrics()] == [5, 6]


def test_a_checkpoint_of_an_earlier_version_is_refused_with_what_to_do(stopped: Path) -> None:
    newest = RunDirectory.open(stopped, is_writer=False).latest()
    assert newest is not None
    shutil.copytree(newest.path, stopped / "copy")

    def fill(directory: Path) -> None:
        plain = shutil.ignore_patterns("manifest.json", "state.json")
        shutil.copytree(stopped / "copy", directory, dirs_exist_ok=True, ignore=plain)

    with RunDirectory.open(stopped) as writer:
        writer.save(newest.step, fill, {k: v for k, v in newest.state.items() if k != "measured"}, keep=2)
    with pytest.raises(UserError, match=r"has no 'measured' in its state\.json, so an earlier version"):
        resume(stopped)


def test_an_unfinished_run_without_its_first_lines_shows_no_before() -> None:
    rows = [
        {"step": step, "eval/accuracy": 0.1, "eval/accuracy_low": 0.0, "eval/accuracy_high": 1.0} for step in (4, 6)
    ]
    assert evaluations(rows, None) == {measure_of("eval/accuracy"): [rows[1]]}


def tear(path: Path) -> None:
    """Nothing after step 2, and of step 3 the beginning."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-4]) + lines[-4][:9])


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("metrics.jsonl", tear, "metrics.jsonl lacks the lines of steps 3, 4"),
        ("timings.jsonl", tear, "timings.jsonl lacks the lines of steps 3, 4"),
        ("timings.jsonl", Path.unlink, "timings.jsonl lacks the lines of steps 1, 2, 3, 4"),
        ("best_model", shutil.rmtree, "the best model, of step"),
        ("best_model/config.json", Path.unlink, "the best model, of step"),
    ],
)
def test_what_is_missing_is_said_and_stays_in_the_results(
    stopped: Path, whole: Path, name: str, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(stopped / name)
    notes = resume(stopped)
    assert [note for note in notes if note.startswith(f"lost: {said}")], notes
    assert results(stopped)["lost"][0].startswith(said)
    if not name.startswith("best_model"):
        assert timeless(stopped) == timeless(whole)
    else:
        assert RunDirectory.open(stopped, is_writer=False).best_defect() is None  # a later one took its place
        assert results(stopped)["best"]["step"] == 6


def test_rollouts_and_answers_that_are_gone_are_left_out(stopped: Path) -> None:
    shutil.rmtree(stopped / "evals")
    resume(stopped)
    assert write_report(stopped).is_file()


@pytest.mark.parametrize("with_metrics", [True, False])
def test_lost_checkpoints_are_no_reason_to_begin_again(stopped: Path, with_metrics: bool) -> None:
    shutil.rmtree(stopped / "checkpoints")
    if not with_metrics:
        (stopped / "metrics.jsonl").unlink()
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(UserError, match="has no checkpoint any more, and starting again would overwrite"):
        resume(stopped)
    assert {path: path.read_bytes() for path in before} == before


def test_nor_where_their_mark_is_lost_too(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    (stopped / "saved.json").unlink()
    with pytest.raises(UserError, match="would overwrite its metrics of 6 steps: restore its checkpoints"):
        resume(stopped)


def test_killed_before_its_first_checkpoint_a_run_begins_again(stopped: Path, whole: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    (stopped / "saved.json").unlink()
    for name, kept in (("metrics.jsonl", 3), ("timings.jsonl", 2)):  # killed between line and checkpoint of step 2
        lines = (whole / name).read_bytes().splitlines(keepends=True)
        (stopped / name).write_bytes(b"".join(lines[:kept]))
    before = (stopped / "metrics.jsonl").read_bytes()
    aside = stopped / "metrics.abandoned.jsonl"
    said = "no checkpoint was saved in the 2 steps so far: starting again; their metrics are kept in"
    assert f"{said} {aside}" in resume(stopped)
    assert aside.read_bytes() == before  # never lost, even if the run is now killed earlier
    assert (stopped / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert timeless(stopped) == timeless(whole)
    assert (stopped / "saved.json").read_bytes() == (whole / "saved.json").read_bytes()


def test_damaged_results_are_written_again(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "final_results.json").write_bytes((whole / "final_results.json").read_bytes()[:40])
    assert not RunDirectory.open(run, is_writer=False).finished
    with pytest.raises(RunFailed, match=r"final_results\.json.*--resume writes it again"):
        write_report(run)
    resume(run)
    assert timeless(run) == timeless(whole)


@pytest.mark.parametrize("name", ["report.html", "training_curves.png"])
def test_a_run_that_was_killed_before_its_report_gets_it(whole: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = results(run)
    (run / name).unlink()
    assert [note for note in resume(run) if "had no report" in note]
    assert (run / name).is_file()
    assert results(run) == before
    with pytest.raises(UserError, match="is finished; to train for longer"):
        resume(run)


class Watching:
    """A watch of jobs that keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, label: str, state: str) -> None: ...

    def progress(self, config: Any, run: RunDirectory) -> SilentProgress:
        return SilentProgress()

    def end(self, run: RunDirectory | None, failure: str) -> None: ...

    def note(self, text: str) -> None:
        self.said.append(text)


def test_among_several_runs_too(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "report.html").unlink()
    job = plan_run("one", Recipe(name="r", config=validate(RECIPE, where="test"), written={}), run)
    assert do_job(job, Watching()) == ""
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("content", ["", "\n", "- 1\n", "{", "steps: 1"])
def test_a_config_that_is_no_config_is_a_sentence(stopped: Path, content: str) -> None:
    (stopped / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=r"run"):
        resume(stopped)
    if content != "steps: 1":
        with pytest.raises(UserError, match=r"config"):
            write_report(stopped)


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
def test_a_log_that_is_no_log_is_a_sentence(stopped: Path, name: str) -> None:
    (stopped / name).unlink()
    (stopped / name).mkdir()
    with pytest.raises(RunFailed, match=rf"{name} cannot be read"):
        resume(stopped)
    (stopped / name).rmdir()
    (stopped / name).write_bytes(b"[" * 100_000 + b"\n")
    with pytest.raises(RunFailed, match=rf"{name}, line 1: not valid JSON"):
        resume(stopped)
