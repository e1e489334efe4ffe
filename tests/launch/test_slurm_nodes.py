"""The script of Slurm really runs: fake nodes, real srun semantics, real torchrun, a real run of two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.refusal import RECIPE, write_recipe
from tests.cli.tiny import Whet
from tests.launch import fake_sbatch
from tests.launch.jobs import GOLDEN, ONE, SCONTROL, SRUN, program
from whet.launch.slurm import render

ROOT = Path(__file__).resolve().parents[2]
# Ends with the next of the codes in $CODES at every start, and says how often it was started.
ENDS = """#!/bin/bash
echo x >> "$STARTS"
n=$(wc -l < "$STARTS")
set -- $CODES
[ "$n" -lt $# ] && shift $((n - 1)) || shift $(($# - 1))
exit "$1"
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the programs of Slurm, first on the path."""
    folder = tmp_path / "bin"
    program(folder, "srun", SRUN)
    program(folder, "scontrol", SCONTROL)
    program(
        folder,
        "sbatch",
        f'#!/bin/bash\nPYTHONPATH={ROOT}:$PYTHONPATH exec {sys.executable} -m tests.launch.fake_sbatch "$@"\n',
    )
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("REQUEUED", "ENDED", "STARTS"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("name", ["slurm-one.sbatch", "slurm-two.sbatch"])
def test_directives_are_those_of_sbatch(name: str) -> None:
    asked = fake_sbatch.directives((GOLDEN / name).read_text("utf-8"))
    assert asked["job-name"] == "demo"
    assert asked["nodes"] == ("2" if "two" in name else "1")
    if "two" in name:
        assert (asked["time"], asked["gpus-per-node"], asked["mem"]) == ("1-01:01:01", "h100:8", "0")


@pytest.mark.parametrize(
    ("codes", "restarts", "starts", "code"),
    [("0", 3, 1, 0), ("1 130 0", 3, 3, 0), ("2", 3, 1, 2), ("1", 2, 3, 1), ("1", 0, 1, 1)],
)
def test_a_job_is_queued_again_after_failures_and_time_limits(
    whet: Whet,
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    codes: str,
    restarts: int,
    starts: int,
    code: int,
) -> None:
    program(cluster, "whet", ENDS)
    monkeypatch.setenv("CODES", codes)
    monkeypatch.setattr(sys, "executable", str(cluster / "python"))  # the folder that the script puts on the path
    started = whet("launch", "slurm", "grpo-sorting", "--gpus", 0, "--restarts", restarts, "--name", "demo")
    assert (started.code, started.out) == (0, "demo: slurm 4242\n"), started.err
    assert json.loads((tmp_path / "ended").read_text()) == {"code": code, "restarts": starts - 1}
    assert (tmp_path / "starts").read_text() == "x\n" * starts


def test_a_cancelled_job_is_not_queued_again(tmp_path: Path) -> None:
    """scancel sends SIGTERM to the script and to its step, which then fails."""
    for ended_by, requeued in (("kill -TERM $PPID; exit 130", False), ("exit 130", True)):
        (tmp_path / "requeued").unlink(missing_ok=True)
        program(tmp_path / "bin", "srun", f"#!/bin/sh\n{ended_by}\n")
        program(tmp_path / "bin", "scontrol", SCONTROL)
        path = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "REQUEUED": str(tmp_path / "requeued")}
        done = subprocess.run(["bash", "-c", render(ONE)], env={**path, "SLURM_JOB_ID": "1"}, check=False)
        assert (done.returncode, (tmp_path / "requeued").exists()) == (130, requeued)


# torchrun; on the second node its rank is killed once, as soon as a checkpoint is there.
TORCHRUN = """#!/bin/bash
{python} -m torch.distributed.run "$@" & agent=$!
if [[ "$*" == *is_host=0* ]] && mkdir {place}/once; then
  until [ -d {place}/runs/demo/checkpoints/step-000005 ] || ! kill -0 $agent; do sleep 0.1; done
  kill -9 $(cat /proc/$agent/task/*/children) && touch {place}/killed
fi
wait $agent
"""


@pytest.mark.slow
def test_two_nodes_meet_train_one_run_and_meet_again(
    whet: Whet, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun on both, a rank each, gloo: the ranks meet again after one is killed, without a new job."""
    program(cluster, "torchrun", TORCHRUN.format(python=sys.executable, place=tmp_path))
    monkeypatch.setattr(sys, "executable", str(cluster / "python"))  # the folder that the script puts on the path
    recipe = write_recipe(
        tmp_path,
        RECIPE.replace("steps: 2", "steps: 300").replace("save: {every_steps: 1}", "save: {every_steps: 5, keep: 100}"),
    )
    started = whet("launch", "slurm", recipe, "--nodes", 2, "--gpus", 0, "--restarts", 1, "--name", "demo")
    run, log = tmp_path / "runs" / "demo", (tmp_path / "runs" / "demo.log").read_text()
    assert started.code == 0, log
    assert (tmp_path / "killed").exists()
    assert json.loads((tmp_path / "ended").read_text()) == {"code": 0, "restarts": 0}, log
    assert "resumed after step" in log
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(301))
    state = json.loads((run / "checkpoints" / "step-000300" / "state.json").read_text())
    assert state["processes"] == 2
    assert "whet" not in whet("launch", "logs", "demo").err
