"""Stands in for sbatch: reads the directives of a script as Slurm does, and runs it on this machine as two "nodes".

`scontrol requeue` in the script makes it run again with SLURM_RESTART_COUNT, as on a cluster.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

JOB = "4242"
# Option → what its value looks like, as sbatch's manual has it; None: it takes none.
KNOWN = {
    "job-name": r".+",
    "nodes": r"\d+",
    "ntasks-per-node": r"\d+",
    "gpus-per-node": r"([a-z0-9_]+:)?\d+",
    "cpus-per-task": r"\d+",
    "mem": r"\d+[KMGT]?",
    "time": r"\d+-\d\d:\d\d:\d\d",
    "output": r".+",
    "open-mode": r"append|truncate",
    "signal": r"([RB]:)?[A-Z]+(@\d+)?",
    "export": r".+",
    "partition": r".+",
    "account": r".+",
    "requeue": None,
}


def directives(text: str) -> dict[str, str]:
    """The options of a script: from lines that begin with #SBATCH, up to the first line that is no comment."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            for word in shlex.split(line.removeprefix("#SBATCH"), comments=True):
                name, _, value = word.removeprefix("--").partition("=")
                pattern = KNOWN[name]
                assert word.startswith("--"), word
                assert re.fullmatch(pattern, value) if pattern else not value, word
                found[name] = value
    return found


def main(script: str) -> None:
    asked = directives(Path(script).read_text("utf-8"))
    requeued = Path(os.environ["REQUEUED"])
    environment = {**os.environ, "SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": "localhost,127.0.0.1"}
    with Path(asked["output"]).open("ab" if asked["open-mode"] == "append" else "wb") as log:
        for count in range(10):
            requeued.unlink(missing_ok=True)
            restarts = {"SLURM_RESTART_COUNT": str(count)} if count else {}
            code = subprocess.run(
                ["bash", script], env={**environment, **restarts}, stdout=log, stderr=log, check=False, timeout=300
            ).returncode
            if not requeued.exists():
                break
    Path(os.environ["ENDED"]).write_text(json.dumps({"code": code, "restarts": count}))
    sys.stdout.write(f"{JOB}\n")


if __name__ == "__main__":
    main(sys.argv[-1])
