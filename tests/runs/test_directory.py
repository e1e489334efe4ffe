"""The run directory: what is written where, who may write, and what a rewind leaves."""

import json
import math
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.runs.test_kill import files_of
from tests.runs.trainer import fill_with
from whet.errors import RunFailed, UserError
from whet.runs import layout, rollout_index
from whet.runs.directory import RunDirectory

CHAIN = "ab" * 32


def test_a_run_is_named_by_time_and_recipe_and_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [RunDirectory.create(tmp_path / "runs", "my recipes/grpo.yaml", "x: é\n") for _ in range(3)]
    assert len({run.path for run in made}) == 3
    assert re.fullmatch(r"\d{8}-\d{6}-my-recipes-grpo\.yaml(-[23])?", made[0].path.name)
    assert made[2].config_yaml() == "x: é\n"
    assert (made[2].path / "config.yaml").read_bytes() == "x: é\n".encode()


def test_two_runs_of_one_second_get_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(layout.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(layout, "datetime", Clock)
    names = [RunDirectory.create(tmp_path, "grpo", "").path.name for _ in range(3)]
    assert names == ["20260102-030405-grpo", "20260102-030405-grpo-2", "20260102-030405-grpo-3"]


def test_an_exact_path_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".lock").touch()  # killed before the run was made
    (tmp_path / "mine" / ".tmp-config.yaml-00000000").touch()
    with RunDirectory.create(tmp_path, "r", "a: 1\n", path=tmp_path / "mine") as run:
        assert run.path == tmp_path / "mine"
        assert files_of(run.path) == {"config.yaml": b"a: 1\n"}
    with pytest.raises(UserError, match="mine is not empty"):
        RunDirectory.create(tmp_path, "r", "", path=tmp_path / "mine")


@pytest.mark.parametrize("root", ["/proc/whet", "{tmp}/file/below", "{tmp}/file"])
def test_a_place_that_cannot_be_written_is_the_users_mistake(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("a regular file")
    place = Path(root.format(tmp=tmp_path))
    for make in (
        lambda: RunDirectory.create(place, "r", ""),
        lambda: RunDirectory.create(tmp_path, "r", "", path=place),
    ):
        with pytest.raises(UserError, match=f"cannot create a run in {place}") as failure:
            make()
        assert "\n" not in str(failure.value)


def test_open_wants_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match="is not a run directory"):
            RunDirectory.open(path)


def test_metrics_are_lines_with_the_step_first_and_sorted_names(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.log(1, {"reward": 1 / 3, "kl": math.nan, "accuracy": 1})
        run.log(2, {"reward": math.inf})
        run.log_times(2, {"rollout": 0.25})
        assert (run.path / "metrics.jsonl").read_bytes() == (
            b'{"step": 1, "accuracy": 1, "kl": null, "reward": 0.3333333333333333}\n{"step": 2, "reward": null}\n'
        )
        assert run.metrics()[0]["reward"] == 1 / 3
        assert run.timings() == [{"step": 2, "rollout": 0.25}]


def test_rows_come_back_by_step(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.record(12, [{"text": "a\nb", "logprobs": (-0.1, 0.0)}])
        run.record_answers(12, [{"text": "c", "reward": math.nan}])
        run.record_answers(0, [])
        assert (run.path / "evals" / "step-000012.jsonl").read_text() == '{"text": "c", "reward": null}\n'
        assert run.rollouts(12) == [{"text": "a\nb", "logprobs": [-0.1, 0.0]}]
        assert (run.path / "rollouts" / "step-000012.jsonl.gz").is_file()
        assert run.answers(0) == []
        assert (run.rollout_steps(), run.answer_steps()) == ([12], [0, 12])
        with pytest.raises(UserError, match="no rollouts of step 7; it has those of steps: 12"):
            run.rollouts(7)


def test_a_rewind_leaves_what_a_run_to_that_step_would_have_written(tmp_path: Path) -> None:
    def work(run: RunDirectory, steps: range) -> None:
        for step in steps:
            run.record(step, [{"step": step}])
            run.log(step, {"reward": 1 / step})
            run.log_times(step, {"rollout": step / 8})
            run.record_answers(step, [{"step": step}])
            run.save(step, fill_with(CHAIN), {"step": step}, keep=10)

    with RunDirectory.create(tmp_path, "r", "", path=tmp_path / "short") as short:
        work(short, range(1, 4))
    with RunDirectory.create(tmp_path, "r", "", path=tmp_path / "long") as long:
        work(long, range(1, 8))
        long.finish({"accuracy": 1.0})
        (long.path / "rollouts" / ".tmp-step-000008.jsonl.gz-12345678").write_bytes(b"torn")
        (long.path / "checkpoints" / ".tmp-step-000008-12345678").mkdir()
        long.rewind(3)
        assert files_of(long.path) == files_of(short.path)
        assert not long.finished
        work(long, range(4, 6))  # goes on in the same process: the logs are the new files
        assert [row["step"] for row in long.metrics()] == [1, 2, 3, 4, 5]
        long.rewind(-1)
        assert files_of(long.path) == {"config.yaml": b"", "metrics.jsonl": b"", "timings.jsonl": b""}
        assert long.latest() is None


def test_a_run_is_finished_when_its_results_stand(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        assert (run.finished, run.results()) == (False, None)
        run.finish({"accuracy": 0.875, "interval": [0.75, math.inf]})
        assert run.finished
        assert run.results() == {"accuracy": 0.875, "interval": [0.75, None]}
    (run.path / "final_results.json").write_text("{")
    with pytest.raises(RunFailed, match=r"final_results\.json"):
        run.results()


def test_a_failure_keeps_what_it_failed_on(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        first = run.fail("reward raised", {"text": "2+2", "loss": math.nan, "rewards": [1.0, -math.inf]})
        second = run.fail("reward raised", {"error": ValueError("no"), "loss": math.inf})
    assert [path.name for path in (first, second)] == ["reward-raised-001.json", "reward-raised-002.json"]
    assert first.parent == run.path / "failures"
    assert json.loads(first.read_text()) == {"text": "2+2", "loss": "nan", "rewards": [1.0, "-inf"]}
    assert json.loads(second.read_text()) == {"error": "ValueError('no')", "loss": "inf"}


def test_other_ranks_write_nothing_and_read_everything(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "mine", path=tmp_path / "run") as run:
        run.log(1, {"reward": 1.0})
        run.save(1, fill_with(CHAIN), {"seed": 1}, keep=1)
        before = files_of(run.path)

        def fill(_: Path) -> None:
            pytest.fail("only the writer fills a checkpoint")

        other = RunDirectory.open(run.path, is_writer=False)
        other.log(2, {"reward": 2.0})
        other.log_times(2, {"rollout": 2.0})
        other.record(2, [{}])
        other.record_answers(2, [{}])
        other.save(2, fill, {}, keep=1)
        other.save_best(fill, {})
        other.finish({})
        other.rewind(-1)
        other.close()
        assert other.config_yaml() == "mine"
        assert other.metrics() == [{"step": 1, "reward": 1.0}]
        latest = other.latest()
        assert latest is not None
        assert (latest.step, latest.state) == (1, {"seed": 1})
        assert files_of(run.path) == before


HOLD = """
import sys, time
from pathlib import Path
from whet.runs.directory import RunDirectory
run = RunDirectory.open(Path(sys.argv[1]))
print("open", flush=True)
time.sleep(60)
"""


def test_a_second_process_may_not_write(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        pass
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=f"{run.path} is being written by process {holder.pid}"):
            RunDirectory.open(run.path)
        assert RunDirectory.open(run.path, is_writer=False).metrics() == []  # readers need no lock
    finally:
        holder.kill()
        holder.wait()
    RunDirectory.open(run.path).close()  # a killed process holds nothing


def test_a_second_writer_in_one_process_is_refused_too(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "r", "")
    with pytest.raises(UserError, match="is being written by process"):
        RunDirectory.open(run.path)
    blocked = subprocess.run([sys.executable, "-c", HOLD, str(run.path)], capture_output=True, text=True)
    assert "UserError" in blocked.stderr  # the refusal above did not give up the lock
    run.close()
    run.close()
    with pytest.raises(ValueError, match="closed"):
        run.log(1, {})
    reopened = RunDirectory.open(run.path)
    del reopened  # a run that is dropped without close, as after an error, does not block the next one
    RunDirectory.open(run.path).close()


ORPHAN = """
import os, sys, time
from pathlib import Path
from whet.runs.directory import RunDirectory
run = RunDirectory.open(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_worker_that_outlives_a_killed_trainer_does_not_keep_the_lock(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        pass
    trainer = subprocess.run([sys.executable, "-c", ORPHAN, str(run.path)], stdout=subprocess.PIPE, text=True)
    assert trainer.returncode == -9
    worker = int(trainer.stdout)
    try:
        RunDirectory.open(run.path).close()
    finally:
        subprocess.run(["kill", "-9", str(worker)], check=True)


def test_a_write_that_fails_is_one_line_with_the_reason(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        (run.path / "rollouts").write_text("in the way")
        (run.path / "metrics.jsonl").mkdir()
        for write in (lambda: run.record(1, [{}]), lambda: run.log(1, {"reward": 1.0})):
            with pytest.raises(RunFailed, match=r"cannot write .*; there is no checkpoint yet") as failure:
                write()
            assert "\n" not in str(failure.value)


class Gate:
    """Lets nothing be written until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        plain = rollout_index.write_rollouts

        def late(path: Path, step: int, rows: Any) -> None:
            assert self.opened.wait(20)
            plain(path, step, rows)

        monkeypatch.setattr(rollout_index, "write_rollouts", late)


def test_rollouts_are_written_while_the_next_step_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.record(1, [{"step": 1}])
        run.log(1, {"reward": 1.0})  # nobody has waited
        assert list((run.path / "rollouts").iterdir()) == []
        gate.opened.set()
        assert run.rollout_steps() == [1]  # who reads waits
        assert run.rollouts(1) == [{"step": 1}]


@pytest.mark.parametrize("end", ["save", "finish", "rewind", "close", "record"])
def test_nothing_overtakes_the_rollouts_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    gate = Gate(monkeypatch)
    run = RunDirectory.create(tmp_path, "r", "")
    run.record(1, [{"step": 1}])
    threading.Timer(0.2, gate.opened.set).start()
    acts = {
        "save": lambda: run.save(1, fill_with(CHAIN), {}, keep=1),
        "finish": lambda: run.finish({}),
        "rewind": lambda: run.rewind(1),
        "close": run.close,
        "record": lambda: run.record(2, [{}]),
    }
    acts[end]()
    assert (run.path / "rollouts" / "step-000001.jsonl.gz").is_file()
    run.close()


@pytest.mark.parametrize("end", ["save", "finish", "close", "record"])
def test_a_write_that_fails_behind_the_loop_stops_the_run_and_names_its_step(tmp_path: Path, end: str) -> None:
    run = RunDirectory.create(tmp_path, "r", "")
    run.record(3, [{"step": 3}])
    run.rollouts(3)
    shutil.rmtree(run.path / "rollouts")
    run.save(3, fill_with(CHAIN), {}, keep=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whet.runs.logs.made_directory", lambda path: path)  # it vanishes after this look
        run.record(4, [{"step": 4}])
    acts = {
        "save": lambda: run.save(4, fill_with(CHAIN), {}, keep=1),
        "finish": lambda: run.finish({}),
        "close": run.close,
        "record": lambda: run.record(5, [{}]),
    }
    with pytest.raises(RunFailed, match=r"cannot write rollouts of step 4 .*the last good checkpoint is .*step-000003"):
        acts[end]()
    assert not run.finished
    latest = run.latest()
    assert latest is not None
    assert latest.step == 3
    run.close()
    RunDirectory.open(run.path).close()  # the failure does not keep the lock


def test_reading_does_not_import_the_rest_of_the_library() -> None:
    code = "import sys, whet.runs; print([m for m in sys.modules if m.startswith('whet.') or m == 'torch'])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    outside = {name for name in eval(loaded) if not name.startswith(("whet.runs", "whet.errors", "whet.manifests"))}
    assert outside == {"whet.train", "whet.evaluate"}  # empty, and callable since `import whet`
