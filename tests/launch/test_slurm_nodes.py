"""The script of Slurm really runs: fake nodes, real srun semantics, real torchrun, a real run of two ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.refusal import write_recipe
from tests.cli.tiny import Whet
from tests.launch import fake_sbatch
from tests.launch.jobs import GOLDEN, SCONTROL, SRUN, program
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
        folder, "sbatch", f'#!/bin/bash\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.launch.fake_sbatch "$@"\n'
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
    script = render_with_signal()
    assert "stopped=1" in script
    done = fake_run(script, tmp_path)
    assert done == (130, False)


def render_with_signal() -> str:
    from tests.launch.jobs import ONE

    return render(ONE).replace("srun --ntasks=1 whet", "sh -c 'kill -TERM $PPID; exit 130' whet")


def fake_run(script: str, place: Path) -> tuple[int, bool]:
    import os
    import subprocess

    folder = place / "bin"
    program(folder, "scontrol", SCONTROL)
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin", "REQUEUED": str(place / "requeued")}
    code = subprocess.run(["bash", "-c", script], env={**environment, "SLURM_JOB_ID": "1"}, check=False).returncode
    return code, (place / "requeued").exists()


@pytest.mark.slow
def test_two_nodes_meet_and_train_one_run(whet: Whet, cluster: Path, tmp_path: Path) -> None:
    """torchrun on both, two ranks of gloo; the run is that of two processes."""
    program(cluster, "torchrun", f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    recipe = write_recipe(tmp_path)
    started = whet("launch", "slurm", recipe, "--nodes", 2, "--gpus", 0, "--restarts", 1, "--name", "demo")
    log = (tmp_path / "runs" / "demo.log").read_text()
    assert started.code == 0, log
    assert json.loads((tmp_path / "ended").read_text()) == {"code": 0, "restarts": 0}, log
    results = json.loads((tmp_path / "runs" / "demo" / "final_results.json").read_text())
    assert results["steps"] == 2
    assert results["processes"] == 2 or "processes" not in results
    assert whet("launch", "logs", "demo").out.count("finished; ") == 1
