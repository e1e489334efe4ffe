"""A real Ray cluster on this machine: two nodes, a job that `whet launch ray` submits, and a run of two ranks."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from tests.cli.refusal import RECIPE, write_recipe
from tests.launch.jobs import program

pytest.importorskip("ray", reason="ray is not installed (make test-launchers)")
pytestmark = [pytest.mark.launchers, pytest.mark.slow]
SECONDS = 300.0
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the dashboard of a cluster with two nodes; only its own processes are ended."""
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # A token of its own: nobody else on this machine can use the cluster.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", token_hex(32))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    folder = tmp_path / "bin"
    program(folder, "ray", f"#!{sys.executable}\nfrom ray.scripts.scripts import main\nmain()\n")
    program(folder, "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    work = Path("/tmp") / f"whet-ray-{os.getpid()}"  # sockets have short paths
    port, dashboard = free_port(), free_port()
    head = [
        "--head",
        f"--port={port}",
        f"--dashboard-port={dashboard}",
        "--include-dashboard=true",
        f"--temp-dir={work}",
    ]
    agents = [free_port(), free_port()]
    nodes = [
        subprocess.Popen(
            [
                *RAY,
                "start",
                "--block",
                "--num-cpus=2",
                "--num-gpus=0",
                f"--dashboard-agent-listen-port={agents[0]}",
                *head,
            ]
        ),
    ]
    address = f"http://127.0.0.1:{dashboard}"
    try:
        until_answers(dashboard)
        other = [f"--address=127.0.0.1:{port}", f"--dashboard-agent-listen-port={agents[1]}"]
        nodes.append(subprocess.Popen([*RAY, "start", "--block", "--num-cpus=2", "--num-gpus=0", *other]))
        yield address
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(timeout=60)
        shutil.rmtree(work, ignore_errors=True)


def until_answers(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        else:
            return


def test_two_nodes_train_one_run(cluster: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    write_recipe(work, RECIPE)

    def whet(*arguments: object) -> str:
        words = [sys.executable, "-m", "whet", "launch", *map(str, arguments)]
        done = subprocess.run(words, cwd=work, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    given = ("--runs", tmp_path / "runs", "--name", "demo", "--nodes", 2, "--gpus", 0, "--address", cluster)
    whet("ray", "tiny.yaml", "seed=7", *given, "--env", "WHET_TEST=a b")
    deadline = time.monotonic() + SECONDS
    while (state := json.loads(whet("list", "--json"))[0]["state"]) in ("pending", "running"):
        assert time.monotonic() < deadline, whet("logs", "demo")
        time.sleep(2)
    log = whet("logs", "demo")
    assert state == "succeeded", log
    run = tmp_path / "runs" / "demo"
    saved = json.loads((run / "checkpoints" / "step-000002" / "state.json").read_text())
    assert saved["processes"] == 2, log
    assert "seed: 7" in (run / "config.yaml").read_text()
    assert "finished; " in log
