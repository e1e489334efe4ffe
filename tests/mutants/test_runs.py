"""One whole run on a few mutants: what is caught, what survives, and what a limit ends."""

import json
import os
import signal
import subprocess
import sys
import time

from tests.mutants.children import children
from tests.mutants.targets import ROOT


def test_a_run_tells_a_bug_that_is_tested_from_one_that_is_not(tmp_path):
    """The estimators are what test_kl.py is about; supervised learning is not."""
    out = tmp_path / "results.json"
    command = "-m tests.mutants --only algorithms/kl.py --only algorithms/supervised.py --workers 1 --tests"
    found = subprocess.run(
        [sys.executable, *command.split(), "tests/algorithms/test_kl.py", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    files = json.loads(out.read_text("utf-8"))["files"]
    assert files["algorithms/kl.py"]["killed"] > 5
    assert not [row for row in files["algorithms/kl.py"]["survivors"] if row["in"] == "k1"]
    assert files["algorithms/supervised.py"]["not covered"] == 1
    assert "negative_log_likelihood (unary)\n  - return -logprobs\n  + return logprobs" in found.stdout


def test_children_end_by_themselves_by_a_signal_or_by_the_limit(monkeypatch):
    monkeypatch.setattr("tests.mutants.children.FEW_SECONDS", 0.1)

    def work(job):
        if job == "late":
            time.sleep(60)
        if job == "busy":
            while True:
                pass
        if job == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        return 0 if job == "fine" else 1

    jobs = ["fine", "failed", "crash", "late"]
    ended = {one.job: one.code for one in children(jobs, work, workers=4, seconds=lambda _: 0.1)}
    assert ended == {"fine": 0, "failed": 1, "crash": -9, "late": None}
    (busy,) = children(["busy"], work, workers=1, seconds=lambda _: 0.9)
    assert busy.code is None
