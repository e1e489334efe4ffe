"""One whole run on a few mutants: what is caught, what survives, and what a limit ends."""

import json
import os
import signal
import subprocess
import sys
import time

from tests.mutants.children import children
from tests.mutants.targets import ROOT

SMALL = """
LIMIT = 3

def double(x):
    return x * 2

def half(x):
    return x / 2

def never(x):
    return -x
"""
CHECKS = """
from whet.small import LIMIT, double, half

def test_double():
    assert double(LIMIT) == 6

def test_half():
    half(2)
"""
# A library of one file without torch, in the place of ours: what is told apart is the same.
DRIVER = """
import sys
from pathlib import Path
from tests.mutants import targets

targets.ROOT = Path(sys.argv.pop(1))
targets.SOURCE = targets.ROOT / "src" / "whet"
targets.TESTS.clear()
targets.TESTS["small.py"] = ("checks",)
from tests.mutants.__main__ import main
main()
"""


def test_a_run_tells_a_bug_that_is_tested_from_one_that_is_not(tmp_path):
    """In functions and at the import; it fails, because nobody has accepted what survives."""
    for name, text in {"src/whet/__init__.py": "", "src/whet/small.py": SMALL, "checks/test_small.py": CHECKS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    out = tmp_path / "results.json"
    found = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), "--workers", "1", "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 1, found.stderr
    (counts,) = json.loads(out.read_text("utf-8"))["files"].values()
    # LIMIT is 4; twice x is x / 2 or x * 3; half of it is x * 2 or x / 3, and what it is nobody looks at.
    assert [counts[verdict] for verdict in ("killed", "survived", "not covered")] == [3, 2, 1]
    assert {row["in"] for row in counts["survivors"]} == {"half", "never"}
    assert "never (unary)\n  - return -x\n  + return x" in found.stdout
    told = found.stderr.splitlines()
    assert "error: src/whet/small.py:11 no test notices, and no reason is listed: return -x → return x" in told
    assert told[-1] == "error: only 3 of 6 bugs are noticed, 50.0%: at least 95% must be"


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

    jobs = ["busy", "late", "fine", "failed", "crash"]
    ended = {
        one.job: one.code for one in children(jobs, work, workers=5, seconds=lambda job: 0.9 if job == "busy" else 0.1)
    }
    assert ended == {"fine": 0, "failed": 1, "crash": -9, "late": None, "busy": None}
