"""One measurement in a process of its own: `python -m bench.side JOB.json ANSWER.json`."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.job import Job
from bench.machine import NOT_INSTALLED, ROOT, version
from whet.errors import RunFailed

SIDES = {  # side → the module whose `measure` does it, and the packages that it needs
    "whet rollout": ("bench.rollouts", ()),
    "whet step": ("bench.steps", ()),
    "whet passes": ("bench.passes", ()),
    "whet profile": ("bench.profiled", ()),
    "transformers rollout": ("bench.peer_transformers", ()),
    "vllm rollout": ("bench.peer_vllm", ("vllm",)),
    "trl step": ("bench.peer_trl", ("trl",)),
}
LAST_LINES = 3  # of a failed process, in its error


def measured(job: Job, directory: Path, *, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The answer of a process that measures this job; files go to `directory`."""
    directory = Path(tempfile.mkdtemp(prefix=job.side.replace(" ", "-") + "-", dir=directory))
    asked, answered, log = directory / "job.json", directory / "answer.json", directory / "log.txt"
    job.write(asked)
    command = [sys.executable, "-m", "bench.side", str(asked), str(answered)]
    with log.open("wb") as output:
        done = subprocess.run(
            command, cwd=ROOT, env=_environment(job, environment or {}), stdout=output, stderr=output, check=False
        )
    if done.returncode:
        lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
        raise RunFailed(f"{job.side} ended with {done.returncode}: {' / '.join(lines[-LAST_LINES:])}")
    answer: dict[str, Any] = json.loads(answered.read_text("utf-8"))
    return answer


def peer(job: Job, directory: Path) -> dict[str, Any]:
    """As `measured`; what is not installed or breaks is said in the result and ends nothing."""
    _, packages = SIDES[job.side]
    absent = [package for package in packages if version(package) == NOT_INSTALLED]
    if absent:
        return {"missing": f"{', '.join(absent)} {NOT_INSTALLED}"}
    try:
        return measured(job, directory)
    except RunFailed as error:
        return {"missing": f"failed: {error}"}


def _environment(job: Job, more: Mapping[str, str]) -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": str(job.threads)} if job.threads else {}
    return {**os.environ, **threads, "HF_HUB_OFFLINE": "1", **more}


def main(arguments: list[str]) -> None:
    """Reads the job, measures, writes the answer."""
    asked, answered = (Path(argument) for argument in arguments)
    job = Job.read(asked)
    if job.threads:
        import torch

        torch.set_num_threads(job.threads)
    module, _ = SIDES[job.side]
    answer = importlib.import_module(module).measure(job)
    answered.write_text(json.dumps(answer), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
